"""
What both trainers share: checkpoints that survive a `kill -9`, how a policy is loaded and saved, and quiet libraries.

A checkpoint counts only once its marker file is there, which is written after everything else and holds the seconds of
training that led to it; a folder without the marker is left over from an interrupted save and is removed. Two checkpoints
are kept, so one whole checkpoint is there at any moment, and one is written after the last step: a training that is
finished is never done again.
"""

import ctypes
import hashlib
import json
import logging
import math
import os
import platform
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from text2sql.errors import DivergenceError, PolicyError, TrainingError
from text2sql.policy import RECORD, check_policy, resolve_policy, write_policy_record
from text2sql.textfiles import write_whole

log = logging.getLogger(__name__)

OnMetrics = Callable[[Mapping[str, float], int], None]  # values, step

MARKER = "whole"
RUN_RECORD = "run.json"


class CheckpointMixin(Trainer):
    """To be put before a TRL trainer: marked checkpoints, no model cards, no telemetry, no printing."""

    started = 0.0

    def train_on(self, work: Path) -> int:
        """Train to the last step, from the latest whole checkpoint in `work` if there is one. Returns its step, else 0."""
        found = last_checkpoint(work)
        earlier = float((found / MARKER).read_text(encoding="utf-8") or 0) if found else 0.0
        self.started = time.monotonic() - earlier
        self.train(resume_from_checkpoint=str(found) if found else None)
        return int(found.name.rpartition("-")[2]) if found else 0

    @property
    def seconds(self) -> float:
        """Since training began; of earlier attempts, what led to the checkpoint that was gone on with."""
        return time.monotonic() - self.started

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            folder = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}"
            for file in filter(Path.is_file, folder.rglob("*")):
                with file.open("rb") as handle:
                    os.fsync(handle.fileno())
            (folder / MARKER).write_text(f"{self.seconds:.2f}", encoding="utf-8")

    def create_model_card(self, *arguments: Any, **keywords: Any) -> None:
        """A policy's record is written by `save_policy`; checkpoints need none."""

    def _send_telemetry(self) -> None:
        """Training works without a network."""

    def be_quiet(self) -> None:
        self.remove_callback(PrinterCallback)


class ReportMetrics(TrainerCallback):
    """
    Hands what the trainer logs to `on_metrics`, on the main process, under the project's own names. Raises
    DivergenceError when loss or gradient is not finite: after such a step, and before its weights are saved.
    """

    def __init__(self, on_metrics: OnMetrics, rename: Callable[[Mapping[str, float]], dict[str, float]]) -> None:
        self.on_metrics = on_metrics
        self.rename = rename

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        for name in ("loss", "grad_norm"):
            if not math.isfinite((logs or {}).get(name) or 0.0):
                raise DivergenceError(
                    f"{name} is {logs[name]} at step {state.global_step}: training has diverged. Lower the learning "
                    f"rate (now {args.learning_rate}), or look at the rows of this step."
                )
        if state.is_world_process_zero and logs and "train_runtime" not in logs:
            values = self.rename(logs)
            if values:
                self.on_metrics(values, state.global_step)


def last_checkpoint(work: Path) -> Path | None:
    """The latest whole checkpoint; removes what interrupted saves left."""
    whole: list[Path] = []
    for folder in work.glob("checkpoint-*"):
        if (folder / MARKER).is_file():
            whole.append(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return max(whole, key=lambda folder: int(folder.name.rpartition("-")[2]), default=None)


def claim_work(work: Path, identity: Any) -> None:
    """
    Note in `work` which run it belongs to. Raises TrainingError when it holds checkpoints of another run (other rows,
    policy, settings or seed), because continuing those would mix two runs into one policy.
    """
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:16]
    work.mkdir(parents=True, exist_ok=True)
    record = work / RUN_RECORD
    if record.is_file() and any(work.glob("checkpoint-*")):
        found = json.loads(record.read_text(encoding="utf-8"))["run"]
        if found != digest:
            raise TrainingError(
                f"{work} holds checkpoints of another run ({found}; this one is {digest}): rows, policy, settings or "
                "seed differ. Delete the folder to start afresh, or give another `work` folder."
            )
    write_whole(record, json.dumps({"run": digest}))


def load_policy(policy: Path | str) -> tuple[Any, Any]:
    """
    Model (float32 weights, scaled dot product attention) and tokenizer of a policy. Weights are trained in float32:
    at learning rates around 1e-6 the updates would vanish in bfloat16. Raises PolicyError, also when the chat template
    is not the one that the policy's record names.
    """
    keep_freed_memory()
    folder = resolve_policy(policy)
    if (Path(folder) / RECORD).is_file():
        check_policy(Path(folder))
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    except (OSError, ValueError) as error:
        raise PolicyError(f"{policy} cannot be loaded as a policy: {error}") from error
    return model, tokenizer


def save_policy(
    trainer: Trainer, tokenizer: Any, out: Path, *, name: str, parent: Path | str, details: Mapping[str, Any]
) -> None:
    """
    Write model, tokenizer, chat template and record to `out`, which appears whole or not at all. Weights get the
    number type that the parent's have on disk. To be called by every process: sharded weights are gathered.
    """
    accelerator = trainer.accelerator
    state = accelerator.get_state_dict(trainer.model_wrapped)
    if accelerator.is_main_process:
        dtype = AutoConfig.from_pretrained(resolve_policy(parent)).dtype or torch.float32
        weights = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in state.items()}
        model = accelerator.unwrap_model(trainer.model_wrapped)
        model.config.dtype = dtype
        partial = out.with_name(out.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        model.save_pretrained(partial, state_dict=weights)
        tokenizer.save_pretrained(partial)
        write_policy_record(partial, name, parent=str(parent), details=details)
        if out.is_dir():
            shutil.rmtree(out)
        partial.rename(out)
    accelerator.wait_for_everyone()


def step_numbers(logs: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, float]:
    """Those of the trainer's logged values that `names` lists, under their new names; None is left out."""
    return {new: float(logs[old]) for old, new in names.items() if logs.get(old) is not None}


def keep_freed_memory() -> None:
    """
    On a CPU under glibc: keep freed memory in the process instead of giving it back and asking for it again. Training
    frees and allocates the same large tensors in every layer, and the page faults cost a tenth of the time.
    """
    if torch.cuda.is_available() or platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of malloc.h
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(mmap_max, 0)


def device_arguments() -> dict[str, Any]:
    """TrainingArguments that depend on the machine: bfloat16 autocast where the GPU has it, else plain float32."""
    gpu = torch.cuda.is_available()
    return {
        "bf16": gpu and torch.cuda.is_bf16_supported(),
        "use_cpu": not gpu,
        "dataloader_pin_memory": gpu,
    }


def use_one_gpu(arguments: TrainingArguments) -> None:
    """One process trains on one GPU, the first, however many it sees: TRL refuses the DataParallel of transformers."""
    if arguments.n_gpu > 1:
        log.warning(
            "%d GPUs are visible, but this process trains on the first one only. To train on all of them, start the "
            "training by `accelerate launch` (SFT: `accelerate launch -m trainers.sft SPEC.json`).",
            arguments.n_gpu,
        )
        arguments._n_gpu = 1
