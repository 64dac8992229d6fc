"""The curriculum: buckets from easy to hard."""

import pytest

from text2sql.config import CurriculumSettings
from text2sql.errors import TrainingError
from trainers.curriculum import make_buckets, plan_steps


def test_items_are_ordered_from_easy_to_hard_in_equal_buckets():
    """No bucket holds an item that is easier than one of the bucket before; sizes differ by one at most."""
    success = {f"i{n}": n / 20 for n in range(1, 20)}

    buckets = make_buckets(success, CurriculumSettings(buckets=3))

    assert [6, 6, 7] == [len(bucket) for bucket in buckets]
    flat = [success[item] for bucket in buckets for item in bucket]
    assert sorted(flat, reverse=True) == flat


def test_items_that_are_always_solved_are_dropped():
    """Nothing can be learned from a group that is right in every attempt."""
    assert [["b"]] == make_buckets({"a": 1.0, "b": 0.5}, CurriculumSettings(buckets=1))


def test_unsolved_items_come_in_the_last_bucket_only():
    """Even when they are most of the items, items never solved stay out of the easier buckets."""
    success = {f"never{n}": 0.0 for n in range(8)} | {f"some{n}": 0.5 for n in range(4)}

    buckets = make_buckets(success, CurriculumSettings(buckets=3))

    assert [2, 2, 8] == [len(bucket) for bucket in buckets]
    assert all(item.startswith("never") for item in buckets[2])


def test_unsolved_items_can_be_left_out():
    """`keep_unsolved: false` trains on partly solved items alone."""
    buckets = make_buckets({"a": 0.0, "b": 0.5, "c": 0.1}, CurriculumSettings(buckets=2, keep_unsolved=False))

    assert [["b"], ["c"]] == buckets


def test_order_of_the_input_does_not_matter():
    """Equal success is broken by the seed, not by the order of a file."""
    success = {f"i{n}": 0.5 for n in range(10)}
    backwards = dict(reversed(success.items()))

    assert make_buckets(success, CurriculumSettings(), seed=3) == make_buckets(backwards, CurriculumSettings(), seed=3)
    assert make_buckets(success, CurriculumSettings(), seed=3) != make_buckets(success, CurriculumSettings(), seed=4)


def test_no_item_left_is_an_error_with_a_way_out():
    """When everything is solved always, the message names the settings to change."""
    with pytest.raises(TrainingError, match=r"curriculum\.keep_unsolved"):
        make_buckets({"a": 1.0}, CurriculumSettings())


def test_steps_are_planned_bucket_after_bucket():
    """Every bucket fills its own steps, each pass through it is a full shuffle, and equal seeds give equal plans."""
    buckets = [["a", "b", "c", "d"], ["x", "y"]]

    plan = plan_steps(buckets, (4, 1), 2, seed=0)

    assert plan == plan_steps(buckets, (4, 1), 2, seed=0)
    assert [0, 0, 0, 0, 1] == [step.bucket for step in plan]
    passes = [[item for step in plan[start : start + 2] for item in step.item_ids] for start in (0, 2)]
    assert all(sorted(one) == buckets[0] for one in passes)


def test_empty_bucket_takes_no_steps():
    """The steps of an empty bucket are left out; a plan without any step is an error."""
    assert [1, 1] == [step.bucket for step in plan_steps([[], ["x"]], (3, 2), 1, seed=0)]
    with pytest.raises(TrainingError, match="no step to take"):
        plan_steps([[], []], (3, 2), 1, seed=0)


def test_bucket_smaller_than_a_step_repeats_its_items():
    """A step is always full, so that group and batch sizes hold."""
    assert ("x",) * 3 == plan_steps([["x"]], (1,), 3, seed=0)[0].item_ids


def test_steps_must_be_given_per_bucket():
    """Another number of buckets than of steps_per_bucket names both settings."""
    with pytest.raises(TrainingError, match=r"2 buckets, but grpo\.steps_per_bucket has 3 entries"):
        plan_steps([["a"], ["b"]], (1, 2, 3), 1, seed=0)
