# SPDX-License-Identifier: Apache-2.0
"""Offline generation with quire, under vLLM's names: `from quire import LLM, SamplingParams`."""

from .llm import LLM
from .outputs import (BeamSearchOutput, BeamSearchSequence, CompletionOutput, Counter, Gauge,
                      Histogram, Logprob, RequestMetrics, RequestOutput)
from .params import (BeamSearchParams, GuidedDecodingParams, LoRARequest, SamplingParams,
                     StructuredOutputsParams)

__version__ = "0.1.0"
__all__ = ["LLM", "BeamSearchOutput", "BeamSearchParams", "BeamSearchSequence", "CompletionOutput",
           "Counter", "Gauge", "GuidedDecodingParams", "Histogram", "LoRARequest", "Logprob", "RequestMetrics",
           "RequestOutput", "SamplingParams", "StructuredOutputsParams"]
