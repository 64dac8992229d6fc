"""The live model of a trainer as an engine that any event loop can use."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from text2sql.engines.base import Engine, Generation, SamplingParams
from text2sql.engines.transformers_engine import TransformersEngine


class LiveEngine:
    """
    Passes requests on to an engine that lives in the event loop of another thread. A rollout is a plain function that
    may start event loops of its own, one after another; an engine is tied to the loop in which it was opened.
    """

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop

    async def generate(self, prompt_ids: list[int], params: SamplingParams) -> Generation:
        request = asyncio.run_coroutine_threadsafe(self._engine.generate(prompt_ids, params), self._loop)
        return await asyncio.wrap_future(request)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Whoever opened the engine closes it."""


@contextmanager
def live_engine(model: Any, batch_size: int, seed: int) -> Iterator[LiveEngine]:
    """
    An engine over the loaded `model`, for one step: it starts without keys and values of earlier weights and hands the
    model back as it was. `seed` is for requests that bring none.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="live-engine", daemon=True)
    thread.start()
    engine = TransformersEngine(model, batch_size, seed)
    try:
        asyncio.run_coroutine_threadsafe(engine.__aenter__(), loop).result()
        try:
            yield LiveEngine(engine, loop)
        finally:
            asyncio.run_coroutine_threadsafe(engine.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
