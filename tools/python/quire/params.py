# SPDX-License-Identifier: Apache-2.0
"""What a caller asks for, in vLLM's words, and the request fields that it becomes."""

from dataclasses import dataclass, fields
from typing import Any, Dict, List, Optional, Union


@dataclass
class StructuredOutputsParams:
    """The form of the output. One of the first six is set."""
    json: Optional[Union[str, dict]] = None
    regex: Optional[str] = None
    choice: Optional[List[str]] = None
    grammar: Optional[str] = None
    json_object: Optional[bool] = None
    structural_tag: Optional[str] = None
    whitespace_pattern: Optional[str] = None
    disable_any_whitespace: Optional[bool] = None

    def request(self):
        """Only what is set: the server refuses combinations."""
        wish = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in wish.items() if value not in (None, False)}


@dataclass
class LoRARequest:
    """A LoRA adapter: its folder, as PEFT saves it. The number is vLLM's, and not used."""
    lora_name: str
    lora_int_id: int
    lora_path: str


@dataclass
class PoolingParams:
    """vLLM's fields of models that pool. None: as the model's folder says."""
    truncate_prompt_tokens: Optional[int] = None
    dimensions: Optional[int] = None
    normalize: Optional[bool] = None
    softmax: Optional[bool] = None
    activation: Optional[bool] = None
    use_activation: Optional[bool] = None
    task: Optional[str] = None
    extra_kwargs: Optional[Dict[str, Any]] = None  # further fields of the request

    def clone(self):
        return PoolingParams(**{f.name: getattr(self, f.name) for f in fields(self)})

    def request(self):
        body = {f.name: getattr(self, f.name) for f in fields(self)
                if getattr(self, f.name) is not None}
        body.update(body.pop("extra_kwargs", {}))
        return body


class GuidedDecodingParams(StructuredOutputsParams):
    """vLLM's older name."""


@dataclass
class SamplingParams:
    """vLLM's fields and defaults. All but the first are fields of the server's completions."""
    n: int = 1
    best_of: Optional[int] = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: Optional[int] = None
    stop: Optional[Union[str, List[str]]] = None
    stop_token_ids: Optional[List[int]] = None
    bad_words: Optional[List[str]] = None
    ignore_eos: bool = False
    max_tokens: Optional[int] = 16
    min_tokens: int = 0
    logprobs: Optional[int] = None
    prompt_logprobs: Optional[int] = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    truncate_prompt_tokens: Optional[int] = None
    structured_outputs: Optional[StructuredOutputsParams] = None
    guided_decoding: Optional[StructuredOutputsParams] = None
    logit_bias: Optional[Dict[int, float]] = None
    allowed_token_ids: Optional[List[int]] = None
    thinking_token_budget: Optional[int] = None
    extra_args: Optional[Dict[str, Any]] = None  # further fields of the request

    def clone(self):
        return SamplingParams(**{f.name: getattr(self, f.name) for f in fields(self)})

    def request(self):
        """The request's fields. max_tokens of None is left to the caller."""
        body = {f.name: getattr(self, f.name) for f in fields(self)
                if getattr(self, f.name) is not None}
        form = body.pop("guided_decoding", None)
        form = body.pop("structured_outputs", form)
        if form is not None:
            body["structured_outputs"] = form if isinstance(form, dict) else form.request()
        if "logit_bias" in body:
            body["logit_bias"] = {str(k): v for k, v in body["logit_bias"].items()}
        body.update(body.pop("extra_args", {}))
        return body


@dataclass
class BeamSearchParams:
    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0

    def request(self):
        return {"use_beam_search": True, "n": self.beam_width, "max_tokens": self.max_tokens,
                "ignore_eos": self.ignore_eos, "temperature": self.temperature,
                "length_penalty": self.length_penalty, "logprobs": 0}
