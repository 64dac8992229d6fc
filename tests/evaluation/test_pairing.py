"""Golds and predictions put together by id."""

import json
from pathlib import Path
from typing import Any

import pytest

from evaluation.pairing import read_pairing
from text2sql.errors import DataError


def gold_lines(count: int) -> list[dict[str, Any]]:
    return [
        {"id": str(number), "dialogue": "dev/0", "turn": number + 1, "db_id": "concerts", "gold": f"SELECT {number}"}
        for number in range(count)
    ]


@pytest.fixture
def files(tmp_path: Path):
    """Writes golds and predictions: a list is JSON Lines, anything else one JSON value, a str plain text."""

    def write(golds: Any, predictions: Any) -> tuple[Path, Path]:
        paths = tmp_path / "gold.jsonl", tmp_path / "pred.jsonl"
        for path, content in zip(paths, (golds, predictions), strict=True):
            lines = content if isinstance(content, list) else [content]
            text = content if isinstance(content, str) else "\n".join(json.dumps(line) for line in lines)
            path.write_text(text, encoding="utf-8")
        return paths

    return write


def test_pairing_is_by_id(files):
    """
    Case ev-pairing-by-position: predictions in another order, as an object whose keys are sorted as text, are paired
    with the golds that they belong to.
    """
    golds, predictions = files(gold_lines(12), {str(n): f"SELECT {n}" for n in sorted(range(12), key=str)})
    pairing = read_pairing(predictions, golds)

    assert [turn.gold for turn in pairing.turns] == [turn.pred for turn in pairing.turns]
    assert ((), (), ()) == (pairing.missing, pairing.unknown, pairing.repeated)


def test_lines_in_another_order_pair_the_same(files):
    """So are JSON Lines."""
    golds, predictions = files(gold_lines(3), [{"id": n, "pred": f"SELECT {n}"} for n in (2, 0, 1)])

    assert all(turn.gold == turn.pred for turn in read_pairing(predictions, golds).turns)


def test_unknown_repeated_and_missing_ids_are_named(files):
    """
    Case ev-pairing-by-position: a missing id is kept as a turn without a prediction, an unknown one is left out, of a
    repeated one the first counts; all are named.
    """
    golds, predictions = files(
        gold_lines(3),
        [{"id": "0", "pred": "SELECT 0"}, {"id": "0", "pred": "SELECT 9"}, {"id": "77", "pred": "SELECT 77"}],
    )
    pairing = read_pairing(predictions, golds)

    assert ("1", "2") == pairing.missing
    assert ("77",) == pairing.unknown
    assert ("0",) == pairing.repeated
    assert ["SELECT 0", None, None] == [turn.pred for turn in pairing.turns]


def test_keys_repeated_in_one_object_are_named(files):
    """A JSON object that has a key twice does not silently keep one of them."""
    golds, predictions = files(gold_lines(1), '{"0": "SELECT 0", "0": "SELECT 1"}')
    pairing = read_pairing(predictions, golds)

    assert ("0",) == pairing.repeated
    assert "SELECT 0" == pairing.turns[0].pred


def test_one_file_holds_golds_and_predictions(files):
    """Without a file of golds each line has both; a line without a prediction is missing."""
    lines = gold_lines(2)
    lines[0]["pred"] = "SELECT 0"
    _, predictions = files([], lines)
    pairing = read_pairing(predictions)

    assert ["SELECT 0", None] == [turn.pred for turn in pairing.turns]
    assert ("1",) == pairing.missing


def test_single_line_is_a_line(files):
    """One JSON line with id and pred is a prediction and no object of predictions."""
    golds, predictions = files(gold_lines(1), [{"id": "0", "pred": "SELECT 0"}])

    assert "SELECT 0" == read_pairing(predictions, golds).turns[0].pred


def test_plain_lines_are_paired_by_place(files):
    """The official input: dialogues apart by empty lines, golds with their database after a tab."""
    golds, predictions = files("SELECT 1\ta\nSELECT 2\ta\n\nSELECT 3\tb\n", "select 1\nselect 2\n\nselect 3\n\n")
    turns = read_pairing(predictions, golds).turns

    assert [("0", 1, "a"), ("0", 2, "a"), ("1", 1, "b")] == [(t.dialogue_id, t.turn, t.db_id) for t in turns]
    assert ["select 1", "select 2", "select 3"] == [turn.pred for turn in turns]


@pytest.mark.parametrize("predictions", ["select 1\n\nselect 3\n", "select 1\nselect 2\nselect 3\n", ""])
def test_plain_lines_must_match_in_number(files, predictions):
    """Case ev-pairing-by-position: with a line lost, plain files are refused."""
    golds, path = files("SELECT 1\ta\nSELECT 2\ta\n\nSELECT 3\tb\n", predictions)

    with pytest.raises(DataError, match="paired by place and must match"):
        read_pairing(path, golds)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"turn": 0}, "turn is 0; expected a whole number from 1"),
        ({"gold": None}, "gold is None; expected a text"),
        ({"db_id": 3}, "db_id is 3; expected a text"),
        ({"id": None}, "id is None; expected a text or a whole number"),
        ({"pred": 3}, "pred is 3; expected a text"),
    ],
)
def test_wrong_lines_are_named(files, change, said):
    """The message has the file, the line and what is wrong with it."""
    _, path = files([], [gold_lines(1)[0], {**gold_lines(2)[1], **change}])

    with pytest.raises(DataError, match=f"pred.jsonl line 2: {said}"):
        read_pairing(path)


def test_broken_json_is_named(files):
    """A line that is no JSON is an error, not a missing prediction."""
    _, path = files([], '{"id": 1\n')

    with pytest.raises(DataError, match="line 1 is no JSON"):
        read_pairing(path)


def test_golds_with_one_id_twice_are_refused(files):
    """An id that two golds share cannot say which prediction is whose."""
    golds, path = files(gold_lines(1) * 2, {"0": "SELECT 0"})

    with pytest.raises(DataError, match="every gold needs an id of its own"):
        read_pairing(path, golds)


def test_file_without_golds_is_refused(files):
    """Plain predictions need a file of golds."""
    _, path = files([], "select 1\n")

    with pytest.raises(DataError, match="a file for --gold"):
        read_pairing(path)
