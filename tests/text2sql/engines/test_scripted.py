"""An engine that answers from a script."""

import asyncio
from collections.abc import Sequence

import pytest

from text2sql.engines import Generation, SamplingParams
from text2sql.engines.scripted import ScriptedEngine
from text2sql.errors import EngineError

END = 0


class Letters:
    """A codec with one id per character."""

    stop_token_ids = (END,)

    def encode_model(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


def ask(engine: ScriptedEngine, *prompts: str, max_tokens: int = 50) -> list[Generation]:
    async def run() -> list[Generation]:
        async with engine:
            params = SamplingParams(max_tokens)
            return [await engine.generate(Letters().encode_model(prompt), params) for prompt in prompts]

    return asyncio.run(run())


def test_replies_come_in_order() -> None:
    """Request i gets reply i, ended by the stop token, with a logprob of 0 per token."""
    first, second = ask(ScriptedEngine(["ab", "c"], Letters()), "x", "y")

    assert first == Generation((97, 98, END), (0.0, 0.0, 0.0), "stop")
    assert second == Generation((99, END), (0.0, 0.0), "stop")


def test_reply_may_depend_on_the_prompt() -> None:
    """A function of the prompt's ids answers however requests are ordered."""
    engine = ScriptedEngine(lambda ids: "long" if len(ids) > 1 else "short", Letters())

    assert [Letters().decode(g.token_ids[:-1]) for g in ask(engine, "x", "xy")] == ["short", "long"]


def test_long_reply_is_cut() -> None:
    """The budget of a request holds for scripted replies too, and the finish reason says so."""
    [generation] = ask(ScriptedEngine(["abcdef"], Letters()), "x", max_tokens=3)

    assert generation == Generation((97, 98, 99), (0.0, 0.0, 0.0), "length")


def test_script_that_is_too_short_is_an_error() -> None:
    """One request more than there are replies is reported with both numbers."""
    with pytest.raises(EngineError, match="1 replies; request 2"):
        ask(ScriptedEngine(["a"], Letters()), "x", "y")


def test_requests_are_kept() -> None:
    """A test can look at what was asked."""
    engine = ScriptedEngine(["a"], Letters())
    ask(engine, "hi", max_tokens=9)

    assert engine.requests == [([104, 105], SamplingParams(9))]
