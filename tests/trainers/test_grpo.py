"""GRPO: that it learns, what it leaves out, and that a resumed run is the same run."""

import asyncio
import logging
import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from text2sql.config import EngineSettings, GRPOSettings
from text2sql.engines.base import SamplingParams
from text2sql.errors import DivergenceError, EngineError, TrainingError
from text2sql.policy import check_policy
from trainers.groups import group_advantages
from trainers.grpo import RolloutSample, train_grpo
from trainers.rollout_trainer import RolloutGRPOTrainer

pytestmark = pytest.mark.slow

TARGET = range(100, 140)  # the tokens that the toy reward is for
SETTINGS = GRPOSettings(
    steps_per_bucket=(4,), prompts_per_step=2, group_size=4, learning_rate=3e-3, micro_batch=4, save_steps=2,
)  # fmt: skip


class Toy:
    """
    Episodes of a prompt, `length` sampled tokens, two tokens of the environment and one more sampled token. Reward: the
    share of sampled tokens in TARGET. `change` may replace a sample; `calls` notes the items of every step.
    """

    def __init__(self, length=4, change=lambda sample, index, step: sample):
        self.length = length
        self.change = change
        self.calls: list[list[str]] = []

    def __call__(self, engine, item_ids, seed):
        self.calls.append(list(item_ids))
        return asyncio.run(self.play(engine, item_ids, seed))

    async def play(self, engine, item_ids, seed):
        samples = await asyncio.gather(
            *(self.episode(engine, item_id, seed + index) for index, item_id in enumerate(item_ids))
        )
        return [self.change(sample, index, len(self.calls)) for index, sample in enumerate(samples)]

    async def episode(self, engine, item_id, seed):
        prompt = [30, 31, 40 + int(item_id[1:])]
        first = await engine.generate(prompt, SamplingParams(self.length, seed=seed))
        environment = [50, 51]
        second = await engine.generate([*prompt, *first.token_ids, *environment], SamplingParams(1, seed=seed))
        sampled = [*first.token_ids, *second.token_ids]
        reward = sum(token in TARGET for token in sampled) / len(sampled)
        return RolloutSample(
            item_id=item_id,
            prompt_ids=prompt,
            completion_ids=[*first.token_ids, *environment, *second.token_ids],
            completion_mask=[1] * self.length + [0, 0, 1],
            logprobs=[*first.logprobs, 0.0, 0.0, *second.logprobs],
            reward=reward,
            parts={"execution_match": reward, "e_verify": None},
            tool_calls=1,
        )


def train(policy, folder, toy, settings=SETTINGS, buckets=(("i1", "i2", "i3"),), seed=0):
    """Train in `folder`; returns the summary and the metrics by step."""
    metrics: dict[int, dict[str, float]] = {}

    def note(values, step):
        metrics.setdefault(step, {}).update(values)

    summary = train_grpo(
        buckets, toy, policy, folder / "out", settings, seed=seed, work=folder / "work", on_metrics=note
    )
    return summary, metrics


def weights(policy) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def replaced(sample, **values):
    return RolloutSample(**{**sample.__dict__, **values})


def test_reward_rises(tiny_policy, tmp_path):
    """The policy learns to sample what the reward is for, from near chance to most of its tokens."""
    changes = {"steps_per_bucket": (15,), "group_size": 16, "micro_batch": 32, "learning_rate": 2e-2, "save_steps": 99}

    _, metrics = train(tiny_policy, tmp_path, Toy(), SETTINGS.model_copy(update=changes))

    first = sum(metrics[step]["reward"] for step in (1, 2, 3)) / 3
    last = sum(metrics[step]["reward"] for step in (13, 14, 15)) / 3
    assert first < 0.3
    assert last > first + 0.3


def test_metrics_of_a_step(tiny_policy, tmp_path):
    """Each step reports reward and its parts, tokens, shares, bucket and times, all finite; unused parts are left out."""
    _, metrics = train(tiny_policy, tmp_path, Toy())

    values = metrics[1]
    assert values["reward"] == pytest.approx(values["reward/execution_match"])
    assert "reward/e_verify" not in values
    assert (7, 5, 1, 1) == tuple(values[name] for name in ("completion_tokens", "model_tokens", "tool_calls", "bucket"))
    assert {"flat_groups_share", "left_out_share", "truncated_share", "entropy", "seconds", "sampling_seconds"} <= set(
        values
    )
    assert all(math.isfinite(value) for step in metrics.values() for value in step.values())


