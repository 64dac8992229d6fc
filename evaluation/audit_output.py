"""What `python -m evaluation.audit` prints and writes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
from rich import box
from rich.console import Console
from rich.table import Table

from evaluation.gold_scores import short_of_full_marks


def write(
    out: Path,
    table: pl.DataFrame,
    aside: pl.DataFrame,
    databases: pl.DataFrame,
    scores: pl.DataFrame,
    summary: Mapping[str, Any],
) -> None:
    """Replaces what an earlier audit left in the folder."""
    out.mkdir(parents=True, exist_ok=True)
    table.write_parquet(out / "audit.parquet")
    databases.write_parquet(out / "databases.parquet")
    scores.write_parquet(out / "gold_scores.parquet")
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in aside.iter_rows(named=True)]
    (out / "set_aside.jsonl").write_text("".join(lines), encoding="utf-8")
    text = json.dumps(summary, ensure_ascii=False, indent=1, allow_nan=False)
    (out / "summary.json").write_text(text + "\n", encoding="utf-8")


def show(summary: Mapping[str, Any], aside: pl.DataFrame, scores: pl.DataFrame) -> None:
    """The counts as a table, then what has to be named one by one."""
    console = Console()
    splits = summary["splits"]
    shown = Table("", *splits, box=box.SIMPLE)
    for name in ("dialogues", "turns", "gradable"):
        shown.add_row(name, *(f"{split[name]:,}" for split in splits.values()))
    for kind in ("faults", "flags", "hardness"):
        shown.add_section()
        names = dict.fromkeys(name for split in splits.values() for name in split[kind])
        for name in names:
            shown.add_row(name, *(f"{split[kind].get(name, 0):,}" for split in splits.values()))
    console.print(shown)
    for split, marks in summary["gold_scored_as_prediction"].items():
        say(f"gold scored as prediction, {split}: EX {marks['ex']:,}, EM {marks['em']:,} of {marks['scored']:,}")
    in_order = scores.filter(~pl.col("item_id").is_in(aside["item_id"].to_list()))  # the others are named below
    for item_id, _, ex, em, status, reason in short_of_full_marks(in_order).iter_rows():
        say(f"  {item_id}: EX {_mark(ex)}, EM {_mark(em)} ({status}{': ' + reason if reason else ''})")
    for name in ("databases_missing", "databases_broken", "databases_without_foreign_keys"):
        if summary[name]:
            say(f"{name.replace('_', ' ')}: {', '.join(summary[name])}")
    for db_id, columns in summary["undecodable_columns"].items():
        say(f"text that is not UTF-8 in {db_id}: {', '.join(columns)}")
    for note in (*summary["absent_splits"].values(), *summary["notes"]):
        say(note)
    say(f"corrections: {summary['corrections']}; SQLite {summary['sqlite_version']}")
    for item_id, db_id, fault, message in aside.select("item_id", "db_id", "fault", "message").iter_rows():
        if not fault.startswith("database_"):
            say(f"set aside: {item_id} ({db_id}) {fault}: {message}")


def say(text: str) -> None:
    Console().out(text, highlight=False)


def _mark(verdict: bool | None) -> str:
    return {True: "right", False: "wrong", None: "none"}[verdict]
