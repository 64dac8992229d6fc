"""The protocol of an engine: prompt token ids in; generated token ids with their logprobs out."""

from dataclasses import dataclass
from typing import Literal, Protocol, Self


@dataclass(frozen=True)
class SamplingParams:
    """
    How to draw tokens. `temperature` 0 is greedy. `max_tokens` bounds one message. Generation ends after a token of
    `stop_token_ids`, which is kept as the last generated id. `seed` makes a request repeatable where the engine can.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None


@dataclass(frozen=True)
class Generation:
    """
    What one request gave. `logprobs[i]` is the log-probability of `token_ids[i]` under the distribution it was drawn
    from (temperature applied; under greedy decoding, temperature 1). `finish_reason` is `stop` when a stop token
    ended it, `length` when the token budget did.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]


class Engine(Protocol):
    """Many `generate` calls may be in flight at once; the engine batches them as it can."""

    async def generate(self, prompt_ids: list[int], params: SamplingParams) -> Generation:
        """Continue `prompt_ids`. Raises EngineError when the engine is lost; never for what the model says."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exception: object) -> None: ...