def test_learning_rate_stays_unless_the_profile_lets_it_fall(tiny_policy, tmp_path):
    """Constant as published; `scheduler: linear` lets it fall to zero, which small batches need to settle."""
    for scheduler, expected in (("constant", [1, 1, 1, 1]), ("linear", [1, 0.75, 0.5, 0.25])):
        (tmp_path / scheduler).mkdir()
        changed = SETTINGS.model_copy(update={"scheduler": scheduler})

        _, metrics = train(tiny_policy, tmp_path / scheduler, Toy(), changed)

        rates = [metrics[step]["learning_rate"] / SETTINGS.learning_rate for step in (1, 2, 3, 4)]
        assert rates == pytest.approx(expected)


def test_trainer_and_engine_agree_on_the_sampled_tokens(tiny_policy, tmp_path):
    """
    At every step the trainer gives the sampled tokens the log-probabilities that the engine drew them with: the engine
    always holds the current weights, and ids are the same on both sides.
    """
    _, metrics = train(tiny_policy, tmp_path, Toy())

    assert all(metrics[step]["logprob_difference"] < 1e-4 for step in metrics)


def test_gradient_is_the_policy_gradient_over_the_models_tokens(tiny_policy, tmp_path):
    """
    Case ma-tool-tokens: the first step's gradient is that of -(1/N) sum A log p over the model's own N tokens of the
    step, computed by hand, token by token; it does not depend on how many episodes share a forward pass.
    """
    seen = []

    def note(sample, index, step):
        seen.append(sample)
        return sample

    changes = {"steps_per_bucket": (1,), "micro_batch": 3}
    _, metrics = train(tiny_policy, tmp_path / "a", Toy(change=note), SETTINGS.model_copy(update=changes))
    _, other = train(tiny_policy, tmp_path / "b", Toy(), SETTINGS.model_copy(update={"steps_per_bucket": (1,)}))

    model = AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float32)
    advantages = group_advantages([sample.reward for sample in seen], SETTINGS.group_size)
    tokens = sum(sum(sample.completion_mask) for sample in seen)
    for sample, advantage in zip(seen, advantages, strict=True):
        ids = [*sample.prompt_ids, *sample.completion_ids]
        log_p = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        for place, (token, mask) in enumerate(zip(sample.completion_ids, sample.completion_mask, strict=True)):
            if mask:
                (-advantage * log_p[len(sample.prompt_ids) + place - 1, token] / tokens).backward(retain_graph=True)
    by_hand = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm().item()
    assert by_hand == pytest.approx(metrics[1]["grad_norm"], rel=1e-3)
    assert by_hand == pytest.approx(other[1]["grad_norm"], rel=1e-3)


def test_environment_tokens_have_no_loss(tiny_policy, tmp_path):
    """
    Case ma-tool-tokens: what the environment said last, after which the model says nothing, moves no weight: episodes
    that differ in it alone give the same policy.
    """

    def ending_in(token):
        def change(sample, index, step):
            return replaced(
                sample,
                completion_ids=[*sample.completion_ids, token],
                completion_mask=[*sample.completion_mask, 0],
                logprobs=[*sample.logprobs, 0.0],
            )

        return change

    train(tiny_policy, tmp_path / "one", Toy(change=ending_in(60)))
    train(tiny_policy, tmp_path / "other", Toy(change=ending_in(99)))

    assert torch.equal(weights(tmp_path / "one" / "out"), weights(tmp_path / "other" / "out"))
    assert not torch.equal(weights(tiny_policy), weights(tmp_path / "one" / "out"))


def test_resumed_run_is_the_same_run(tiny_policy, tmp_path):
    """
    Case tr-resume-with-base-model-in-engine: 4 steps, a stop, and 4 more sample the same items with the same seeds, get
    the same rewards and end with the same weights as 8 steps in one go. The tokens of all 8 are counted: 10 in each of
    the 8 episodes of a step, prompt and environment included.
    """
    settings = SETTINGS.model_copy(update={"steps_per_bucket": (3, 5)})
    buckets = (("i1", "i2", "i3"), ("i4", "i5", "i6"))
    whole = Toy()
    _, one_go = train(tiny_policy, tmp_path / "whole", whole, settings, buckets)

    def lost_at_five(sample, index, step):
        if step == 5:
            raise EngineError("the engine is gone")
        return sample

    first = Toy(change=lost_at_five)
    with pytest.raises(EngineError):
        train(tiny_policy, tmp_path / "stopped", first, settings, buckets)
    second = Toy()
    summary, resumed = train(tiny_policy, tmp_path / "stopped", second, settings, buckets)

    assert 4 == summary["resumed_from_step"]
    assert 8 * 8 * 10 == summary["tokens"]
    assert whole.calls[4:] == second.calls
    assert {5, 6, 7, 8} == set(resumed)
    for step, values in resumed.items():
        assert one_go[step]["reward"] == pytest.approx(values["reward"], abs=1e-6)
        assert one_go[step]["bucket"] == values["bucket"]
    torch.testing.assert_close(weights(tmp_path / "whole" / "out"), weights(tmp_path / "stopped" / "out"))


