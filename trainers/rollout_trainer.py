"""
GRPOTrainer that samples by plan through the caller's rollout.

How TRL is used: a prompt of its dataset is an item id; `rollout_func` gets each id once per sample and returns token
ids, logprobs and `env_mask` (0 = no loss). Advantages are ours (`group_advantages`), so that flat groups are exactly 0,
and so are the micro-batches (`trainers.micro_batches`).
"""

import asyncio
import hashlib
import itertools
import json
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import TrainerCallback
from trl.models.utils import unwrap_model_for_generation
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from text2sql.config import GRPOSettings
from text2sql.engines.base import Engine
from text2sql.engines.transformers_engine import TransformersEngine
from text2sql.errors import TrainingError
from trainers.checkpoints import CheckpointMixin, OnMetrics, ReportMetrics, step_numbers
from trainers.curriculum import Step
from trainers.groups import RolloutSample, SampleNumbers, group_advantages, step_metrics
from trainers.micro_batches import by_length, has_signal

log = logging.getLogger(__name__)

RolloutFunction = Callable[[Engine, Sequence[str], int], Sequence[RolloutSample]]
"""(engine, item ids, seed) -> one rewarded sample per id, in the same order; an id stands there once per sample."""

LOGGED = {
    "loss": "loss",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "entropy": "entropy",
    "kl": "kl",
    "clip_ratio/region_mean": "clip_share",
    "logprob_difference": "logprob_difference",
    "tokens": "tokens",
}

OWN = "own/"
"""Before our numbers of a step in TRL's log, and so in the trainer's state, which a resumed run goes on from."""


def _given_reward(prompts: list[str], given_reward: list[float | None], **_: Any) -> list[float | None]:
    """TRL asks for a reward function; what it makes of the values is neither trained on nor logged."""
    return given_reward


