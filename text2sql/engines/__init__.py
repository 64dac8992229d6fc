"""
Engines turn token ids into token ids.

`base` has the protocol; `scripted` answers from a list (tests); `transformers_engine` batches in process (CPUs, tiny
models); `vllm_engine` talks to a vLLM server that it starts and stops, or to a URL. Torch, transformers and vLLM are
imported only by the engine that needs them.
"""

from pathlib import Path

from text2sql.config import EngineSettings
from text2sql.engines.base import Engine, Generation, SamplingParams
from text2sql.errors import EngineError

__all__ = ["Engine", "Generation", "SamplingParams", "open_engine"]


def open_engine(policy: Path | str, settings: EngineSettings, work: Path, seed: int = 0) -> Engine:
    """
    The engine that `settings` asks for, to be used as an async context manager; a server's log goes to `work`. Raises
    EngineError when a library that it needs is not installed.
    """
    try:
        if settings.kind == "vllm":
            from text2sql.engines.vllm_engine import VLLMEngine

            return VLLMEngine(policy, settings.vllm, work / "vllm.log", seed)
        from text2sql.engines.transformers_engine import TransformersEngine

        return TransformersEngine(policy, settings.batch_size, seed)
    except ModuleNotFoundError as error:
        raise EngineError(
            f"engine.kind {settings.kind} needs the package '{error.name}', which is not installed: run "
            f"pip install -c constraints.txt '.{'[vllm]' if settings.kind == 'vllm' else ''}'."
        ) from error