def test_finished_run_takes_no_step_again(tiny_policy, tmp_path):
    """Called again after its last step, training writes the same policy, with the numbers and the seconds of the whole."""
    first, _ = train(tiny_policy, tmp_path, Toy())
    trained = weights(tmp_path / "out")
    (tmp_path / "work" / "checkpoint-4" / "whole").write_text("1000")

    toy = Toy()
    again, _ = train(tiny_policy, tmp_path, toy)

    assert [] == toy.calls
    assert torch.equal(trained, weights(tmp_path / "out"))
    assert {**first, "resumed_from_step": 4, "seconds": again["seconds"]} == again
    assert 1000 < again["seconds"] < 1000 + 60


def test_counts_of_a_resumed_run_are_those_of_all_its_steps(tiny_policy, tmp_path):
    """Steps without signal before an interruption are counted, and steps in a row that were cut go on being in a row."""

    def flat_and_cut(sample, index, step):
        if step == 4:
            raise EngineError("the engine is gone")
        return replaced(sample, reward=0.7, truncated=True) if step > 1 else sample

    with pytest.raises(EngineError):
        train(tiny_policy, tmp_path / "counted", Toy(change=flat_and_cut))
    summary, _ = train(tiny_policy, tmp_path / "counted", Toy())

    assert (3, 2) == (summary["resumed_from_step"], summary["steps_without_signal"])

    stopping = SETTINGS.model_copy(update={"stop_after_clipped_steps": 3})
    with pytest.raises(EngineError):
        train(tiny_policy, tmp_path / "stopped", Toy(change=flat_and_cut), stopping)
    with pytest.raises(TrainingError, match="In 3 steps in a row"):
        train(tiny_policy, tmp_path / "stopped", Toy(change=lambda one, *_: replaced(one, truncated=True)), stopping)


def test_steps_are_kept_when_their_metrics_cannot_be_sent(tiny_policy, tmp_path):
    """Whatever fails between two steps, training goes on after the last one, to the same weights."""
    train(tiny_policy, tmp_path / "whole", Toy())

    def unreachable(values, step):
        if step == 3:
            raise ConnectionError("MLflow is gone")

    folder = tmp_path / "stopped"
    with pytest.raises(ConnectionError):
        train_grpo(
            (("i1", "i2", "i3"),), Toy(), tiny_policy, folder / "out", SETTINGS, seed=0, work=folder / "work",
            on_metrics=unreachable,
        )  # fmt: skip
    summary, metrics = train(tiny_policy, folder, Toy())

    assert 3 == summary["resumed_from_step"]
    assert {4} == set(metrics)
    torch.testing.assert_close(weights(tmp_path / "whole" / "out"), weights(folder / "out"))


def test_weights_in_the_middle_of_a_step_are_not_saved(tiny_policy, tmp_path, monkeypatch):
    """What fails while the optimizer changes the weights leaves them between two steps: the last checkpoint stays."""
    step, steps = torch.optim.AdamW.step, []

    def failing(optimizer, *arguments, **keywords):
        steps.append(step(optimizer, *arguments, **keywords))
        if len(steps) == 4:
            raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", failing)
        with pytest.raises(RuntimeError, match="out of memory"):
            train(tiny_policy, tmp_path, Toy())
    summary, _ = train(tiny_policy, tmp_path, Toy())

    assert 2 == summary["resumed_from_step"]


def test_failure_is_raised_although_its_steps_cannot_be_saved(tiny_policy, tmp_path, monkeypatch, caplog):
    """On a full disk, say, it is still the failure itself that the user is told, and the steps are noted as lost."""

    def lost_at_two(sample, index, step):
        if step == 2:
            raise EngineError("the engine is gone")
        return sample

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(RolloutGRPOTrainer, "_save_checkpoint", full)
    with pytest.raises(EngineError, match="the engine is gone"):
        train(tiny_policy, tmp_path, Toy(change=lost_at_two))

    assert "step 1 could not be saved: OSError: No space left on device" in caplog.text