class RolloutGRPOTrainer(CheckpointMixin, GRPOTrainer):
    """GRPOTrainer that samples by plan, with advantages of ours and micro-batches without needless padding."""

    _buffered_inputs: Any
    args: Any

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        arguments: GRPOConfig,
        plan: Sequence[Step],
        rollout: RolloutFunction,
        settings: GRPOSettings,
        batch_size: int,
        on_metrics: OnMetrics,
    ) -> None:
        self.plan = plan
        self.sample = rollout
        self.settings = settings
        self.batch_size = batch_size
        self.numbers: dict[str, float] = {}
        self.stepping = False
        self.own_advantages: list[float] = []
        self.sorted_already = False
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="You are using 'rollout_func'")
            super().__init__(
                model=model,
                reward_funcs=_given_reward,
                args=arguments,
                train_dataset=Dataset.from_dict({"prompt": [item for step in plan for item in step.item_ids]}),
                processing_class=tokenizer,
                rollout_func=RolloutGRPOTrainer.roll_out,
            )
        self.be_quiet()
        self.add_callback(StepWatch(self))
        self.add_callback(ReportMetrics(on_metrics, self.named))

    @staticmethod
    def roll_out(item_ids: list[str], trainer: Any) -> dict[str, list[Any]]:
        """TRL's `rollout_func`: sample this process's share of the step, take its numbers, and refuse a lost step."""
        step = trainer.state.global_step
        started = time.monotonic()
        seed = _seed(trainer.args.seed, step, trainer.accelerator.process_index)
        with (
            unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model,
            live_engine(model, trainer.batch_size, seed) as engine,
        ):
            samples = list(trainer.sample(engine, item_ids, seed))
        if [sample.item_id for sample in samples] != list(item_ids):
            raise TrainingError(
                f"step {step + 1}: the rollout returned samples of {len(samples)} items for {len(item_ids)} item ids, or "
                "in another order. It must return one sample per id, in the order of the ids."
            )
        for index, sample in enumerate(samples):
            sample.check(index)
        trainer.take_numbers(samples, time.monotonic() - started)
        return dict(trainer.for_trl(samples))

    def take_numbers(self, samples: Sequence[RolloutSample], sampling_seconds: float) -> None:
        """Numbers and advantages of the whole step, over all processes."""
        everything: list[SampleNumbers] = gather_object([SampleNumbers.of(sample) for sample in samples])
        size = self.settings.group_size
        advantages = group_advantages([numbers.reward for numbers in everything], size, self.settings.scale_rewards)
        start = self.accelerator.process_index * len(samples)
        self.own_advantages = advantages[start : start + len(samples)]
        self.numbers = {
            **step_metrics(everything, size),
            "bucket": float(self.plan[self.state.global_step].bucket + 1),
            "sampling_seconds": sampling_seconds,
        }
        tokens = sum(numbers.prompt_tokens + numbers.completion_tokens for numbers in everything)
        self._metrics["train"]["tokens"].append(float(tokens))
        for name, value in self.numbers.items():
            self._metrics["train"][f"{OWN}{name}"].append(value)
        self.refuse_lost_step(len(everything))
        self.warn()

    @property
    def logged_steps(self) -> list[dict[str, float]]:
        """What was logged of every finished step, those of earlier attempts included."""
        return [entry for entry in self.state.log_history if "tokens" in entry]

    def refuse_lost_step(self, samples: int) -> None:
        lost = self.numbers["infrastructure_share"]
        if lost > self.settings.max_infrastructure_share:
            raise TrainingError(
                f"step {self.state.global_step + 1}: the machine lost {round(lost * samples)} of {samples} samples, more "
                f"than grpo.max_infrastructure_share {self.settings.max_infrastructure_share} allows. Look for a locked "
                "or missing database or a full disk, then run again: training continues at the last checkpoint."
            )

    def warn(self) -> None:
        """Say when a step can teach little, and stop when every episode is cut for too long."""
        step, flat, cut = (
            self.state.global_step + 1, self.numbers["flat_groups_share"], self.numbers["truncated_share"],
        )  # fmt: skip
        limits = "agent.max_message_tokens and agent.max_episode_tokens"
        shares = [*(entry.get(f"{OWN}truncated_share") for entry in self.logged_steps), cut]
        clipped_steps = sum(1 for _ in itertools.takewhile(lambda share: share == 1.0, reversed(shares)))
        if cut == 1.0 and flat == 1.0:
            log.warning(
                "step %d: every episode hit a token limit and every group has equal rewards; nothing can be learned. "
                "Raise %s.", step, limits,
            )  # fmt: skip
        elif flat > self.settings.warn_flat_groups_share:
            log.warning(
                "step %d: %.0f %% of the groups have equal rewards and teach nothing. Choose items of medium difficulty "
                "(curriculum), a higher grpo.temperature or a larger grpo.group_size.", step, 100 * flat,
            )  # fmt: skip
        if self.settings.stop_after_clipped_steps and clipped_steps >= self.settings.stop_after_clipped_steps:
            raise TrainingError(
                f"In {clipped_steps} steps in a row every episode hit a token limit "
                f"(grpo.stop_after_clipped_steps). Raise {limits}."
            )

    def for_trl(self, samples: Sequence[RolloutSample]) -> dict[str, list[Any]]:
        """
        The samples as TRL takes them. A sample without reward, and a truncated one with `mask_truncated`, has an all-0
        mask and so counts neither in the loss nor in its denominator. An episode without a token (its prompt was too
        long) stands in with one masked token, because TRL looks at the last one.
        """
        ids, masks, logprobs = [], [], []
        for sample in samples:
            trained = sample.rewarded and not (sample.truncated and self.settings.mask_truncated)
            ids.append(list(sample.completion_ids) or [self._tokenizer.pad_token_id])
            masks.append((list(sample.completion_mask) or [0]) if trained else [0] * len(ids[-1]))
            logprobs.append(list(sample.logprobs) or [0.0])
        return {
            "prompt_ids": [list(sample.prompt_ids) for sample in samples],
            "completion_ids": ids,
            "logprobs": logprobs,
            "env_mask": masks,
            "given_reward": [sample.reward if sample.rewarded else 0.0 for sample in samples],
        }

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        output["advantages"] = torch.tensor(self.own_advantages, device=output["advantages"].device)
        self.sorted_already = False
        return dict(output)

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        inputs = super()._prepare_inputs(generation_batch)
        if not self.sorted_already:  # TRL has just sampled a step and cut it into shuffled micro-batches
            self._buffered_inputs = by_length(self._buffered_inputs, keep_silent_last=self.beta == 0.0)
            self.sorted_already = True
            inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]
            self.step_has_signal = self.beta > 0.0 or self._anywhere(
                any(has_signal(batch) for batch in self._buffered_inputs)
            )
        return dict(inputs)

    def _anywhere(self, here: bool) -> bool:
        flag = torch.tensor(float(here), device=self.accelerator.device)
        return bool(self.accelerator.reduce(flag, reduction="sum") > 0)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """
        TRL's loss. A micro-batch whose loss is zero whatever the model says is not computed; with several processes it
        is, since all must take the same path.
        """
        if self.beta == 0.0 and self.accelerator.num_processes == 1 and not has_signal(inputs):
            zero: torch.Tensor = next(model.parameters()).sum() * 0.0
            return zero
        loss: torch.Tensor = super().compute_loss(model, inputs)
        mask = inputs["completion_mask"] * inputs["tool_mask"]
        difference = (self.last_logps - inputs["sampling_per_token_logps"]).abs() * mask
        self._metrics["train"]["logprob_difference"].append(float(difference.sum() / mask.sum().clamp(min=1)))
        return loss

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **keywords: Any) -> Any:
        result = super()._get_per_token_logps_and_entropies(*arguments, **keywords)
        self.last_logps = result[0].detach()
        return result

    def named(self, logs: Mapping[str, float]) -> dict[str, float]:
        return {**self.numbers, **step_numbers(logs, LOGGED)}

    def save_interrupted(self) -> None:
        """
        Keep the steps since the last save when something failed, but not in the middle of an optimizer step, whose weights
        are half old and half new. With several processes nothing is saved: a save needs all of them, and one that failed
        alone would wait for the others. What goes wrong here is logged, so that the failure itself is raised.
        """
        folder = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}"
        if not self.state.global_step or folder.exists() or self.stepping or self.accelerator.num_processes > 1:
            return
        try:
            self._save_checkpoint(self.model, None)
        except Exception as error:
            log.warning("step %d could not be saved: %s: %s", self.state.global_step, type(error).__name__, error)


