# SPDX-License-Identifier: Apache-2.0
"""LLM: a model in a private server, asked as vLLM's offline class is."""

import json
import logging
import os
import re
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor, as_completed

from . import outputs
from .params import SamplingParams
from .pooling import Pooling
from .server import Server

AT_ONCE = 256  # connections
SLEEP_S = 31536000  # the setting's maximum: the engine sleeps only when it is told to

log = logging.getLogger("quire")

# Keywords of vLLM's class that have no meaning here, with the reason. Further ones are known to
# quire serve, which tells them, too.
NO_MODULES = "no step is run by PyTorch"
SILENT = {
    "allowed_local_media_path": "a prompt is text",
    "block_size": "page_tokens is the setting",
    "code_revision": "no code of a model folder is run",
    "compilation_config": NO_MODULES,
    "cuda_graph_sizes": "steps of all sizes are recorded as they come",
    "cudagraph_capture_sizes": "steps of all sizes are recorded as they come",
    "disable_async_output_proc": "it is always on",
    "disable_cascade_attn": NO_MODULES,
    "disable_log_requests": "no requests are logged",
    "disable_log_stats": "no statistics are logged",
    "distributed_executor_backend": "ranks are threads of one process",
    "download_dir": "models are in the Hugging Face cache",
    "enable_chunked_prefill": "it is always on",
    "enforce_eager": NO_MODULES,
    "hf_token": "nothing is fetched",
    "limit_mm_per_prompt": "a prompt is text",
    "max_parallel_loading_workers": "all threads load",
    "max_seq_len_to_capture": "steps of all sizes are recorded as they come",
    "mm_processor_cache_gb": "a prompt is text",
    "mm_processor_kwargs": "a prompt is text",
    "num_gpu_blocks_override": "num_pages is the setting",
    "ray_workers_use_nsight": "there is no ray",
    "skip_tokenizer_init": "prompts may be ids anyway",
    "swap_space": "kv_host_bytes is the setting",
    "tokenizer_mode": "there is one tokenizer",
    "tokenizer_revision": "the tokenizer is the model's own",
    "use_v2_block_manager": NO_MODULES,
    "worker_cls": NO_MODULES,
}

# Options without a negative form: False is the absence of the option.
OFF = {"trust_remote_code", "enable_log_requests", "enable_auto_tool_choice", "enable_lora"}

# vLLM's older word for what a model does.
RUNNERS = {"auto": "auto", "generate": "generate", "embed": "pooling", "embedding": "pooling",
           "classify": "pooling", "score": "pooling", "reward": "pooling", "encode": "pooling",
           "pooling": "pooling"}


def find_model(model, revision=None):
    """The folder of a model: a path, or a hub name that the local Hugging Face cache has."""
    if os.path.exists(model):
        return model
    home = os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    cache = (os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
             or os.path.join(home, "hub"))
    folder = os.path.join(cache, "models--" + model.replace("/", "--"))
    ref = os.path.join(folder, "refs", revision or "main")
    if os.path.isfile(ref):
        with open(ref, encoding="utf-8") as f:
            revision = f.read().strip()
    snapshots = os.path.join(folder, "snapshots")
    names = [revision] if revision else sorted(os.listdir(snapshots)) \
        if os.path.isdir(snapshots) else []
    for name in names:
        found = os.path.join(snapshots, name)
        if os.path.exists(os.path.join(found, "config.json")):
            return found
    raise FileNotFoundError("%s is no folder, and the Hugging Face cache in %s does not have it: "
                            "fetch it with `hf download %s`" % (model, cache, model))


def options_of(arguments):
    """Arguments of quire serve for keywords of vLLM's class."""
    options = []
    for name, value in arguments.items():
        option = "--" + name.replace("_", "-")
        if name in SILENT:
            log.warning("LLM(%s=...) has no effect: %s", name, SILENT[name])
            continue
        if value is None or (value is False and name in OFF):
            continue
        if name == "task":
            if value not in RUNNERS:
                raise ValueError("task must be one of %s" % ", ".join(RUNNERS))
            options += ["--runner", RUNNERS[value]]
        elif name == "enable_lora":
            options += [option, "--lora-dir", "/"]  # any folder that a LoRARequest names
        elif name == "enable_sleep_mode":
            options += ["--sleep-after-s", str(SLEEP_S)] if value else []
        elif value is True:
            options.append(option)
        elif value is False:
            options.append("--no-" + name.replace("_", "-"))
        elif isinstance(value, (dict, list)):
            options += [option, json.dumps(value)]
        else:
            options += [option, str(value)]
    return options