def test_diverged_weights_are_not_saved(tiny_policy, tmp_path, monkeypatch):
    """A loss that is no number stops the training; the next attempt goes on at the checkpoint before."""
    compute_loss = RolloutGRPOTrainer.compute_loss

    def lost_at_three(trainer, *arguments, **keywords):
        return compute_loss(trainer, *arguments, **keywords) * (math.nan if trainer.state.global_step == 2 else 1.0)

    with monkeypatch.context() as patch:
        patch.setattr(RolloutGRPOTrainer, "compute_loss", lost_at_three)
        with pytest.raises(DivergenceError, match=r"loss is nan at step 3: training has diverged"):
            train(tiny_policy, tmp_path, Toy())
    summary, _ = train(tiny_policy, tmp_path, Toy())

    assert 2 == summary["resumed_from_step"]


@pytest.mark.usefixtures("two_gpus")
def test_one_process_trains_on_one_gpu(tiny_policy, tmp_path, caplog):
    """Where it sees several, it says that it uses the first."""
    summary, _ = train(tiny_policy, tmp_path, Toy(), SETTINGS.model_copy(update={"steps_per_bucket": (1,)}))

    assert 1 == summary["steps"]
    assert "2 GPUs are visible" in caplog.text


def test_buckets_come_in_order(tiny_policy, tmp_path):
    """All steps of the first bucket come before those of the second; an item stands there once per sample."""
    toy = Toy()
    settings = SETTINGS.model_copy(update={"steps_per_bucket": (2, 1)})

    train(tiny_policy, tmp_path, toy, settings, (("i1", "i2"), ("i8", "i9")))

    assert [{"i1", "i2"}, {"i1", "i2"}, {"i8", "i9"}] == [set(call) for call in toy.calls]
    assert all(4 == call.count(item) for call in toy.calls for item in set(call))


def test_sample_without_reward_leaves_its_group(tiny_policy, tmp_path):
    """Cases rw-none-and-nan, rw-infrastructure-is-not-zero: it is counted apart, and is neither 0 nor NaN in the mean."""

    def second_is_lost(sample, index, step):
        lost = {"reward": None, "status": "infrastructure"} if index == 1 else {"reward": 2.0}
        return replaced(sample, **lost)

    _, metrics = train(tiny_policy, tmp_path, Toy(change=second_is_lost))

    assert 2.0 == metrics[1]["reward"]
    assert 1 / 8 == metrics[1]["left_out_share"] == metrics[1]["infrastructure_share"]


def test_step_that_the_machine_lost_stops_the_training(tiny_policy, tmp_path):
    """Case rw-infrastructure-is-not-zero: above the stated share of lost samples training stops and says why."""

    def lost(sample, index, step):
        return replaced(sample, reward=None, status="infrastructure") if step == 3 and index < 5 else sample

    with pytest.raises(TrainingError, match=r"step 3: the machine lost 5 of 8 samples.*max_infrastructure_share"):
        train(tiny_policy, tmp_path, Toy(change=lost))


def test_sample_without_any_reward_must_say_why(tiny_policy, tmp_path):
    """Case rw-none-and-nan: status ok without a reward is an error that names item and sample."""

    def unexplained(sample, index, step):
        return replaced(sample, reward=None) if index == 2 else sample

    with pytest.raises(TrainingError, match=r"item i\d, sample 2: status ok, but reward None"):
        train(tiny_policy, tmp_path, Toy(change=unexplained))


def test_step_without_signal_changes_nothing(tiny_policy, tmp_path, caplog):
    """
    Case tr-groups-without-variance: when all groups have equal rewards no weight moves, not even by momentum of the
    steps before; the share is reported and warned about.
    """
    saved = {}

    def flat_after_two(sample, index, step):
        return replaced(sample, reward=0.7) if step > 2 else sample

    with caplog.at_level(logging.WARNING):
        summary, metrics = train(tiny_policy, tmp_path, Toy(change=flat_after_two))
    saved["after two"] = weights(tmp_path / "work" / "checkpoint-2")

    assert 1.0 == metrics[3]["flat_groups_share"]
    assert 2 == summary["steps_without_signal"]
    assert torch.equal(saved["after two"], weights(tmp_path / "out"))
    assert not torch.equal(saved["after two"], weights(tiny_policy))
    assert "100 % of the groups have equal rewards" in caplog.text


