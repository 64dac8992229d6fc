"""
Engines turn token ids into token ids.

`base` has the protocol; `scripted` answers from a list (tests); `transformers_engine` batches in process (CPUs, tiny
models); `vllm_engine` talks to a vLLM server that it starts and stops, or to a URL. Torch, transformers and vLLM are
imported only by the engine that needs them.
"""

from text2sql.engines.base import Engine, Generation, SamplingParams

__all__ = ["Engine", "Generation", "SamplingParams"]
