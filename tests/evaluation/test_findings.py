"""Findings: what a claim's terms come to, and when it is shown."""

import math

import polars as pl
import pytest

from evaluation.findings import Claim, Number, Share, effect_of, over_seeds, verdict_on, with_measures
from evaluation.paired import Effect
from text2sql.errors import DataError


def table(*ex: bool | None, **columns: object) -> pl.DataFrame:
    """Scores of dialogues of one turn each."""
    count = len(ex)
    values = {
        "item_id": [f"d/{number}/1" for number in range(count)],
        "dialogue_id": [f"d/{number}" for number in range(count)],
        "turn": [1] * count,
        "hardness": ["easy"] * count,
        "gold": ["SELECT 1"] * count,
        "ex": list(ex),
        **{name: [None] * count for name in ("error", "executions", "recalls", "corrections")},
        **{f"{kind}_verdicts{right}": [None] * count for kind in ("e", "m") for right in ("", "_right")},
    }
    return pl.DataFrame({**values, **columns}, schema_overrides={"ex": pl.Boolean})


def claim(*terms, sign=1, unit="points") -> Claim:
    return Claim("one", "group", "A claim.", terms, sign, None, "not reported", unit)


GAIN = claim((1, Share("e", "grpo")), (-1, Share("e", "base")))


@pytest.mark.parametrize(
    ("low", "high", "sign", "verdict"),
    [
        (0.1, 3.0, 1, "shown"),
        (-3.0, -0.1, -1, "shown"),
        (0.1, 3.0, -1, "opposite"),
        (-3.0, -0.1, 1, "opposite"),
        (-0.1, 3.0, 1, "not shown"),
        (0.0, 0.0, 1, "not shown"),
        (-math.inf, math.inf, 1, "not shown"),
    ],
)
def test_a_claim_is_shown_when_its_whole_interval_is_on_the_side_that_it_expects(low, high, sign, verdict):
    """Wholly on the other side it is opposite; an interval that holds zero, or has no ends, shows nothing."""
    middle = (low + high) / 2 if math.isfinite(low) else 1.0

    assert verdict == verdict_on(claim(sign=sign), Effect(middle, low, high, 9, 9, 3))


def test_what_has_no_effect_is_not_measured():
    """No turn was left to compare."""
    assert "not measured" == verdict_on(GAIN, None)


def test_effects_are_in_points():
    """One of two answers right before, both after: 50."""
    tables = {"base": [table(True, False)], "grpo": [table(True, True)]}
    found = effect_of(GAIN, lambda share: tables[share.policy], lambda number: [])

    assert found is not None
    assert (50.0, 2) == (found.effect, found.turns)


def test_numbers_of_stages_are_compared_seed_by_seed():
    """The same stage of two experiments, three seeds; seconds stay seconds."""
    seconds = {"small": [8.0, 9.0, 10.0], "full": [10.0, 12.0, 11.0]}
    less = claim((1, Number("small", "s", "seconds")), (-1, Number("full", "s", "seconds")), sign=-1, unit="seconds")
    found = effect_of(less, lambda share: [], lambda number: seconds[number.experiment])

    assert found is not None
    assert (-2.0, 3) == (found.effect, found.seeds)


def test_the_interval_over_seeds_is_students():
    """Of 1, 2 and 3: 2 plus or minus 4.303 standard errors; of one seed there is none."""
    found = over_seeds([1.0, 2.0, 3.0])

    assert (2.0, pytest.approx(2 - 4.303 / math.sqrt(3), abs=1e-3)) == (found.effect, found.low)
    assert (1.0, -math.inf, math.inf) == (over_seeds([1.0]).effect, over_seeds([1.0]).low, over_seeds([1.0]).high)


def test_means_over_turns_and_numbers_of_stages_are_not_mixed():
    """They have no interval in common."""
    with pytest.raises(DataError, match="no interval in common"):
        effect_of(claim((1, Share("e", "p")), (-1, Number("e", "s", "seconds"))), lambda _: [], lambda _: [])


def test_errors_and_calls_become_shares_of_all_judged_turns():
    """A right answer has none of the errors; a turn without a verdict counts in no share."""
    scores = table(*(True, False, None), error=[None, "execution", None], executions=[2, 0, None], recalls=[0, 1, None])
    found = with_measures(scores)

    assert [False, True, None] == found["error_execution"].to_list()
    assert [False, False, None] == found["error_join_path"].to_list()
    assert [True, False, None] == found["called_execute"].to_list()
    assert [False, True, None] == found["called_memory"].to_list()


def test_no_wrong_answer_means_no_error():
    """A column of errors that holds none at all is one of zeros, not of gaps."""
    assert [False, False] == with_measures(table(True, True))["error_execution"].to_list()


def test_accuracy_of_verdicts_is_a_share_of_those_given():
    """Two right of three, one wrong; a turn in which the agent gave none has no accuracy, whatever its answer is."""
    scores = table(True, False, True, e_verdicts=[3, 1, 0], e_verdicts_right=[2, 0, 0])
    found = with_measures(scores)

    assert [pytest.approx(2 / 3), 0.0, None] == found["e_verdict_accuracy"].to_list()
    assert [None] * 3 == found["m_verdict_accuracy"].to_list()


def test_scores_of_an_older_make_are_refused_by_name():
    """The message names the column and the way out."""
    with pytest.raises(DataError, match=r"no column error, recalls: delete the artifact"):
        with_measures(table(True).drop("error", "recalls"))
