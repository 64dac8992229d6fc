"""
Generation in this process with transformers: for CPUs, for tiny models, and for the live model of a trainer.

All requests in flight are generated together by one `DecodeLoop`, which runs in a thread of its own, so that databases
can answer while the model computes. Greedy results do not depend on what else is in flight, and sampled ones depend only
on the request's seed, up to the rounding that a batch of another size brings. Larger models belong on `VLLMEngine`.
"""

import asyncio
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from text2sql.engines.base import Generation, SamplingParams
from text2sql.engines.decode_loop import DecodeLoop, Row
from text2sql.engines.kv_cache import ATTENTION
from text2sql.errors import EngineError, PolicyError
from text2sql.policy import resolve_policy

KEEP_BYTES = 1 << 30


class TransformersEngine:
    """
    An engine over a policy (path or name) or over a loaded causal LM. A loaded model is borrowed: it is put into
    evaluation mode while the engine is open and handed back as it was; call `reset` whenever its weights have changed.
    `seed` is for requests that bring none. `keep_bytes` bounds the keys and values kept between requests.
    """

    def __init__(
        self, policy: Path | str | Any, batch_size: int = 64, seed: int = 0, keep_bytes: int = KEEP_BYTES
    ) -> None:
        self._policy = policy
        self._batch_size = batch_size
        self._keep_bytes = keep_bytes
        self._seeds = itertools.count(seed)

    async def __aenter__(self) -> Self:
        self._model = load_model(self._policy) if isinstance(self._policy, Path | str) else self._policy
        _refuse_partial_attention(self._model.config)
        self._decoder = DecodeLoop(self._model, self._batch_size, self._keep_bytes)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="decode")
        self._arrived: list[Row] = []
        self._futures: dict[Row, asyncio.Future[Generation]] = {}
        self._task: asyncio.Task[None] | None = None
        self._borrowed = _generating(self._model)
        self._borrowed.__enter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
        self._worker.shutdown(wait=True)  # lets a step that is running end
        self._borrowed.__exit__(None, None, None)
        del self._decoder, self._model

    def reset(self) -> None:
        """Forget keys and values computed with earlier weights. Raises EngineError while requests are in flight."""
        if self._futures:
            raise EngineError(f"reset while {len(self._futures)} requests are in flight; wait for them first")
        self._decoder.reset()

    async def generate(self, prompt_ids: list[int], params: SamplingParams) -> Generation:
        """`max_tokens` is cut to the positions the model has left. Raises EngineError when it has none."""
        positions = getattr(self._model.config, "max_position_embeddings", None)
        if positions is not None:
            params = replace(params, max_tokens=min(params.max_tokens, positions - len(prompt_ids)))
        if not prompt_ids or params.max_tokens < 1:
            raise EngineError(
                f"Cannot continue a prompt of {len(prompt_ids)} tokens: the model has {positions} positions. Lower "
                "agent.max_prompt_tokens and agent.max_episode_tokens, or raise model.max_positions of a scratch policy."
            )
        row = Row.of(prompt_ids, params, next(self._seeds) if params.seed is None else params.seed)
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._futures[row] = future
        self._arrived.append(row)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            return await future
        finally:
            row.abandoned = self._futures.pop(row, None) is not None  # still there: the caller was cancelled

    async def _run(self) -> None:
        """Step by step, for as long as somebody waits."""
        loop = asyncio.get_running_loop()
        try:
            while self._futures:
                arrived, self._arrived = self._arrived, []
                for row in await loop.run_in_executor(self._worker, self._decoder.step, arrived):
                    if row in self._futures:
                        self._futures.pop(row).set_result(row.generation())
        except Exception as error:
            waiting, self._futures = self._futures, {}
            for future in waiting.values():
                future.set_exception(EngineError(f"Generation failed ({type(error).__name__}: {error})."))
            self._decoder.reset()


def load_model(policy: Path | str) -> Any:
    """The policy's causal LM: on the GPU in its own precision if there is one, else on the CPU in float32."""
    place = resolve_policy(policy)
    gpu = torch.cuda.is_available()
    try:
        model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(place, dtype="auto" if gpu else torch.float32)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise PolicyError(f"Policy {policy} cannot be loaded: {error}") from error
    return model.to("cuda" if gpu else "cpu")


@contextmanager
def _generating(model: Any) -> Iterator[None]:
    """The model with our attention and without dropout; afterwards as it was."""
    modes = {module: module.training for module in model.modules()}
    attention = model.config._attn_implementation
    model.eval()
    model.set_attn_implementation(ATTENTION)
    try:
        yield
    finally:
        model.set_attn_implementation(attention)
        for module, training in modes.items():
            module.training = training


def _refuse_partial_attention(config: Any) -> None:
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        raise EngineError(
            f"The transformers engine runs models whose layers all attend to the whole sequence; {config.model_type} has "
            f"{', '.join(sorted(kinds))} layers. Set engine.kind: vllm."
        )
