"""A policy small enough that training it takes a second."""

from pathlib import Path

import pytest
import torch

from text2sql.config import ModelSettings
from trainers import grpo, sft
from trainers.scratch import make_scratch_policy

TINY = ModelSettings(init="scratch", vocabulary=300, layers=1, width=32, heads=2, key_value_heads=1, max_positions=128)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Threads gain nothing on tensors this small, and wait for each other when the machine is busy."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy") / "tiny"
    make_scratch_policy(["SELECT name FROM shop WHERE city = 'Graz'"] * 3, TINY, 0, folder)
    return folder


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as the libraries ask, two GPUs are visible and may be used; the tensors stay on the CPU."""
    machine = {"bf16": False, "use_cpu": False, "dataloader_pin_memory": False}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for trainer in (sft, grpo):
        monkeypatch.setattr(trainer, "device_arguments", lambda: machine)
