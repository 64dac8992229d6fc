"""A policy small enough to compute in every test, with logits that differ enough to compare engines by their choices."""

import random
from pathlib import Path

import pytest

from text2sql.config import ModelSettings
from trainers.scratch import make_scratch_policy


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Threads gain nothing on tensors this small, and wait for each other when the machine is busy."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("engines") / "policy"
    settings = ModelSettings(  # heads of 32: the narrowest that vLLM computes on a CPU
        init="scratch", vocabulary=320, layers=2, width=128, heads=4, key_value_heads=2, max_positions=512
    )
    make_scratch_policy(["SELECT name FROM singer WHERE age > 20"] * 5, settings, 0, folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(std=0.1)  # fresh weights leave all tokens nearly equal, or repeat the last one
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Prompts of 1 to 120 tokens; some equal, some with a long beginning in common."""
    rng = random.Random(1)
    schema = [rng.randrange(280) for _ in range(96)]
    separate = [[rng.randrange(280) for _ in range(rng.randint(1, 120))] for _ in range(10)]
    shared = [schema + [rng.randrange(280) for _ in range(rng.randint(1, 20))] for _ in range(6)]
    return [*separate, *shared, separate[0], shared[0], shared[0], separate[1][:1]]
