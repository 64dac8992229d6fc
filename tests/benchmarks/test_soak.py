"""What the soak calls a leak."""

from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.soak import MIX, Sample, Tally, problems

MIB = 2**20
START = Sample("start", 11, 2, 5, 28 * MIB, 24 * MIB)
CLOSED = Sample("closed", 6, 0, 0, 33 * MIB, 0)
# docs/experiments.md, 2026-11-30
AS_EXPECTED = Counter(ok=29_254, empty=3_147, error=4_811, too_large=1_720, timeout=187)


def found(
    end: Sample = START, midway: Sample = START, closed: Sample = CLOSED, tally: Tally | None = None
) -> list[str]:
    return problems(tally or Tally(AS_EXPECTED), [START, START, midway, START, end, closed], workers=2)


def test_what_a_sound_executor_does_is_no_problem() -> None:
    """A statement at work may take what its limit allows, a worker a descriptor or two for a while."""
    assert found(midway=replace(START, worker_resident=123 * MIB, worker_descriptors=6)) == []


@pytest.mark.parametrize(
    ("grown", "said"),
    [
        ({"descriptors": 12}, "descriptors grew from 11 to 12"),
        ({"workers": 3}, "3 workers at the end"),
        ({"resident": 60 * MIB}, "memory grew"),
        ({"worker_descriptors": 8}, "descriptors of a worker grew from 5 to 8"),
        ({"worker_resident": 41 * MIB}, "memory of a worker grew"),
    ],
)
def test_growth_is_a_problem_here_and_in_a_worker(grown: dict[str, int], said: str) -> None:
    """Each by its own limit."""
    [problem] = found(end=replace(START, **grown))

    assert problem.startswith(said)


def test_descriptors_of_a_worker_that_was_replaced_count_too() -> None:
    """Workers are killed now and then: what leaked may be gone at the end."""
    assert found(midway=replace(START, worker_descriptors=200)) == ["descriptors of a worker grew from 5 to 200"]


def test_an_executor_that_always_times_out_is_a_problem() -> None:
    """Any answer may be late, all may not; and a wrong answer is one."""
    assert found(tally=Tally(Counter(timeout=500))) == ["500 of 500 answers are time-outs"]
    assert found(tally=Tally(AS_EXPECTED, [f"{MIX[0][0]}: error"])) == [f"wrong: {MIX[0][0]}: error"]


def test_workers_left_after_closing_are_a_problem() -> None:
    """Closing ends them."""
    assert found(closed=replace(CLOSED, workers=1)) == ["1 workers left after closing"]