class Progress:
    """A bar on standard error where that is a terminal, and a line at the end."""

    def __init__(self, n, wanted):
        self.n, self.done, self.tokens = n, 0, 0
        self.wanted = wanted
        self.begin = time.monotonic()

    def add(self, tokens):
        self.done += 1
        self.tokens += tokens
        if self.wanted and (sys.stderr.isatty() or self.done == self.n):
            passed = max(time.monotonic() - self.begin, 1e-9)
            bar = "#" * (30 * self.done // self.n)
            print("%sProcessed prompts: [%-30s] %d/%d, %.1f it/s, output: %.1f toks/s"
                  % ("\r" if sys.stderr.isatty() else "", bar, self.done, self.n,
                     self.done / passed, self.tokens / passed), file=sys.stderr,
                  end="\n" if self.done == self.n else "", flush=True)


class Tokenizer:
    """The server's: /tokenize and /detokenize."""

    def __init__(self, server):
        self.server = server

    def encode(self, text, add_special_tokens=True):
        return self.server.json("/tokenize", {"prompt": text,
                                              "add_special_tokens": add_special_tokens})["tokens"]

    def decode(self, token_ids):
        """Special tokens are written out."""
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self.server.json("/detokenize", {"tokens": ids})["prompt"] if ids else ""

    def apply_chat_template(self, conversation, tools=None, add_generation_prompt=True,
                            continue_final_message=False, tokenize=True, **variables):
        """Token ids, or the prompt as a text if tokenize is False."""
        body = {"messages": conversation, "add_generation_prompt": add_generation_prompt,
                "continue_final_message": continue_final_message}
        if tools:
            body["tools"] = tools
        if variables:
            body["chat_template_kwargs"] = variables
        ids = self.server.json("/tokenize", body)["tokens"]
        return ids if tokenize else self.decode(ids)


def start_server(model, options):
    """A server. A keyword that nothing has is a TypeError, as of any function."""
    try:
        server = Server(model, options)
    except RuntimeError as e:
        unknown = re.search(r'unknown option "--([\w-]+)', str(e))
        if unknown:
            raise TypeError("LLM() got an unexpected keyword argument '%s'"
                            % unknown.group(1).replace("-", "_")) from None
        raise
    with open(server.log, errors="replace") as f:
        for name, reason in re.findall(r"quire serve: --(\S+) has no effect: (.*)", f.read()):
            log.warning("LLM(%s=...) has no effect: %s", name.replace("-", "_"), reason)
    return server


class LLM(Pooling):
    """A model. Further keywords are those of `quire serve`: vLLM's names and quire's settings."""

    def __init__(self, model, *, revision=None, served_model_name=None, tokenizer=None,
                 **arguments):
        if tokenizer not in (None, model):
            raise ValueError("the tokenizer is the model's own")
        name = served_model_name or model.rstrip("/").split("/")[-1] or "model"
        if not isinstance(name, str):
            name = name[0]
        self.model = name
        self.server = start_server(find_model(model, revision),
                                   ["--served-model-name", name] + options_of(arguments))
        self.tokenizer = Tokenizer(self.server)
        self.lock = threading.Lock()  # of the next two
        self.n_requests = 0
        self.adapters = {}  # folders by the names that are loaded
        self.texts = {}  # of tokens that were looked at

    def close(self):
        """End the server. It also ends with the object and with the process."""
        self.server.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def get_tokenizer(self):
        return self.tokenizer

    def get_default_sampling_params(self):
        return None  # the server's: the model's generation_config.json

    def _decoder(self):
        """For outputs, which may outlive the server: they must not keep it."""
        kept = weakref.ref(self)

        def decode(token):
            llm = kept()
            try:
                return None if llm is None else llm._decode(token)
            except OSError:
                return None  # it was closed
        return decode

    def _decode(self, token):
        if token not in self.texts:
            text = self.tokenizer.decode([token])
            with self.lock:
                self.texts[token] = text
        return self.texts[token]

    def _max_tokens(self, prompt):
        """Room for an answer up to the end of the context."""
        if isinstance(prompt, list):
            length = self.server.json("/v1/models", method="GET")["data"][0]["max_model_len"]
            return max(length - len(prompt), 1)
        told = self.server.json("/tokenize", {"prompt": prompt})
        return max(told["max_model_len"] - told["count"], 1)

    def _request_id(self):
        with self.lock:
            self.n_requests += 1
            return str(self.n_requests - 1)

    def _load(self, requests):
        """Load the adapters that are named for the first time."""
        for r in requests:
            if r is None or self.adapters.get(r.lora_name) == r.lora_path:
                continue
            self.server.ask("POST", "/v1/load_lora_adapter", admin=True, body={
                "lora_name": r.lora_name, "lora_path": os.path.abspath(r.lora_path)})
            self.adapters[r.lora_name] = r.lora_path

    def _complete(self, prompt, fields, lora=None):
        body = {"model": self.model if lora is None else lora.lora_name, "prompt": prompt, "return_token_ids": True,
                "return_tokens_as_token_ids": True, **fields}
        begin = time.time()
        return begin, self.server.json("/v1/completions", body)

    def _one(self, prompt, params, priority, lora=None):
        """One prompt: a text, or the ids of one."""
        fields = {} if params is None else params.request()
        if params is not None and params.max_tokens is None:
            fields["max_tokens"] = self._max_tokens(prompt)
        if priority is not None:
            fields["priority"] = priority
        begin, answer = self._complete(prompt, fields, lora)
        end = time.time()
        choices = sorted(answer["choices"], key=lambda c: c["index"])
        request_id = self._request_id()
        decode = self._decoder()
        told = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
        return outputs.RequestOutput(
            request_id=request_id, prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=choices[0]["prompt_token_ids"],
            prompt_logprobs=outputs.prompt_logprobs(choices[0], decode),
            outputs=[outputs.completion(c, i, fields.get("logprobs", 0), decode)
                     for i, c in enumerate(choices)],
            finished=True, metrics=outputs.RequestMetrics(begin, end, end),
            num_cached_tokens=told.get("cached_tokens"))

    def _all(self, n, one, use_tqdm, count):
        """one(i) for all at once; the results in order. The first error is raised."""
        results = [None] * n
        progress = Progress(n, use_tqdm)
        with ThreadPoolExecutor(max_workers=max(1, min(n, AT_ONCE))) as pool:
            waiting = {pool.submit(one, i): i for i in range(n)}
            try:
                for future in as_completed(waiting):
                    results[waiting[future]] = future.result()
                    progress.add(count(future.result()))
            except BaseException:
                for future in waiting:
                    future.cancel()
                raise
        return results

    def generate(self, prompts, sampling_params=None, use_tqdm=True, *, prompt_token_ids=None,
                 priority=None, lora_request=None):
        """Continue prompts: a text, a list of texts, {"prompt": ...}, {"prompt_token_ids": ...}, or
        lists of them. sampling_params, lora_request: one, or one per prompt. The outputs are in
        order."""
        if prompt_token_ids is not None:
            prompts = prompt_token_ids
        prompts = [_prompt(p) for p in _listed(prompts)]
        params = _per_prompt(sampling_params, len(prompts), "sampling_params")
        priorities = _per_prompt(priority, len(prompts), "priority")
        loras = _per_prompt(lora_request, len(prompts), "lora_request")
        self._load(loras)
        results = self._all(len(prompts),
                            lambda i: self._one(prompts[i], params[i], priorities[i], loras[i]),
                            use_tqdm,
                            lambda r: sum(len(o.token_ids) for o in r.outputs))
        return results

    def chat(self, messages, sampling_params=None, use_tqdm=True, *, add_generation_prompt=True,
             continue_final_message=False, tools=None, chat_template_kwargs=None,
             lora_request=None):
        """Answer a conversation, or a list of them. Texts are as the model writes them."""
        talks = messages if messages and isinstance(messages[0], list) else [messages]
        params = _per_prompt(sampling_params, len(talks), "sampling_params")
        loras = _per_prompt(lora_request, len(talks), "lora_request")
        self._load(loras)

        def one(i):
            ids = self.tokenizer.apply_chat_template(
                talks[i], tools, add_generation_prompt, continue_final_message,
                **(chat_template_kwargs or {}))
            result = self._one(ids, params[i], None, loras[i])
            result.prompt = self.tokenizer.decode(ids)
            return result
        return self._all(len(talks), one, use_tqdm,
                         lambda r: sum(len(o.token_ids) for o in r.outputs))

    def beam_search(self, prompts, params, use_tqdm=False):
        """The best beam_width sequences of each prompt."""
        prompts = [_prompt(p) for p in _listed(prompts)]

        def one(i):
            answer = self._complete(prompts[i], params.request())[1]
            found = []
            for c in sorted(answer["choices"], key=lambda c: c["index"]):
                tokens = c["prompt_token_ids"] + c["token_ids"]
                found.append(outputs.BeamSearchSequence(
                    tokens, sum(c["logprobs"]["token_logprobs"]), self.tokenizer.decode(tokens),
                    c["finish_reason"]))
            return outputs.BeamSearchOutput(found)
        return self._all(len(prompts), one, use_tqdm, lambda r: len(r.sequences))

    def sleep(self, level=1):
        """Release the device memory; needs LLM(..., enable_sleep_mode=True). Both of vLLM's levels
        move the weights to host memory."""
        self.server.ask("POST", "/sleep", admin=True)

    def wake_up(self, tags=None):
        self.server.ask("POST", "/wake_up", admin=True)

    def reset_prefix_cache(self):
        self.server.ask("POST", "/reset_prefix_cache", admin=True)
        return True

    def get_metrics(self):
        """Gauge, Counter and Histogram objects, under vLLM's names."""
        return outputs.metrics(self.server.ask("GET", "/metrics").decode())


def _listed(prompts):
    """A list of prompts of one, or of several. A list of ids is one."""
    if isinstance(prompts, (str, dict)):
        return [prompts]
    prompts = list(prompts)
    return [prompts] if prompts and isinstance(prompts[0], int) else prompts


def _prompt(prompt):
    """A prompt as the server takes it: a text, or a list of ids."""
    if isinstance(prompt, dict):
        ids = prompt.get("prompt_token_ids")
        prompt = prompt["prompt"] if ids is None else ids
    return prompt if isinstance(prompt, str) else list(prompt)


def _per_prompt(given, n, name):
    if not isinstance(given, (list, tuple)):
        return [given] * n
    if len(given) != n:
        raise ValueError("%d prompts, but %d of %s" % (n, len(given), name))
    return list(given)


__all__ = ["LLM", "SamplingParams"]