class StepWatch(TrainerCallback):
    """Times steps, notes when weights change, and keeps a step without signal from moving them by momentum."""

    def __init__(self, trainer: RolloutGRPOTrainer) -> None:
        self.trainer = trainer
        self.started = time.monotonic()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.started = time.monotonic()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.stepping = True
        silent = not self.trainer.step_has_signal
        self.trainer._metrics["train"][f"{OWN}without_signal"].append(float(silent))
        if silent:
            self.trainer.model_wrapped.zero_grad(set_to_none=True)  # AdamW leaves parameters without a gradient alone

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.stepping = False
        self.trainer.numbers["seconds"] = time.monotonic() - self.started


@contextmanager
def live_engine(model: Any, batch_size: int, seed: int) -> Iterator[Engine]:
    """
    An engine over the loaded `model`, for one step: it starts without keys and values of earlier weights and hands the
    model back as it was. A rollout may use it in event loops of its own, one after another. `seed` is for requests that
    bring none.
    """
    engine = TransformersEngine(model, batch_size, seed)
    asyncio.run(engine.__aenter__())
    try:
        yield engine
    finally:
        asyncio.run(engine.__aexit__())


def _seed(seed: int, step: int, process: int) -> int:
    """A seed of its own for every step and process, the same after a resume."""
    digest = hashlib.sha256(json.dumps([seed, step, process]).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
