"""Totals over dialogues: shares, what is left out of them, and equality with the official totals."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from evaluation.dialogue_scores import ScoredTurn, interaction_match, partial_averages, question_match, totals
from evaluation.set_match import PARTS
from evaluation.verdicts import Verdict


def turn(dialogue: str, number: int | None, ex: bool | None, em: bool | None = False, **more: Any) -> ScoredTurn:
    return ScoredTurn(dialogue, number, "concerts", em=em, ex=ex, **more)


def test_question_match_is_the_share_of_right_turns():
    """EX and EM are shares of turns, with the counts behind them."""
    result = question_match([turn("a", 1, True, True), turn("a", 2, True), turn("b", 1, False), turn("b", 2, False)])

    assert 0.5 == result["ex"]
    assert 0.25 == result["em"]
    assert (2, 1, 4) == (result["ex_right"], result["em_right"], result["turns"])


def test_interaction_match_wants_every_turn_right():
    """A dialogue with one wrong turn is wrong."""
    result = interaction_match([turn("a", 1, True), turn("a", 2, True), turn("b", 1, True), turn("b", 2, False)])

    assert 0.5 == result["interaction_ex"]
    assert 2 == result["dialogues"]


def test_failed_gold_is_left_out_and_beside_it_counted_as_wrong():
    """A turn whose gold does not run leaves the denominator of `ex`; `ex_all` counts it as wrong."""
    turns = [turn("a", 1, True), turn("a", 2, None, status="gold_failed"), turn("b", 1, False)]
    result = totals(turns)

    assert 1 / 2 == result["ex"]
    assert 1 / 3 == result["ex_all"]
    assert 1 == result["ex_ungraded"]
    assert 1 / 2 == result["interaction_ex"]
    assert 0.0 == result["interaction_ex_all"]
    assert 1 == result["statuses"]["gold_failed"]


def test_dialogue_without_gradable_turn_is_no_interaction():
    """It is neither right nor wrong, but wrong in the official totals."""
    result = interaction_match([turn("a", 1, None), turn("b", 1, True)])

    assert 1.0 == result["interaction_ex"]
    assert 0.5 == result["interaction_ex_all"]


def test_both_empty_matches_are_counted():
    """
    Case ev-both-results-empty: such a match is right, is counted, and EX over golds that return something is given too.
    """
    turns = [
        turn("a", 1, True, gold_empty=True, both_empty=True),
        turn("a", 2, False, gold_empty=True),
        turn("b", 1, False),
        turn("b", 2, True),
    ]
    result = question_match(turns)

    assert 0.5 == result["ex"]
    assert (1, 2) == (result["both_empty"], result["gold_empty"])
    assert 0.5 == result["ex_gold_not_empty"]


def test_share_of_nothing_is_none():
    """No turn, or none that can be graded, gives None and not 0."""
    assert totals([])["ex"] is None
    assert totals([turn("a", 1, None, None)])["em"] is None


def test_turns_beyond_four_share_a_group():
    """Turns are grouped as 1, 2, 3, 4 and >4; groups without turns are not there."""
    result = totals([turn("a", number, number == 6) for number in (1, 2, 5, 6)])

    assert ["1", "2", ">4"] == list(result["by_turn"])
    assert 0.5 == result["by_turn"][">4"]["ex"]


def test_turn_without_place_counts_only_as_a_pair():
    """A pair whose dialogue is not known counts towards question match and nothing else."""
    result = totals([turn("", None, True), turn("a", 1, False)])

    assert 0.5 == result["ex"]
    assert 1 == result["dialogues"]
    assert ["1"] == list(result["by_turn"])


def test_no_answer_is_wrong_and_counted():
    """A missing prediction is a wrong answer with a count of its own."""
    result = question_match([turn("a", 1, False, status="no_answer"), turn("a", 2, True, status="right")])

    assert 0.5 == result["ex"]
    assert 1 == result["no_answer"]


def test_partial_averages_divide_by_the_pairs_that_have_the_clause():
    """Accuracy is over predictions with the clause, recall over golds with it, f1 is of the two averages."""
    empty = {part: [1, 1, 1, 0, 0] for part in PARTS}
    turns = [
        turn("a", 1, True, partial={**empty, "where": [1, 1, 1, 1, 1]}),
        turn("a", 2, True, partial={**empty, "where": [0, 0, 0, 2, 0]}),
        turn("a", 3, True, partial={**empty, "where": [0, 0, 0, 1, 3]}),
        turn("a", 4, True, partial=empty),
    ]
    where = partial_averages(turns)["where"]

    assert (1 / 2, 2) == (where["accuracy"], where["accuracy_count"])
    assert (1 / 3, 3) == (where["recall"], where["recall_count"])
    assert pytest.approx(0.4) == where["f1"]
    assert 1.0 == partial_averages(turns)["order"]["f1"]


def test_verdict_fields_are_taken_over():
    """A scored turn holds what the judge said, and the pair."""
    verdict = Verdict(True, True, None, None, "easy", {"select": [1, 1, 1, 1, 1]}, "gold_failed", None)
    scored = ScoredTurn.from_verdict("dev/1", 2, "concerts", verdict, "SELECT 1", None)

    assert (True, None, "easy", "gold_failed") == (scored.em, scored.ex, scored.hardness, scored.status)
    assert ("dev/1", 2, "SELECT 1") == (scored.dialogue_id, scored.turn, scored.gold)


def test_totals_are_json():
    """Everything in the totals can be written as JSON without NaN."""
    json.dumps(totals([turn("a", 1, True, hardness="easy")]), allow_nan=False)


def test_official_totals_are_reproduced(shared: Path):
    """
    From the recorded verdicts: every count of EM and EX, by hardness, by turn and by interaction (of a dialogue that
    its file holds twice, the first).
    """
    with gzip.open(shared / "peer" / "official_verdicts.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    expected = json.loads((shared / "peer" / "totals.json").read_text("utf-8"))
    different = {}
    for name, counts in expected.items():
        source, dataset = name.split(" / ")
        chosen = [row for row in rows if row["source"] == source and dataset in (row["dataset"], "all")]
        ours = totals(recorded(row) for row in chosen)
        once = interaction_match([recorded(row) for row in chosen if not row.get("repeat")])
        found = {
            "all": plain(ours),
            **{level: plain(group) for level, group in ours["by_hardness"].items()},
            **{f"turn {number}".replace(">", "> "): plain(group) for number, group in ours["by_turn"].items()},
            "interaction": {
                "n": once["dialogues"],
                "em": once["interaction_em_right"],
                "ex": once["interaction_ex_right"],
            },
        }
        for part, values in counts.items():
            if part != "by_mutation" and values != found.get(part, dict.fromkeys(values, 0)):
                different[name, part] = (values, found.get(part))

    assert {} == different


def recorded(row: dict[str, Any]) -> ScoredTurn:
    dialogue = str(row["dialogue"])
    number = None if row["turn"] is None or row["source"] == "mutation" else row["turn"] + 1
    return ScoredTurn(dialogue, number, row["db_id"], em=row["em"], ex=row["ex"], hardness=row["hardness"])


def plain(group: dict[str, Any]) -> dict[str, int]:
    return {
        "n": group["turns"],
        "em": group["em_right"],
        "ex": group["ex_right"],
        "em_raised": group["em_ungraded"],
        "ex_raised": group["ex_ungraded"],
    }