def test_every_episode_cut_names_the_limits(tiny_policy, tmp_path, caplog):
    """Case tr-completion-limit-too-small: a warning in the first step names the settings, and the run can stop."""

    def cut(sample, index, step):
        return replaced(sample, truncated=True, reward=0.0)

    settings = SETTINGS.model_copy(update={"stop_after_clipped_steps": 2})
    with caplog.at_level(logging.WARNING), pytest.raises(TrainingError, match="In 2 steps in a row"):
        train(tiny_policy, tmp_path, Toy(change=cut), settings)

    assert "agent.max_episode_tokens" in caplog.text


def test_cut_episodes_leave_numerator_and_denominator(tiny_policy, tmp_path):
    """
    Case ma-denominator-with-cut-rows: with `mask_truncated` a cut episode counts neither in the loss nor in its
    denominator: the gradient is that of a step whose other episodes are the only ones with tokens. Lengths are logged
    as they were.
    """
    masked = SETTINGS.model_copy(update={"steps_per_bucket": (1,), "mask_truncated": True})
    plain = SETTINGS.model_copy(update={"steps_per_bucket": (1,)})

    def cut_some(sample, index, step):
        return replaced(sample, truncated=index % 2 == 0)

    def tokens_of_some(sample, index, step):
        return replaced(sample, completion_mask=[0] * 7) if index % 2 == 0 else sample

    _, cut = train(tiny_policy, tmp_path / "cut", Toy(change=cut_some), masked)
    _, expected = train(tiny_policy, tmp_path / "expected", Toy(change=tokens_of_some), plain)

    assert expected[1]["grad_norm"] == pytest.approx(cut[1]["grad_norm"], rel=1e-5)
    assert expected[1]["grad_norm"] > 0
    assert 7 == cut[1]["completion_tokens"]


def test_all_episodes_cut_is_no_step(tiny_policy, tmp_path):
    """Case ma-denominator-with-cut-rows: when all are cut nothing is trained, the step is counted, nothing is NaN."""
    settings = SETTINGS.model_copy(update={"steps_per_bucket": (1,), "mask_truncated": True})

    summary, metrics = train(
        tiny_policy, tmp_path, Toy(change=lambda sample, index, step: replaced(sample, truncated=True)), settings
    )

    assert 1 == summary["steps_without_signal"]
    assert torch.equal(weights(tiny_policy), weights(tmp_path / "out"))
    assert (1.0, 7) == (metrics[1]["truncated_share"], metrics[1]["completion_tokens"])


def test_kl_term_is_reported_when_it_is_on(tiny_policy, tmp_path):
    """With a coefficient the distance to the starting policy is 0 in the first step and grows."""
    _, metrics = train(tiny_policy, tmp_path, Toy(), SETTINGS.model_copy(update={"kl_coefficient": 0.01}))

    assert metrics[1]["kl"] == pytest.approx(0.0, abs=1e-5)
    assert metrics[4]["kl"] > 1e-6


def test_episode_that_could_not_start_is_carried_along(tiny_policy, tmp_path):
    """An episode without a single token (its prompt was too long) has its reward in the group and no loss."""

    def not_started(sample, index, step):
        if index:
            return sample
        return replaced(sample, completion_ids=[], completion_mask=[], logprobs=[], reward=0.0, truncated=True)

    _, metrics = train(tiny_policy, tmp_path, Toy(change=not_started))

    assert 1 / 8 == metrics[1]["truncated_share"]


def test_engine_that_cannot_see_the_live_model_is_refused(tiny_policy, tmp_path):
    """GRPO asked to sample from a vLLM server says what to set instead."""
    with pytest.raises(TrainingError, match=r"engine\.kind: transformers"):
        train_grpo(
            [["i1"]], Toy(), tiny_policy, tmp_path / "out", SETTINGS, seed=0, work=tmp_path / "work",
            on_metrics=lambda values, step: None, engine=EngineSettings(kind="vllm"),
        )  # fmt: skip


def test_trained_policy_has_its_record(tiny_policy, tmp_path):
    """The new policy can be checked and names its parent."""
    train(tiny_policy, tmp_path, Toy(), SETTINGS.model_copy(update={"steps_per_bucket": (1,)}))

    assert ("grpo", str(tiny_policy)) == (
        check_policy(tmp_path / "out").name,
        check_policy(tmp_path / "out").parent,
    )
