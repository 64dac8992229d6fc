"""
Masked supervised fine-tuning (Algorithm 1, S3) by TRL's SFTTrainer on rows that are tokens already.

Departures from the paper's set-up (LLaMA-Factory 0.9.3, section 5 of the notes):
1. rows are trained as they were sampled, token in, token out; nothing is rendered again, so no thinking is lost;
2. the loss is the mean over all trained tokens of an optimizer step, not a mean of means over micro-batches;
3. rows over `max_tokens` are set aside and counted, never cut.

    python -m trainers.sft SPEC.json
    accelerate launch -m trainers.sft SPEC.json

SPEC.json: {"rows": JSON Lines of rows, "policy": folder, "out": folder, "work": folder, "seed": 0,
"settings": {keys of `sft` in a profile}, "validation": rows (optional)}. Metrics are printed as JSON lines.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from text2sql.config import SFTSettings
from text2sql.errors import Text2SqlError, TrainingError
from trainers.checkpoints import (
    CheckpointMixin,
    OnMetrics,
    ReportMetrics,
    claim_work,
    device_arguments,
    load_policy,
    save_policy,
    step_numbers,
    use_one_gpu,
)
from trainers.rows import IGNORED, TrainingRow, read_rows, training_order, usable_rows

log = logging.getLogger(__name__)

CPU_ROWS = 8
"""Rows per forward pass on a CPU, at most: 8 sorted rows are a third faster than 32 at once, and the sum is the same."""

LOGGED = {
    "loss": "loss",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "mean_token_accuracy": "token_accuracy",
    "entropy": "entropy",
}


class RightPadded:
    """
    Collates rows into input_ids, labels and position_ids, (B, T) each, padded on the right.

    There is no attention mask: a causal model's real tokens never see the padding behind them, and without a mask
    the fused causal kernel runs, on CPUs too. `position_ids` are what TRL counts tokens by.
    """

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, rows: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, torch.Tensor]:
        width = max(len(row["input_ids"]) for row in rows)
        ids = [[*row["input_ids"], *[self.pad_token_id] * (width - len(row["input_ids"]))] for row in rows]
        labels = [[*row["labels"], *[IGNORED] * (width - len(row["labels"]))] for row in rows]
        return {
            "input_ids": torch.tensor(ids),
            "labels": torch.tensor(labels),
            "position_ids": torch.arange(width).expand(len(rows), width),
        }


class MaskedSFTTrainer(CheckpointMixin, SFTTrainer):
    """SFTTrainer with marked checkpoints."""


def train_sft(
    rows: Sequence[TrainingRow],
    policy: Path,
    out: Path,
    settings: SFTSettings,
    *,
    seed: int,
    work: Path,
    on_metrics: OnMetrics,
    validation: Sequence[TrainingRow] = (),
) -> dict[str, Any]:
    """
    Train `policy` on `rows` and write the new policy to `out`.

    Checkpoints go to `work` every `save_steps` steps and after the last; called again after an interruption, training
    continues at the latest whole one with the same data order, optimizer and schedule. `on_metrics` gets, per step,
    loss (nats per trained token), learning_rate, grad_norm, token_accuracy, entropy, tokens_per_second, and
    validation_loss at each save when `validation` rows are given. Returns counts (`tokens`: all that went through the
    model, padding left out; `trained_tokens`: those with a loss), the final loss and the seconds of all attempts. Raises
    TrainingError when no row can be trained, DivergenceError when the loss is not finite, PolicyError when the policy
    cannot be loaded.
    """
    model, tokenizer = load_policy(policy)
    limit = min(settings.max_tokens, model.config.max_position_embeddings)
    usable = usable_rows(rows, max_tokens=limit, vocabulary=model.config.vocab_size)
    if not usable.rows:
        raise TrainingError(
            f"No row to train on: {len(usable.too_long)} of {len(rows)} rows are longer than {limit} tokens, "
            f"{len(usable.untrained)} have no trained token. Raise sft.max_tokens, or look at the selection."
        )
    if usable.too_long or usable.untrained:
        log.warning(
            "%d rows over %d tokens and %d rows without a trained token are set aside; %d are trained",
            len(usable.too_long), limit, len(usable.untrained), len(usable.rows),
        )  # fmt: skip
    identity = [settings.model_dump(), seed, str(policy), [row.row_id for row in usable.rows]]
    claim_work(work, identity)

    arguments = _arguments(settings, seed, work)
    rows_per_step = settings.batch_size * settings.gradient_accumulation * arguments.world_size
    lengths = [len(row.input_ids) for row in usable.rows]
    order = training_order(lengths, epochs=settings.epochs, rows_per_step=rows_per_step, seed=seed)
    steps = -(-len(order) // rows_per_step)
    arguments.warmup_steps = round(settings.warmup_share * steps)

    speed = MeasureSpeed([lengths[index] for index in order], rows_per_step)
    collator = RightPadded(tokenizer.pad_token_id)
    trainer = MaskedSFTTrainer(
        model=model,
        args=arguments,
        train_dataset=_dataset(usable.rows).select(order),
        processing_class=tokenizer,
        data_collator=collator,
        callbacks=[speed],
    )
    trainer.be_quiet()
    if validation:
        checked = usable_rows(validation, max_tokens=limit, vocabulary=model.config.vocab_size).rows
        trainer.add_callback(
            ValidationLoss(trainer, checked, collator, arguments.per_device_train_batch_size, on_metrics)
        )
    trainer.add_callback(ReportMetrics(on_metrics, speed.named))
    resumed_from_step = trainer.train_on(work)
    summary = {
        "steps": trainer.state.global_step,
        "resumed_from_step": resumed_from_step,
        "rows": len(usable.rows),
        "rows_too_long": len(usable.too_long),
        "rows_untrained": len(usable.untrained),
        "tokens": sum(lengths[index] for index in order),
        "trained_tokens": sum(usable.rows[index].trained_tokens for index in order),
        "final_loss": next(entry["loss"] for entry in reversed(trainer.state.log_history) if "loss" in entry),
    }
    save_policy(trainer, tokenizer, out, name="sft", parent=policy, details=summary)
    return {**summary, "seconds": trainer.seconds}


def _arguments(settings: SFTSettings, seed: int, work: Path) -> SFTConfig:
    machine = device_arguments()
    micro = settings.batch_size
    if machine["use_cpu"]:
        micro = max(size for size in range(1, CPU_ROWS + 1) if settings.batch_size % size == 0)
    arguments = SFTConfig(
        output_dir=str(work),
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=settings.gradient_accumulation * settings.batch_size // micro,
        num_train_epochs=1,  # `training_order` lays all epochs out in one list
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.scheduler,
        weight_decay=0.0,
        max_length=None,
        train_sampling_strategy="sequential",
        dataset_kwargs={"skip_prepare_dataset": True},
        gradient_checkpointing=settings.gradient_checkpointing,
        save_strategy="steps",
        save_steps=settings.save_steps,
        save_total_limit=2,
        logging_steps=1,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        disable_tqdm=True,
        report_to="none",
        ddp_find_unused_parameters=False,
        seed=seed,
        **machine,
    )
    use_one_gpu(arguments)
    return arguments


def _dataset(rows: Sequence[TrainingRow]) -> Dataset:
    return Dataset.from_dict({"input_ids": [row.input_ids for row in rows], "labels": [row.labels for row in rows]})


class MeasureSpeed(TrainerCallback):
    """Tokens (padding left out) that went through the model per second of the last step."""

    def __init__(self, lengths: Sequence[int], rows_per_step: int) -> None:
        self.tokens = [sum(lengths[at : at + rows_per_step]) for at in range(0, len(lengths), rows_per_step)]
        self.started = time.monotonic()
        self.value = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.started = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.value = self.tokens[state.global_step - 1] / max(time.monotonic() - self.started, 1e-9)

    def named(self, logs: Mapping[str, float]) -> dict[str, float]:
        return {**step_numbers(logs, LOGGED), "tokens_per_second": self.value}


class ValidationLoss(TrainerCallback):
    """Mean loss over the trained tokens of held-out rows, at every save and at the end; each process computes it."""

    def __init__(
        self,
        trainer: MaskedSFTTrainer,
        rows: Sequence[TrainingRow],
        collator: RightPadded,
        batch_size: int,
        on_metrics: OnMetrics,
    ) -> None:
        self.trainer = trainer
        self.rows = sorted(rows, key=lambda row: len(row.input_ids))
        self.collator = collator
        self.batch_size = batch_size
        self.on_metrics = on_metrics

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self.rows or (state.global_step % args.save_steps and state.global_step != state.max_steps):
            return
        loss = self.compute(args.device)
        if state.is_world_process_zero:
            self.on_metrics({"validation_loss": loss}, state.global_step)

    def compute(self, device: torch.device) -> float:
        model = self.trainer.model_wrapped
        model.eval()
        total = tokens = 0.0
        with torch.no_grad(), self.trainer.compute_loss_context_manager():
            for start in range(0, len(self.rows), self.batch_size):
                rows = self.rows[start : start + self.batch_size]
                batch = self.collator([{"input_ids": row.input_ids, "labels": row.labels} for row in rows])
                output = model(**{name: tensor.to(device) for name, tensor in batch.items()}, fused_lm_head=True)
                total -= float(output.log_probs.sum())  # zero on ignored positions
                tokens += float(output.label_mask.sum())
        model.train()
        return total / tokens


def main(arguments: Sequence[str]) -> int:
    """Run one SPEC.json; 0 when the policy was written, 2 with a message when it was not."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m trainers.sft SPEC.json\n")
        return 2

    def report(values: Mapping[str, float], step: int) -> None:
        sys.stdout.write(json.dumps({"step": step, **values}) + "\n")
        sys.stdout.flush()

    logging.basicConfig(level=logging.WARNING)
    try:
        spec = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
        summary = train_sft(
            read_rows(Path(spec["rows"])),
            Path(spec["policy"]),
            Path(spec["out"]),
            SFTSettings.model_validate(spec.get("settings", {})),
            seed=int(spec.get("seed", 0)),
            work=Path(spec["work"]),
            on_metrics=report,
            validation=read_rows(Path(spec["validation"])) if spec.get("validation") else (),
        )
    except (Text2SqlError, OSError, ValueError, KeyError) as error:
        sys.stderr.write(f"trainers.sft: {type(error).__name__}: {error}\n")
        return 2
    if os.environ.get("RANK", "0") == "0":
        sys.stdout.write(json.dumps({"summary": summary}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
