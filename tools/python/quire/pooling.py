# SPDX-License-Identifier: Apache-2.0
"""Models that pool: embed(), classify(), score(), encode() and reward() of vLLM's class."""

from . import outputs

# Tasks of vLLM whose vectors are one for each token.
PER_TOKEN = ("token_embed", "token_classify")
TASKS = ("embed", "classify", "score") + PER_TOKEN


class Pooling:
    """A part of LLM, which has the server and the tokenizer."""

    def encode(self, prompts, pooling_params=None, *, use_tqdm=True, lora_request=None,
               pooling_task=None, truncate_prompt_tokens=None, tokenization_kwargs=None):
        """What the model pools, a PoolingRequestOutput for each prompt: a vector, scores of labels,
        or with token_embed a vector for each token."""
        if pooling_task not in (None, "encode") + TASKS:
            raise ValueError("pooling_task must be one of %s" % ", ".join(TASKS))
        return self._pool(prompts, outputs.PoolingRequestOutput, outputs.PoolingOutput,
                          None if pooling_task == "encode" else pooling_task, pooling_params, use_tqdm,
                          lora_request, truncate_prompt_tokens, tokenization_kwargs)

    def embed(self, prompts, *, use_tqdm=True, pooling_params=None, lora_request=None,
              truncate_prompt_tokens=None, tokenization_kwargs=None):
        """An EmbeddingRequestOutput with a vector for each prompt."""
        return self._pool(prompts, outputs.EmbeddingRequestOutput, outputs.EmbeddingOutput, "embed",
                          pooling_params, use_tqdm, lora_request, truncate_prompt_tokens,
                          tokenization_kwargs)

    def classify(self, prompts, *, pooling_params=None, use_tqdm=True, lora_request=None,
                 truncate_prompt_tokens=None, tokenization_kwargs=None):
        """A ClassificationRequestOutput with the probabilities of the labels for each prompt."""
        return self._pool(prompts, outputs.ClassificationRequestOutput,
                          outputs.ClassificationOutput, "classify", pooling_params, use_tqdm,
                          lora_request, truncate_prompt_tokens, tokenization_kwargs)

    def reward(self, prompts, *, pooling_params=None, use_tqdm=True, lora_request=None,
               truncate_prompt_tokens=None, tokenization_kwargs=None):
        """As encode() of a model with one label."""
        return self.encode(prompts, pooling_params, use_tqdm=use_tqdm, lora_request=lora_request,
                           truncate_prompt_tokens=truncate_prompt_tokens,
                           tokenization_kwargs=tokenization_kwargs)

    def score(self, data_1, data_2, *, use_tqdm=True, truncate_prompt_tokens=None,
              pooling_params=None, lora_request=None, tokenization_kwargs=None,
              chat_template=None):
        """A ScoringRequestOutput for each pair: one text and several, or as many of both.
        prompt_token_ids are those of the two texts, without a template between them."""
        if chat_template is not None:
            raise ValueError("give LLM() the chat_template: it is the server's")
        first, second = _texts(data_1), _texts(data_2)
        if len(first) not in (1, len(second)) or not first:
            raise ValueError("Input lengths must be either 1:1, 1:N or N:N")
        first = first * len(second) if len(first) == 1 else first
        fields = _fields(pooling_params, truncate_prompt_tokens, tokenization_kwargs)
        self._load([lora_request])
        ids = {text: self.tokenizer.encode(text) for text in
               {t for t in first + second if isinstance(t, str)}}

        def one(i):
            answer = self.server.json("/score", {"model": self._name(lora_request),
                                                 "text_1": first[i], "text_2": second[i], **fields})
            return outputs.ScoringRequestOutput(
                self._request_id(), outputs.ScoringOutput(answer["data"][0]["score"]),
                ids.get(first[i], []) + ids.get(second[i], []), _cached(answer), True)
        return self._all(len(second), one, use_tqdm, lambda r: 0)

    def _name(self, lora):
        return self.model if lora is None else lora.lora_name

    def _pool(self, prompts, request_output, output, task, params, use_tqdm, lora, truncate, kwargs):
        from .llm import _listed, _per_prompt, _prompt
        prompts = [_prompt(p) for p in _listed(prompts)]
        params = _per_prompt(params, len(prompts), "pooling_params")
        loras = _per_prompt(lora, len(prompts), "lora_request")
        fields = [_fields(p, truncate, kwargs) for p in params]
        self._load(loras)

        def one(i):
            body = {"model": self._name(loras[i]), "input": prompts[i], **fields[i]}
            if task is not None:
                body.setdefault("task", task)
            answer = self.server.json("/pooling", body)
            return request_output(self._request_id(), output(answer["data"][0]["data"]),
                                  self._pooled_ids(prompts[i], fields[i], answer), _cached(answer),
                                  True)
        return self._all(len(prompts), one, use_tqdm, lambda r: 0)

    def _pooled_ids(self, prompt, fields, answer):
        """The ids of a prompt, as far as it was computed."""
        if isinstance(prompt, str):
            prompt = self.tokenizer.encode(prompt, fields.get("add_special_tokens", True))
        n = answer["usage"]["prompt_tokens"]
        if n >= len(prompt):
            return prompt
        return prompt[-n:] if fields.get("truncation_side") == "left" else prompt[:n]


def _cached(answer):
    return (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)


def _texts(data):
    """A list of texts, of one or of several; parts of messages stay as they are."""
    data = list(data) if isinstance(data, (list, tuple)) else [data]
    for text in data:
        if not isinstance(text, (str, dict)):
            raise ValueError("a text, or {\"text\": ...}, or a list of them, not %r" % (text,))
    return data


def _fields(params, truncate, kwargs):
    """Fields of the request."""
    fields = {} if params is None else params.request()
    if truncate is not None:
        fields["truncate_prompt_tokens"] = truncate
    for name, value in (kwargs or {}).items():
        if name not in ("add_special_tokens", "truncate_prompt_tokens", "truncation_side"):
            raise ValueError("tokenization_kwargs has no %s" % name)
        fields[name] = value
    return fields
