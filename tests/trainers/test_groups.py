"""Groups of rewarded samples: advantages and the numbers of a step."""

import math

import pytest

from text2sql.errors import TrainingError
from trainers.groups import RolloutSample, SampleNumbers, group_advantages, step_metrics


def sample(reward, **values) -> RolloutSample:
    defaults = {"prompt_ids": [1], "completion_ids": [2, 3], "completion_mask": [1, 0], "logprobs": [-0.1, 0.0]}
    return RolloutSample(**{"item_id": "i", **defaults, "reward": reward, **values})


def metrics(*samples: RolloutSample, group_size: int = 2) -> dict[str, float]:
    return step_metrics([SampleNumbers.of(one) for one in samples], group_size)


def test_groups_of_equal_rewards_have_no_advantage():
    """Case tr-groups-without-variance: exactly 0 for flat groups, a sum of 0 for the other one, no NaN."""
    advantages = group_advantages([2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 2, 2, 1, 0], 5)

    assert [0.0] * 10 == advantages[:10]
    assert 0.0 == pytest.approx(sum(advantages[10:]), abs=1e-9)
    assert advantages[11] > 0 > advantages[10]


def test_batch_scaling_keeps_how_much_is_at_stake():
    """With `scale_rewards: batch` a group that differs by a verdict weighs a tenth of one that differs by the answer."""
    rewards = [1.0, 0.9, 1.0, 0.0]

    first, _, second, _ = group_advantages(rewards, 2)
    assert second == pytest.approx(first, rel=1e-2)  # scaled by the group, both weigh the same
    scaled = group_advantages(rewards, 2, "batch")
    assert scaled[2] == pytest.approx(10 * scaled[0])
    assert 0.0 == pytest.approx(sum(scaled))
    assert [0.0, 0.0] == group_advantages([1.0, 1.0, 1.0, 0.0], 2, "batch")[:2]


def test_rounding_does_not_make_a_group_uneven():
    """Rewards that are equal up to the last digit are a flat group."""
    assert [0.0] * 3 == group_advantages([0.1 + 0.2, 0.3, 0.3], 3)


def test_missing_rewards_leave_their_group():
    """Case rw-none-and-nan: None and NaN have no part in mean and spread; their own advantage is 0, never NaN."""
    advantages = group_advantages([1.5, None, 0.5, math.nan], 4)

    assert [0.0, 0.0] == [advantages[1], advantages[3]]
    assert advantages[0] == pytest.approx(-advantages[2])
    assert advantages[0] == pytest.approx(0.5 / (math.sqrt(0.5) + 1e-4))


def test_group_with_one_reward_left_is_flat():
    """A single reward has nothing to be compared with."""
    assert [0.0] * 3 == group_advantages([1.0, None, None], 3)


def test_share_of_flat_groups():
    """Case tr-groups-without-variance: two of three groups teach nothing."""
    rewards = [2, 2, 0, 0, 0, 1]

    assert 2 / 3 == metrics(*map(sample, rewards))["flat_groups_share"]


def test_means_leave_out_what_is_missing():
    """A part is averaged over the samples that have it; a mean over nothing is left out."""
    values = metrics(
        sample(1.0, parts={"execution_match": 1.0, "e_verify": None, "m_verify": None}),
        sample(None, status="ungradable", parts={"execution_match": 0.5, "e_verify": 0.5, "m_verify": None}),
    )

    assert (1.0, 0.75, 0.5) == (values["reward"], values["reward/execution_match"], values["reward/e_verify"])
    assert "reward/m_verify" not in values
    assert (0.5, 0.0) == (values["left_out_share"], values["infrastructure_share"])


def test_further_numbers_are_averaged():
    """What the rollout adds under `metrics` is reported under its own name."""
    assert 0.5 == metrics(sample(1, metrics={"ex": 1.0}), sample(0, metrics={"ex": 0.0}))["ex"]


def test_logprobs_of_another_length_are_refused():
    """Case ma-mask-longer-than-ids: ids, mask and logprobs must line up; the message names item and sample."""
    with pytest.raises(TrainingError, match=r"item i, sample 4: .* a mask of 3"):
        sample(1.0, completion_mask=[1, 0, 1]).check(4)


def test_reward_of_nothing_is_refused():
    """Case rw-none-and-nan: all parts None with status ok is an error that names item and sample."""
    with pytest.raises(TrainingError, match="item i, sample 0"):
        sample(0.0, parts={"execution_match": None, "propose": None}).check(0)
