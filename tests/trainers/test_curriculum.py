"""The curriculum: buckets from easy to hard."""

import pytest

from text2sql.config import CurriculumSettings
from text2sql.errors import TrainingError
from trainers.curriculum import make_buckets


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
