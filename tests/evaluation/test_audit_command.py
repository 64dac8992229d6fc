"""`python -m evaluation.audit`: what it prints, writes and returns."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from evaluation.audit import main

MakeRelease = Callable[..., Path]
ORDERS = "CREATE TABLE OrderDetails(order_id INTEGER, qty INTEGER); INSERT INTO OrderDetails VALUES (1,3);"
REPOSITORY = Path(__file__).resolve().parents[2]


def run(root: Path, *more: str) -> int:
    return main(["--benchmark", "demo", "--root", str(root), "--workers", "1", *more])


def test_gold_scored_as_prediction_reports_one_of_two_and_names_the_other(
    make_release: MakeRelease, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case data-gold-does-not-fit-database: EX 1 of 2; the gold that cannot run is listed with SQLite's words."""
    golds = ["SELECT sum(qty) FROM `Order Details`", "SELECT sum(qty) FROM OrderDetails"]
    root = make_release(dev=[("shop", [("q", gold) for gold in golds])], databases={"shop": ORDERS})

    status = run(root)
    lines = capsys.readouterr().out.splitlines()

    assert 0 == status
    assert any(line.startswith("gold scored as prediction, dev: EX 1, ") and line.endswith(" of 2") for line in lines)
    assert "set aside: dev/0/1 (shop) gold_invalid: no such table: Order Details" in lines
    assert "2 turns: 1 gradable, 1 set aside." == lines[-1]


def test_gold_that_the_official_evaluator_misreads_is_named(
    make_release: MakeRelease, capsys: pytest.CaptureFixture[str]
) -> None:
    """The letters `value` become `1` in a prediction: such a gold runs, and yet no prediction can be right."""
    script = "CREATE TABLE stock(market_value INTEGER); INSERT INTO stock VALUES (3);"
    root = make_release(dev=[("shop", [("q", "SELECT market_value FROM stock")])], databases={"shop": script})

    run(root)
    output = capsys.readouterr().out

    assert "gold scored as prediction, dev: EX 0, EM 0 of 1" in output
    assert "dev/0/1: EX wrong, EM wrong (pred_error" in output
    assert "1 turns: 1 gradable, 0 set aside." in output


def test_nothing_to_audit_no_database_and_broken_files_end_with_statuses_of_their_own(
    make_release: MakeRelease, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Case cl-success-that-was-none: no turn 3, no turn that could be judged 4, unreadable data 1."""
    empty = make_release()
    assert 3 == run(empty)
    assert "0 turns: there was nothing to audit." == capsys.readouterr().out.splitlines()[-1]

    dialogue = {"database_id": "lost", "interaction": [{"utterance": "q", "query": "SELECT 1"}]}
    (empty / "dev.json").write_text(json.dumps([dialogue] * 10), encoding="utf-8")
    assert 4 == run(empty)
    assert "10 turns: 0 gradable, 10 set aside." == capsys.readouterr().out.splitlines()[-1]

    assert 1 == run(tmp_path / "nowhere")
    assert "TEXT2SQL_DATA" in capsys.readouterr().err


def test_golds_that_all_fail_are_a_result_and_end_with_status_zero(
    make_release: MakeRelease, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case cl-success-that-was-none: ten broken golds are what the audit is there to find."""
    root = make_release(dev=[("shop", [("q", "SELECT FROM x")] * 10)], databases={"shop": ORDERS})

    assert 0 == run(root)
    assert "10 turns: 0 gradable, 10 set aside." == capsys.readouterr().out.splitlines()[-1]


def test_listings_are_written_and_replaced_by_the_next_audit(make_release: MakeRelease, tmp_path: Path) -> None:
    """With --out: the tables, the set-aside turns and the summary; a second run leaves no row twice."""
    root = make_release(
        dev=[("shop", [("wie viele für 大阪?", "SELECT FROM x"), ("q", "SELECT qty FROM OrderDetails")])],
        databases={"shop": ORDERS},
    )
    out = tmp_path / "out"

    for _ in range(2):
        run(root, "--out", str(out))

    lines = (out / "set_aside.jsonl").read_text(encoding="utf-8").splitlines()
    assert [("dev/0/1", "wie viele für 大阪?")] == [
        (row["item_id"], row["utterance"]) for row in map(json.loads, lines)
    ]
    assert 2 == pl.read_parquet(out / "audit.parquet").height
    assert ["shop"] == pl.read_parquet(out / "databases.parquet")["db_id"].to_list()
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert {"dev": {"scored": 2, "ex": 1, "em": 1}} == summary["gold_scored_as_prediction"]
    assert "none" == summary["corrections"]


def test_corrections_file_is_applied_and_its_hash_printed(
    make_release: MakeRelease, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Case data-wrong-gold-corrections: the report says which corrections it rests on."""
    root = make_release(dev=[("shop", [("q", "SELECT kty FROM OrderDetails")])], databases={"shop": ORDERS})
    path = tmp_path / "corrections.yaml"
    path.write_text(
        "corrections:\n  - {split: dev, dialogue: 0, turn: 1, old: SELECT kty FROM OrderDetails,"
        " new: SELECT qty FROM OrderDetails, reason: typo}\n",
        encoding="utf-8",
    )

    run(root, "--corrections", str(path))
    output = capsys.readouterr().out

    assert "corrections: none" not in output
    assert "1 turns: 1 gradable, 0 set aside." == output.splitlines()[-1]


def test_command_works_under_a_plain_c_locale(make_release: MakeRelease, tmp_path: Path) -> None:
    """Case cl-non-utf8-locale: same bytes in the listing, and a console that shows ASCII only never stops it."""
    utterance = "Où est l'hôtel de 大阪?"
    root = make_release(dev=[("shop", [(utterance, "SELECT nö FROM OrderDetails")])], databases={"shop": ORDERS})
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "evaluation.audit", "--benchmark", "demo", "--root", root, "--out", tmp_path / "o"]

    result = subprocess.run(command, capture_output=True, env=environment, cwd=REPOSITORY)

    assert 0 == result.returncode, result.stderr.decode()
    assert result.stdout.isascii()
    assert b"no such column: n?" in result.stdout
    assert utterance.encode() in (tmp_path / "o" / "set_aside.jsonl").read_bytes()
