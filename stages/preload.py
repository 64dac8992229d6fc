"""
Imported by the process that the stages of a lineage are forked off: what they need is loaded once, before the first.

Nothing here may start a thread or touch a GPU, which a fork would break; imports alone do neither.
"""

import logging
from importlib import import_module

# TRL loads vLLM where it is installed, which then warns of what only its own server would need.
logging.getLogger("vllm").setLevel(logging.ERROR)

for module in (
    "stages.__main__",
    "stages.base_policy",
    "stages.sampling",
    "stages.selection",
    "trainers.embedding",
    "trainers.sft",
    "trainers.grpo",
    "text2sql.engines.transformers_engine",
    "sklearn.cluster",
):
    import_module(module)
