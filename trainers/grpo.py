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

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from trl.trainer.grpo_config import GRPOConfig

from text2sql.config import EngineSettings, GRPOSettings
from text2sql.errors import DivergenceError, TrainingError
from trainers.checkpoints import OnMetrics, claim_work, device_arguments, load_policy, save_policy, use_one_gpu
from trainers.curriculum import plan_steps
from trainers.groups import RolloutSample
from trainers.rollout_trainer import OWN, RolloutFunction, RolloutGRPOTrainer

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

    Checkpoints go to `work` every `save_steps` steps, after the last, and when anything fails that leaves the weights as
    the last step made them; called again, training continues at the latest whole one: step, items, bucket, seeds and
    optimizer. `on_metrics` gets, per step, the numbers of `step_metrics` (reward, its parts, tokens, shares), bucket,
    seconds, sampling_seconds, loss, grad_norm, learning_rate, entropy (nats, over the micro-batches that were trained),
    kl when it is on, tokens (of all episodes of the step, prompts and environment included), and logprob_difference, the
    mean distance between the engine's and the trainer's log-probabilities of the sampled tokens. Returns final numbers
    and counts over the steps and seconds of all attempts.

    Raises TrainingError when the machine lost more than `max_infrastructure_share` of a step's samples and after
    `stop_after_clipped_steps`, DivergenceError when the loss is not finite; errors of the rollout and of `on_metrics` are
    raised as they are.
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
    try:
        resumed_from_step = trainer.train_on(work)
    except DivergenceError:
        raise
    except Exception:
        trainer.save_interrupted()
        raise
    steps = trainer.logged_steps
    summary = {
        "steps": trainer.state.global_step,
        "resumed_from_step": resumed_from_step,
        "steps_without_signal": sum(1 for step in steps if step.get(f"{OWN}without_signal")),
        "tokens": round(sum(step["tokens"] for step in steps)),
        **{
            f"final_{name}": steps[-1][f"{OWN}{name}"]
            for name in ("reward", "flat_groups_share")
            if f"{OWN}{name}" in steps[-1]
        },
    }
    save_policy(trainer, tokenizer, out, name="grpo", parent=policy, details=summary)
    return {**summary, "seconds": trainer.seconds}


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
    arguments = GRPOConfig(
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
    use_one_gpu(arguments)
    return arguments


def _processes() -> int:
    from accelerate import PartialState

    return int(PartialState(cpu=not torch.cuda.is_available()).num_processes)
