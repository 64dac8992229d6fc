"""An engine that answers from a script: for tests of everything around a model."""

from collections.abc import Callable, Sequence
from typing import Protocol, Self

from text2sql.engines.base import Generation, SamplingParams
from text2sql.errors import EngineError


class Codec(Protocol):
    """What the engine needs of `text2sql.chat.ChatCodec`."""

    stop_token_ids: tuple[int, ...]

    def encode_model(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class ScriptedEngine:
    """
    Answers request i with `replies[i]`, or with `replies(prompt_ids)` when that is a function. A reply is ended by the
    codec's first stop token and cut to `max_tokens`; every logprob is 0.0. `requests` keeps the prompts that came.
    """

    def __init__(self, replies: Sequence[str] | Callable[[list[int]], str], codec: Codec) -> None:
        self._replies = replies
        self._codec = codec
        self.requests: list[tuple[list[int], SamplingParams]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        return None

    async def generate(self, prompt_ids: list[int], params: SamplingParams) -> Generation:
        self.requests.append((list(prompt_ids), params))
        ids = self._codec.encode_model(self._reply(prompt_ids))
        stop = self._codec.stop_token_ids
        if stop and (not ids or ids[-1] not in stop):
            ids = [*ids, stop[0]]
        ids = ids[: params.max_tokens]
        stopped = bool(ids) and ids[-1] in stop
        return Generation(tuple(ids), (0.0,) * len(ids), "stop" if stopped else "length")

    def _reply(self, prompt_ids: list[int]) -> str:
        if callable(self._replies):
            return self._replies(prompt_ids)
        if len(self.requests) > len(self._replies):
            raise EngineError(f"The script has {len(self._replies)} replies; request {len(self.requests)} came.")
        return self._replies[len(self.requests) - 1]
