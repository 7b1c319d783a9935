# SPDX-License-Identifier: Apache-2.0
"""Offline generation with quire, under vLLM's names: `from quire import LLM, SamplingParams`."""

from .llm import LLM
from .outputs import (BeamSearchOutput, BeamSearchSequence, ClassificationOutput,
                      ClassificationRequestOutput, CompletionOutput, Counter, EmbeddingOutput,
                      EmbeddingRequestOutput, Gauge, Histogram, Logprob, PoolingOutput,
                      PoolingRequestOutput, RequestMetrics, RequestOutput, ScoringOutput,
                      ScoringRequestOutput)
from .params import (BeamSearchParams, GuidedDecodingParams, LoRARequest, PoolingParams,
                     SamplingParams, StructuredOutputsParams)

__version__ = "0.1.0"
__all__ = ["LLM", "BeamSearchOutput", "BeamSearchParams", "BeamSearchSequence",
           "ClassificationOutput", "ClassificationRequestOutput", "CompletionOutput", "Counter",
           "EmbeddingOutput", "EmbeddingRequestOutput", "Gauge", "GuidedDecodingParams",
           "Histogram", "LoRARequest", "Logprob", "PoolingOutput", "PoolingParams",
           "PoolingRequestOutput", "RequestMetrics", "RequestOutput", "SamplingParams",
           "ScoringOutput", "ScoringRequestOutput", "StructuredOutputsParams"]
