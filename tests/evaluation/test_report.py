"""The report on predictions, through its command line and on real SQLite files."""

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evaluation.pairing import Pairing, read_pairing
from evaluation.report import make_report
from evaluation.report_text import markdown, share
from evaluation.suite import Suite
from evaluation.verdicts import Scorer
from text2sql.executor import Executor, Limits

REPOSITORY = Path(__file__).resolve().parents[2]
TURNS = [
    ("a/1", "a", 1, "SELECT name FROM singer", "SELECT name FROM singer"),
    ("a/2", "a", 2, "SELECT name FROM singer WHERE age > 30", "SELECT s.name FROM singer s WHERE s.age>30"),
    ("b/1", "b", 1, "SELECT name FROM singer WHERE age > 30", "SELECT name FROM singer WHERE age > 30"),
    ("b/2", "b", 2, "SELECT country FROM singer WHERE age > 30", "SELECT country FROM singer"),
    ("b/3", "b", 3, "SELECT nowhere FROM singer", "SELECT name FROM singer"),
    ("c/1", "c", 1, "SELECT name FROM singer WHERE age > 99", "SELECT name FROM singer WHERE age > 98"),
    ("c/2", "c", 2, "SELECT count(*) FROM singer", None),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory, concerts_database: Path, concerts_entry) -> Path:
    """A folder with database/concerts/concerts.sqlite and tables.json."""
    root = tmp_path_factory.mktemp("report")
    database = root / "database" / "concerts" / "concerts.sqlite"
    database.parent.mkdir(parents=True)
    shutil.copy(concerts_database, database)
    connection = sqlite3.connect(database)
    rows = [(1, "Ann", "France", 25, 1), (2, "Bo", "Spain", 35, 2), (3, "Cy", "France", 45, 3)]
    connection.executemany("INSERT INTO singer VALUES (?, ?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()
    (root / "tables.json").write_text(json.dumps([concerts_entry]), encoding="utf-8")
    return root


def lines(turns: list[tuple[Any, ...]]) -> str:
    keys = ("id", "dialogue", "turn", "gold", "pred")
    return "".join(json.dumps({"db_id": "concerts", **dict(zip(keys, turn, strict=True))}) + "\n" for turn in turns)


@pytest.fixture(scope="module")
def report(root: Path) -> dict[str, Any]:
    path = root / "predictions.jsonl"
    path.write_text(lines(TURNS), encoding="utf-8")
    with Executor(workers=1) as executor:
        return make_report(read_pairing(path), Scorer(root / "database", root / "tables.json", executor))


def test_totals_are_over_the_turns_that_can_be_graded(report):
    """The gold that fails is left out of EX and beside it counted as wrong; a missing answer is wrong."""
    totals = report["totals"]

    assert 7 == totals["turns"]
    assert 4 / 6 == totals["ex"]
    assert 4 / 7 == totals["ex_all"]
    assert 1 == totals["no_answer"]
    assert pytest.approx(1 / 3) == totals["interaction_ex"]


def test_sound_match_stands_beside_em(report):
    """A right query that the official parser cannot read is wrong by EM and right by meaning."""
    totals = report["totals"]

    assert 3 == totals["em_right"]
    assert 4 / 7 == totals["em_sound"]


def test_two_empty_results_are_counted(report):
    """Case ev-both-results-empty: the match of two empty results is right, counted, and EX without it is given."""
    totals = report["totals"]

    assert (1, 1) == (totals["both_empty"], totals["gold_empty"])
    assert 3 / 5 == totals["ex_gold_not_empty"]


def test_failed_gold_is_named(report):
    """A gold that does not run is listed with its reason."""
    failed = [turn for turn in report["ungraded"] if turn["status"] == "gold_failed"]

    assert ["b/3"] == [turn["id"] for turn in failed]
    assert "no such column" in failed[0]["reason"]


def test_wrong_predictions_have_error_classes(report):
    """Lost conditions of an earlier turn and missing answers are told apart; the failed gold has no class."""
    errors = report["errors"]

    assert 1 == errors["constraint_coherence"]
    assert 1 == errors["execution"]
    assert 2 == sum(errors.values())


def test_report_says_what_made_it(report):
    """Case ev-tie-in-order-by: SQLite's version is part of every report, with limits, rules and corrections."""
    made = report["made_with"]

    assert sqlite3.sqlite_version == made["sqlite"]
    assert 5.0 == made["limits"]["prediction"]["timeout_seconds"]
    assert made["limits"]["gold"]["timeout_seconds"] > made["limits"]["prediction"]["timeout_seconds"]
    assert {"em", "ex", "em_sound", "errors"} == set(made["rules"])
    assert "none" == made["corrections"]


def test_suite_ex_stands_beside_ex_on_request(report, root: Path, tmp_path: Path):
    """
    Turns that are right by EX and wrong on a neighbour are counted; every table of the page has the column. A report
    without the second judge has neither.
    """
    path = root / "predictions.jsonl"
    with Executor(workers=1) as executor:
        scorer = Scorer(root / "database", root / "tables.json", executor)
        judged = make_report(read_pairing(path), scorer, suite=Suite(executor, tmp_path))
    totals, text = judged["totals"], markdown(judged)

    assert (4, 3, 1) == (totals["ex_right"], totals["ex_suite_right"], totals["ex_unmasked"])
    assert 3 / 6 == totals["ex_suite"]
    assert 0 == totals["interaction_ex_suite_right"] - totals["interaction_ex_right"]
    assert "| question match | 0.667 | 0.500 |" in text
    assert "|  | turns | EX | suite EX | EM |" in text
    assert "ex_suite" in judged["made_with"]["rules"]
    assert totals["ex"] == report["totals"]["ex"]
    assert "ex_suite" not in report["totals"]
    assert "suite EX" not in markdown(report)


def test_missing_prediction_is_named_and_wrong(report):
    """Case ev-pairing-by-position: a missing prediction is counted as wrong, by name and with a total."""
    assert ["c/2"] == report["pairing"]["missing"]
    assert 7 == report["pairing"]["asked"]


def test_slow_gold_is_a_class_of_its_own(root: Path):
    """Case ev-slow-gold: a gold that passes its limit is listed by name, apart from wrong predictions."""
    slow = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000000) SELECT max(i) FROM n"
    path = root / "slow.jsonl"
    path.write_text(lines([("s", "a", 1, slow, "SELECT 1")]), encoding="utf-8")
    with Executor(workers=1) as executor:
        limits = Limits(timeout_seconds=0.2)
        scorer = Scorer(root / "database", root / "tables.json", executor, gold_limits=limits)
        slow_report = make_report(read_pairing(path), scorer)

    assert [("s", "gold_timeout")] == [(turn["id"], turn["status"]) for turn in slow_report["ungraded"]]
    assert slow_report["totals"]["ex"] is None
    assert 0.2 == slow_report["made_with"]["limits"]["gold"]["timeout_seconds"]


