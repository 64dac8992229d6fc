"""
Curriculum GRPO by TRL's GRPOTrainer, the live model sampling through the caller's rollout function.

Departures from the paper's set-up (verl 0.4.1 with SGLang, section 6 of the notes):
1. all buckets are phases of one run, with one optimizer; the authors launch each bucket by hand;
2. the steps' items are planned before training starts, so a resumed run goes on with the same items;
3. samples without a reward leave their group (rules in `trainers.groups`); a step without any signal (every group flat,
   no KL term) changes nothing, not even by the optimizer's momentum.

As in the paper: advantages normalised within the group (`grpo.scale_rewards: batch` takes the step's spread), ratio
clipping, token-mean loss over the model's own tokens of the step, one update per batch, constant learning rate
(`grpo.scheduler` can let it fall). The KL term, when it is on, acts on every rewarded sample, those of flat groups
included.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from trl.trainer.grpo_config import GRPOConfig

from text2sql.config import EngineSettings, GRPOSettings
from text2sql.errors import Text2SqlError, TrainingError
from trainers.checkpoints import OnMetrics, claim_work, device_arguments, last_checkpoint, load_policy, save_policy
from trainers.curriculum import plan_steps
from trainers.groups import RolloutSample
from trainers.rollout_trainer import RolloutFunction, RolloutGRPOTrainer

__all__ = ["RolloutFunction", "RolloutSample", "train_grpo"]


def train_grpo(
    buckets: Sequence[Sequence[str]],
    rollout: RolloutFunction,
    policy: Path,
    out: Path,
    settings: GRPOSettings,
    *,
    seed: int,
    work: Path,
    on_metrics: OnMetrics,
    engine: EngineSettings | None = None,
) -> dict[str, Any]:
    """
    Train `policy` over the items of `buckets` and write the new policy to `out`.

    Checkpoints go to `work` every `save_steps` steps, and when the rollout fails; called again, training continues at
    the latest whole one: step, items, bucket, seeds and optimizer. `on_metrics` gets, per step, the numbers of
    `step_metrics` (reward, its parts, tokens, shares), bucket, seconds, sampling_seconds, loss, grad_norm, learning_rate,
    entropy (nats, over the micro-batches that were trained), kl when it is on, tokens (of all episodes of the step,
    prompts and environment included), and logprob_difference, the mean distance between the engine's and the trainer's
    log-probabilities of the sampled tokens. Returns counts and final numbers; `tokens` is their sum over all steps.

    Raises TrainingError when the machine lost more than `max_infrastructure_share` of a step's samples, after
    `stop_after_clipped_steps`, and when the loss is not finite; errors of the rollout are raised as they are.
    """
    engine = engine or EngineSettings()
    if engine.kind != "transformers":
        raise TrainingError(
            f"GRPO samples from the live model in the trainer's process, engine.kind {engine.kind} cannot see its "
            "weights. Give train_grpo engine.kind: transformers; sampling and evaluation may still use the other one."
        )
    plan = plan_steps(buckets, settings.steps_per_bucket, settings.prompts_per_step, seed)
    model, tokenizer = load_policy(policy)
    claim_work(work, [settings.model_dump(), seed, str(policy), [asdict(step) for step in plan]])
    trainer = RolloutGRPOTrainer(
        model, tokenizer, _arguments(settings, seed, work), plan, rollout, settings, engine.batch_size, on_metrics
    )
    resumed_from = last_checkpoint(work)
    started = time.monotonic()
    try:
        trainer.train(resume_from_checkpoint=str(resumed_from) if resumed_from else None)
    except Text2SqlError:
        trainer.save_interrupted()
        raise
    summary = {
        "steps": trainer.state.global_step,
        "resumed_from_step": int(resumed_from.name.rpartition("-")[2]) if resumed_from else 0,
        "steps_without_signal": trainer.steps_without_signal,
        "tokens": round(sum(entry.get("tokens", 0.0) for entry in trainer.state.log_history)),
        **{
            f"final_{name}": trainer.numbers[name]
            for name in ("reward", "flat_groups_share")
            if name in trainer.numbers
        },
    }
    save_policy(trainer, tokenizer, out, name="grpo", parent=policy, details=summary)
    return {**summary, "seconds": time.monotonic() - started}


def _arguments(settings: GRPOSettings, seed: int, work: Path) -> GRPOConfig:
    machine = device_arguments()
    samples = settings.prompts_per_step * settings.group_size
    processes = _processes()
    if samples % processes:
        raise TrainingError(
            f"A step of {settings.prompts_per_step} prompts x {settings.group_size} samples cannot be shared by "
            f"{processes} processes. Choose grpo.prompts_per_step so that their product is a multiple of {processes}."
        )
    own = samples // processes
    micro = max(size for size in range(1, min(settings.micro_batch, own) + 1) if own % size == 0)
    return GRPOConfig(
        output_dir=str(work),
        num_generations=settings.group_size,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=own // micro,
        num_train_epochs=1,  # the plan lays all steps out in one list
        shuffle_dataset=False,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.scheduler,
        weight_decay=0.0,
        temperature=settings.temperature,
        beta=settings.kl_coefficient,
        epsilon=settings.clip_low,
        epsilon_high=settings.clip_high,
        loss_type="dapo",  # TRL's name for the mean over all tokens of the step
        num_iterations=1,
        gradient_checkpointing=not machine["use_cpu"],
        save_strategy="steps",
        save_steps=settings.save_steps,
        save_total_limit=2,
        logging_steps=1,
        logging_nan_inf_filter=False,
        disable_tqdm=True,
        report_to="none",
        ddp_find_unused_parameters=False,
        seed=seed,
        **machine,
    )


def _processes() -> int:
    from accelerate import PartialState

    return int(PartialState(cpu=not torch.cuda.is_available()).num_processes)
