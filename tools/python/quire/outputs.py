# SPDX-License-Identifier: Apache-2.0
"""What comes back, in vLLM's shapes. Token ids, texts and probabilities are the server's fields."""

import re
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Optional, Union


@dataclass
class Logprob:
    """rank: 1 for the most likely token; None where the answer does not tell it."""
    logprob: float
    rank: Optional[int] = None
    text: Optional[str] = None
    decode: Optional[Callable[[], str]] = field(default=None, repr=False, compare=False)

    @property
    def decoded_token(self):
        """The token's text. The first look at a token asks the server."""
        if self.text is None and self.decode is not None:
            self.text = self.decode()
        return self.text


@dataclass
class CompletionOutput:
    index: int
    text: str
    token_ids: List[int]
    cumulative_logprob: Optional[float]
    logprobs: Optional[List[Dict[int, Logprob]]]
    finish_reason: Optional[str] = None
    stop_reason: Optional[Union[int, str]] = None

    def finished(self):
        return self.finish_reason is not None


@dataclass
class RequestMetrics:
    """Seconds since 1970, by this process's clock. An answer that is not streamed has no time of
    its first token."""
    arrival_time: float
    finished_time: float
    last_token_time: float
    first_scheduled_time: Optional[float] = None
    first_token_time: Optional[float] = None
    time_in_queue: Optional[float] = None


@dataclass
class RequestOutput:
    request_id: str
    prompt: Optional[str]
    prompt_token_ids: List[int]
    prompt_logprobs: Optional[List[Optional[Dict[int, Logprob]]]]
    outputs: List[CompletionOutput]
    finished: bool
    metrics: Optional[RequestMetrics] = None
    num_cached_tokens: Optional[int] = None


@dataclass
class BeamSearchSequence:
    tokens: List[int]  # those of the prompt, too
    cum_logprob: float
    text: str
    finish_reason: Optional[str] = None


@dataclass
class BeamSearchOutput:
    sequences: List[BeamSearchSequence]  # the best one first


@dataclass
class Gauge:
    name: str
    labels: Dict[str, str]
    value: float


@dataclass
class Counter:
    name: str
    labels: Dict[str, str]
    value: int


@dataclass
class Histogram:
    name: str
    labels: Dict[str, str]
    count: int = 0
    sum: float = 0.0
    buckets: Dict[str, int] = field(default_factory=dict)


def token_of(text):
    """The id in "token_id:N"."""
    return int(text.split(":", 1)[1])


def one_step(top, token, n_wanted, decode):
    """The alternatives of a token. The sampled one has a rank if it is among the best n_wanted."""
    ids = {token_of(name): value for name, value in top.items()}
    step = {}
    for other, value in ids.items():
        rank = 1 + sum(more > value for more in ids.values())
        known = other != token or n_wanted < 0 or len(ids) <= n_wanted
        step[other] = Logprob(value, rank if known else None, decode=lambda i=other: decode(i))
    return step


def completion(choice, index, n_wanted, decode):
    """A choice of /v1/completions that was asked for with return_tokens_as_token_ids."""
    told = choice.get("logprobs")
    steps = total = None
    if told:
        steps = [one_step(top, token, n_wanted, decode)
                 for top, token in zip(told["top_logprobs"], choice["token_ids"])]
        total = sum(told["token_logprobs"])
    return CompletionOutput(index, choice["text"], choice["token_ids"], total, steps,
                            choice["finish_reason"], choice["stop_reason"])


def prompt_logprobs(choice, decode):
    listed = choice.get("prompt_logprobs")
    if listed is None:
        return None
    return [step and {int(i): Logprob(of["logprob"], of["rank"],
                                       decode=lambda i=i: decode(int(i)))
                      for i, of in step.items()} for step in listed]


def metrics(text):
    """The lines of /metrics as objects, in their order."""
    kinds, found, series = {}, [], {}
    for line in text.splitlines():
        kind = re.match(r"# TYPE (\S+) (\S+)", line)
        if kind:
            kinds[kind.group(1)] = kind.group(2)
        sample = re.match(r"([^#\s{]+)(?:\{(.*)\})? (\S+)", line)
        if not sample:
            continue
        name, value = sample.group(1), float(sample.group(3))
        labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', sample.group(2) or ""))
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        if kinds.get(base) == "histogram":
            limit = labels.pop("le", None)
            key = (base, tuple(sorted(labels.items())))
            if key not in series:
                series[key] = Histogram(base, labels)
                found.append(series[key])
            if limit is not None:
                series[key].buckets[limit] = int(value)
            elif name.endswith("_sum"):
                series[key].sum = value
            else:
                series[key].count = int(value)
        elif kinds.get(name) == "counter":
            found.append(Counter(name, labels, int(value)))
        else:
            found.append(Gauge(name, labels, value))
    return found


class PoolingOutput:
    """What the model pooled: a list of floats, or of lists where each token has a row. vLLM has a
    tensor here; torch.tensor(output.data) makes it."""

    def __init__(self, data):
        self.data = data

    def __eq__(self, other):
        return type(other) is type(self) and other.data == self.data

    def __repr__(self):
        return "%s(%s)" % (type(self).__name__, ", ".join(
            "%s=%r" % (k, v) for k, v in vars(self).items()))


class EmbeddingOutput(PoolingOutput):
    def __init__(self, embedding):
        self.embedding = embedding

    @property
    def data(self):
        return self.embedding

    @property
    def hidden_size(self):
        return len(self.embedding)


class ClassificationOutput(PoolingOutput):
    def __init__(self, probs):
        self.probs = probs

    @property
    def data(self):
        return self.probs

    @property
    def num_classes(self):
        return len(self.probs)


class ScoringOutput(PoolingOutput):
    def __init__(self, score):
        self.score = score

    @property
    def data(self):
        return self.score


@dataclass
class PoolingRequestOutput:
    request_id: str
    outputs: PoolingOutput
    prompt_token_ids: List[int]
    num_cached_tokens: int
    finished: bool


class EmbeddingRequestOutput(PoolingRequestOutput):
    """outputs is an EmbeddingOutput."""


class ClassificationRequestOutput(PoolingRequestOutput):
    """outputs is a ClassificationOutput."""


class ScoringRequestOutput(PoolingRequestOutput):
    """outputs is a ScoringOutput."""