def test_missing_database_is_named_and_not_a_wrong_answer(root: Path):
    """A turn whose database is not there gets no verdict and is listed."""
    path = root / "elsewhere.jsonl"
    path.write_text(lines(TURNS[:1]).replace('"concerts"', '"elsewhere"'), encoding="utf-8")
    with Executor(workers=1) as executor:
        found = make_report(read_pairing(path), Scorer(root / "database", root / "tables.json", executor))

    assert [("a/1", "database")] == [(turn["id"], turn["status"]) for turn in found["ungraded"]]
    assert 0 == sum(found["errors"].values())


def test_markdown_has_every_section(report):
    """The page shows totals, groups, parts, errors, pairing, ungraded turns and what made it."""
    text = markdown(report)

    for title in ("By turn", "By hardness", "Parts of exact match", "Wrong predictions", "Pairing", "Made with"):
        assert f"## {title}\n" in text
    assert "| question match | 0.667 | 0.500 |" in text
    assert "missing (no prediction, counted as wrong): 1: c/2." in text
    assert f"SQLite {sqlite3.sqlite_version}" in text


def test_share_of_nothing_is_a_dash():
    """A share that does not exist is not printed as 0."""
    assert "–" == share(None)
    assert "0.000" == share(0.0)


def test_report_on_nothing_can_be_written(root: Path):
    """No turn at all gives a report without shares."""
    with Executor(workers=1) as executor:
        empty = make_report(Pairing(()), Scorer(root / "database", root / "tables.json", executor))

    assert "| question match | – | – |" in markdown(empty)


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    data = ["--database", str(root / "database"), "--tables", str(root / "tables.json"), "--workers", "1"]
    command = [sys.executable, "-m", "evaluation.report", *arguments, *data]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, timeout=120, check=False)


def test_command_writes_both_files(root: Path, tmp_path: Path):
    """The command writes JSON and Markdown, names its input files with their hashes, and ends with 0."""
    predictions = tmp_path / "p.jsonl"
    predictions.write_text(lines(TURNS), encoding="utf-8")
    out, page = tmp_path / "out.json", tmp_path / "out.md"
    result = run(root, str(predictions), "--json", str(out), "--markdown", str(page))

    assert 0 == result.returncode, result.stderr
    assert b"1 missing: c/2" in result.stderr
    assert {"predictions", "tables"} == set(json.loads(out.read_text("utf-8"))["made_from"])
    assert page.read_text("utf-8").startswith("# Report")


def test_command_prints_markdown_in_any_locale(root: Path, tmp_path: Path, monkeypatch):
    """Case cl-non-utf8-locale: the page goes to standard output as UTF-8 whatever the locale is."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    predictions = tmp_path / "p.jsonl"
    predictions.write_text(lines([("é", "a", 1, "SELECT nowhere FROM singer", None)]), encoding="utf-8")
    result = run(root, str(predictions))

    assert 0 == result.returncode, result.stderr
    assert "é" in result.stdout.decode("utf-8")


@pytest.mark.parametrize(("content", "status"), [("no json", 1), ('{"id": 1}\n', 1), ("", 3)])
def test_input_without_a_turn_ends_in_error(root: Path, tmp_path: Path, content, status):
    """
    Case cl-success-that-was-none: input that cannot be read ends with 1 and a message without a traceback, input without
    any turn with 3.
    """
    predictions = tmp_path / "p.jsonl"
    predictions.write_text(content, encoding="utf-8")
    result = run(root, str(predictions))

    assert status == result.returncode
    assert b"Traceback" not in result.stderr
    assert (b"p.jsonl" if status == 1 else b"0 turns: ") in result.stderr


def test_run_in_which_nothing_could_be_judged_ends_with_4(root: Path, tmp_path: Path):
    """Case cl-success-that-was-none: without any verdict the command does not end as if all were well."""
    predictions = tmp_path / "p.jsonl"
    predictions.write_text(lines(TURNS[:1]).replace('"concerts"', '"elsewhere"'), encoding="utf-8")
    result = run(root, str(predictions))

    assert 4 == result.returncode
    assert result.stderr.rstrip().endswith(b"not judged 1")


def test_run_in_which_all_is_wrong_ends_with_0(root: Path, tmp_path: Path):
    """Case cl-success-that-was-none: wrong answers are a result."""
    predictions = tmp_path / "p.jsonl"
    predictions.write_text(
        lines([("w", "a", 1, "SELECT name FROM singer", "SELECT age FROM singer")]), encoding="utf-8"
    )

    assert 0 == run(root, str(predictions)).returncode
