"""Exact match against the verdicts that the official evaluator itself gave."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluation.exact_match import EvaluatorSchema, exact_match, exact_match_sound, hardness, load_schema


@pytest.fixture(scope="module")
def verdicts(shared: Path) -> list[dict[str, Any]]:
    with gzip.open(shared / "peer" / "official_verdicts.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def schemas(shared: Path, verdicts: list[dict[str, Any]]) -> dict[str, EvaluatorSchema]:
    entries = {entry["db_id"]: entry for entry in json.loads((shared / "data" / "tables.json").read_text("utf-8"))}
    folder = shared / "data" / "database"
    return {db: load_schema(folder / db / f"{db}.sqlite", entries[db]) for db in {row["db_id"] for row in verdicts}}


def test_every_official_verdict_is_reproduced(verdicts, schemas):
    """EM, hardness, all ten partial scores with their counts, and what is readable, on every recorded pair."""
    different = []
    for row in verdicts:
        ours = exact_match(row["gold"], row["pred"], schemas[row["db_id"]])
        readable = "pred_parse" not in (row.get("note") or {})
        if (row["em"], row["hardness"], row["partial"], readable) != (
            ours.em,
            ours.hardness,
            ours.partial,
            ours.readable,
        ):
            different.append(row["id"])

    assert [] == different
    assert 9_000 < len(verdicts)


def test_hardness_alone_is_reproduced(verdicts, schemas):
    """hardness() says the same as the verdict of a pair."""
    golds = {(row["db_id"], row["gold"]): row["hardness"] for row in verdicts}

    assert golds == {(db, gold): hardness(gold, schemas[db]) for db, gold in golds}


def test_letters_of_value_alone_change_some_verdicts(verdicts, schemas):
    """Where the evaluator's replacement of `value` decides, the verdict without it is another one."""
    decided = [
        row for row in verdicts if "em_without_replacement" in row and row["em"] != row["em_without_replacement"]
    ]

    assert decided
    for row in decided:
        assert row["em"] == exact_match(row["gold"], row["pred"], schemas[row["db_id"]]).em


def test_readable_golds_equal_themselves_soundly(verdicts, schemas):
    """
    The sound reading is true for every gold against itself, save the one gold that SQLite cannot read either (a
    parenthesis too many).
    """
    refused = {
        (row["db_id"], row["gold"])
        for row in verdicts
        if not exact_match_sound(row["gold"], row["gold"], schemas[row["db_id"]])
    }

    assert {gold.count(")") - gold.count("(") for _, gold in refused} <= {1}
    assert 1 >= len(refused)


def real_predictions(verdicts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (row for row in verdicts if row["source"] != "mutation" and row["em"] is not None)


def test_sound_reading_keeps_what_official_has_right(verdicts, schemas):
    """
    On real predictions the sound reading refuses few that the official one accepts, and none that returns the right
    rows: they join on nothing or on other columns.
    """
    refused = [
        row
        for row in real_predictions(verdicts)
        if row["em"] and not exact_match_sound(row["gold"], row["pred"], schemas[row["db_id"]])
    ]

    assert [] == [row["id"] for row in refused if row["ex"]]
    assert 12 > len(refused)


def test_sound_reading_adds_right_predictions_refused_for_their_spelling(verdicts, schemas):
    """Of the real predictions that only the sound reading accepts, most return the right rows."""
    added = [
        row
        for row in real_predictions(verdicts)
        if not row["em"] and exact_match_sound(row["gold"], row["pred"], schemas[row["db_id"]])
    ]

    assert 20 < len(added)
    assert 0.75 * len(added) < sum(bool(row["ex"]) for row in added)
