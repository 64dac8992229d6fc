"""
The audit of a benchmark: every gold query is run once, and every turn gets a row that says what is wrong with it.

A fault makes a turn ungradable: it is set aside (never a training target, never scored) and listed. A flag is a remark;
the turn stays in. Turns keep their number, so a set-aside turn leaves a gap and shifts nothing.

    python -m evaluation.audit --benchmark cosql --root DIR [--out DIR]

prints the summary, with the gold queries scored as if they were predictions, and with --out writes audit.parquet (one
row per turn), databases.parquet (one row per database), set_aside.jsonl and summary.json. Exit status: 0 the audit ran,
whatever it found; 1 the data cannot be read; 2 wrong usage; 3 there was no turn to audit; 4 no turn could be judged (no
database can be opened, or the machine failed).
"""

import argparse
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from evaluation.audit_output import say, show, write
from evaluation.database_audit import DatabaseFacts, database_facts, database_table
from evaluation.execution_match import GOLD_LIMITS
from evaluation.gold_audit import Finding, GoldAuditor
from evaluation.gold_scores import gold_score_summary, score_gold
from evaluation.verdicts import Scorer
from text2sql.config import BenchmarkSettings, Settings
from text2sql.datasets import LAYOUTS, Benchmark, join_split_operators, load_benchmark, read_tables
from text2sql.dialogue import Turn
from text2sql.errors import InfrastructureError, Text2SqlError
from text2sql.executor import Executor, Limits

FAULTS: Mapping[str, str] = {
    "gold_empty_text": "the gold has no text",
    "gold_invalid": "SQLite refuses the gold; the message is SQLite's",
    "gold_timeout": "the gold runs longer than the limit for gold",
    "gold_too_large": "the gold returns more than the limits for results allow",
    "database_missing": "the database file is not there",
    "database_broken": "the database file is no SQLite database or is damaged",
}
FLAGS: Mapping[str, str] = {
    "gold_returns_nothing": "the gold runs and returns no row: any query that returns none matches it",
    "gold_not_official_readable": "the official evaluator's parser cannot read the gold: no exact match, no hardness",
    "undecodable_bytes": "the gold reads a table that holds text which is not UTF-8",
    "duplicate_dialogue": "an earlier dialogue has the same database, utterances and gold",
    "order_by_numeric_text": "ORDER BY, MIN or MAX on text that looks like numbers: sorted as text",
    "tie_cut_by_limit": "LIMIT cuts through tied rows: the data do not determine the answer",
    "word_read_as_text": "a double-quoted word that looks like a column matches none: SQLite reads it as text",
    "repaired_operator": "the release splits an operator (`> =`); it was joined",
    "corrected_gold": "the gold was replaced by the corrections file",
    "restored_utterance": "the utterance was restored from another copy of the data",
}
HARDNESS = ("easy", "medium", "hard", "extra")
AUDIT_SCHEMA: Mapping[str, pl.DataType] = {
    "item_id": pl.String(),
    "split": pl.String(),  # as released: train or dev
    "dialogue_id": pl.String(),
    "turn": pl.Int64(),  # from 1
    "db_id": pl.String(),
    "utterance": pl.String(),
    "gold": pl.String(),
    "gold_as_released": pl.String(),
    "repaired": pl.Boolean(),
    "fault": pl.String(),  # "" or one of FAULTS
    "severity": pl.String(),  # set_aside (has a fault) | flagged | ok
    "message": pl.String(),  # of the fault, in the words of SQLite or of the file system
    "rows": pl.Int64(),  # rows the gold returns; null when it did not run
    "hardness": pl.String(),  # of the official evaluator; null when it cannot read the gold
    "flags": pl.List(pl.String()),
}


def audit(
    benchmark: Benchmark,
    executor: Executor,
    *,
    limits: Limits = GOLD_LIMITS,
    facts: Mapping[str, DatabaseFacts] | None = None,
) -> pl.DataFrame:
    """
    One row per turn of every split that is there (`AUDIT_SCHEMA`). A query that several turns share is run once.
    `limits` bound the gold queries (their default is that of scoring); `facts` are those of `database_facts`, if they are at hand.

    Raises InfrastructureError when the machine fails: that is no finding about the data.
    """
    facts = database_facts(benchmark) if facts is None else facts
    entries = read_tables(benchmark.tables_json)
    golds: dict[str, dict[str, None]] = {db_id: {} for db_id in facts}
    for place, turn in _turns(benchmark):
        golds[place[2]][turn.gold] = None

    def findings(db_id: str) -> dict[str, Finding]:
        auditor = GoldAuditor(facts[db_id], entries.get(db_id), executor, limits)
        return dict(zip(golds[db_id], auditor.findings(list(golds[db_id])), strict=True))

    large_first = sorted(golds, key=lambda db_id: (-facts[db_id].bytes, db_id))  # so that no slow one is left for last
    with ThreadPoolExecutor(executor.workers) as pool:
        found = dict(zip(large_first, pool.map(findings, large_first), strict=True))
    duplicates = _duplicates(benchmark)
    rows = [
        _row(benchmark, place, turn, found[place[2]][turn.gold], place[1] in duplicates)
        for place, turn in _turns(benchmark)
    ]
    return pl.DataFrame(rows, schema=AUDIT_SCHEMA)


def _turns(benchmark: Benchmark) -> Iterator[tuple[tuple[str, str, str, int], Turn]]:
    """Each turn with its place (split, dialogue_id, db_id, turn from 1), in the order of the files, train first."""
    for split, dialogues in benchmark.splits.items():
        for dialogue in dialogues:
            for number, turn in enumerate(dialogue.turns, start=1):
                yield (split, dialogue.dialogue_id, dialogue.db_id, number), turn


def _duplicates(benchmark: Benchmark) -> set[str]:
    """Ids of dialogues that say the same, with the same gold, as an earlier one over the same database."""
    seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    repeated = set()
    for dialogues in benchmark.splits.values():
        for dialogue in dialogues:
            content = (dialogue.db_id, tuple((turn.utterance, turn.gold) for turn in dialogue.turns))
            if content in seen:
                repeated.add(dialogue.dialogue_id)
            seen.add(content)
    return repeated


def _row(
    benchmark: Benchmark,
    place: tuple[str, str, str, int],
    turn: Turn,
    finding: Finding,
    duplicate: bool,
) -> dict[str, Any]:
    split, dialogue_id, db_id, number = place
    joined = join_split_operators(turn.gold_as_released)
    of_turn = {
        "duplicate_dialogue": duplicate,
        "repaired_operator": joined != turn.gold_as_released,
        "corrected_gold": joined != turn.gold,
        "restored_utterance": (dialogue_id, number) in benchmark.restored,
    }
    flags = {*finding.flags, *(flag for flag, holds in of_turn.items() if holds)}
    return {
        "item_id": f"{dialogue_id}/{number}",
        "split": split,
        "dialogue_id": dialogue_id,
        "turn": number,
        "db_id": db_id,
        "utterance": turn.utterance,
        "gold": turn.gold,
        "gold_as_released": turn.gold_as_released,
        "repaired": of_turn["repaired_operator"],
        "fault": finding.fault,
        "severity": "set_aside" if finding.fault else "flagged" if flags else "ok",
        "message": finding.message,
        "rows": finding.rows,
        "hardness": finding.hardness,
        "flags": [flag for flag in FLAGS if flag in flags],
    }


def set_aside(table: pl.DataFrame) -> pl.DataFrame:
    """The turns that cannot be graded, with the reason, in the order of the files."""
    columns = ["item_id", "db_id", "fault", "message", "utterance", "gold_as_released"]
    return table.filter(pl.col("fault") != "").select(columns)


def audit_summary(
    table: pl.DataFrame, databases: pl.DataFrame | None = None, benchmark: Benchmark | None = None
) -> dict[str, Any]:
    """
    Counts for asset metadata and reports, as plain JSON values: for each split the dialogues, turns, gradable turns,
    and turns per fault, flag and hardness (`none`: not read). With `databases` (of `database_table`) and `benchmark`
    also what those say of the whole benchmark.
    """
    summary: dict[str, Any] = {
        "splits": {str(split): _split_summary(part) for (split,), part in table.group_by("split", maintain_order=True)},
        "sqlite_version": sqlite3.sqlite_version,
    }
    if databases is not None:
        readable = databases.filter(pl.col("fault") == "")
        undecodable = readable.filter(pl.col("undecodable").list.len() > 0)
        summary |= {
            "databases": databases.height,
            "databases_missing": databases.filter(pl.col("fault") == "database_missing")["db_id"].to_list(),
            "databases_broken": databases.filter(pl.col("fault") == "database_broken")["db_id"].to_list(),
            "databases_without_foreign_keys": readable.filter(pl.col("foreign_keys") == 0)["db_id"].to_list(),
            "undecodable_columns": dict(undecodable.select("db_id", "undecodable").iter_rows()),
            "empty_tables": int(readable["empty_tables"].list.len().sum()),
            "schema_warnings": int(readable["schema_warnings"].list.len().sum()),
        }
    if benchmark is not None:
        summary |= {
            "benchmark": benchmark.name,
            "corrections": benchmark.corrections.digest,
            "absent_splits": dict(benchmark.absent),
            "notes": list(benchmark.notes),
        }
    return summary


def _split_summary(part: pl.DataFrame) -> dict[str, Any]:
    faults = dict(part.filter(pl.col("fault") != "").group_by("fault").len().iter_rows())
    flags = dict(part.select(pl.col("flags").explode()).drop_nulls().group_by("flags").len().iter_rows())
    levels = dict(part.group_by(pl.col("hardness").fill_null("none")).len().iter_rows())
    return {
        "dialogues": part["dialogue_id"].n_unique(),
        "turns": part.height,
        "gradable": part.filter(pl.col("fault") == "").height,
        "faults": {fault: faults[fault] for fault in FAULTS if fault in faults},
        "flags": {flag: flags[flag] for flag in FLAGS if flag in flags},
        "hardness": {level: levels[level] for level in (*HARDNESS, "none") if level in levels},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m evaluation.audit", description="Audit the gold of a benchmark.")
    parser.add_argument("--benchmark", choices=list(LAYOUTS), required=True)
    parser.add_argument("--root", type=Path, metavar="DIR", help="the data; default: TEXT2SQL_DATA")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write tables, listings and summary.json there")
    parser.add_argument("--corrections", type=Path, metavar="YAML", help="apply this corrections file first")
    parser.add_argument("--timeout", type=float, default=GOLD_LIMITS.timeout_seconds, metavar="SECONDS")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="processes that run queries")
    options = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a console that cannot show a character gets a mark instead
    try:
        return _run(options)
    except InfrastructureError as error:
        Console(stderr=True).out(f"The machine failed, the audit did not end: {error}", highlight=False)
        return 4
    except Text2SqlError as error:
        Console(stderr=True).out(error, highlight=False)
        return 1


def _run(options: argparse.Namespace) -> int:
    corrections = str(options.corrections.resolve()) if options.corrections else None
    settings = BenchmarkSettings(name=options.benchmark, corrections=corrections)
    benchmark = load_benchmark(settings, options.root or Settings.from_environment().data)
    limits = replace(GOLD_LIMITS, timeout_seconds=options.timeout)
    with Executor(limits, workers=options.workers) as executor:
        facts = database_facts(benchmark)
        table = audit(benchmark, executor, limits=limits, facts=facts)
        scorer = Scorer(benchmark.database_root, benchmark.tables_json, executor, gold_limits=limits)
        scores = score_gold(table, scorer)
    databases = database_table(benchmark, facts)
    summary = audit_summary(table, databases, benchmark)
    aside = set_aside(table)
    summary["gold_scored_as_prediction"] = gold_score_summary(scores)
    if options.out:
        write(options.out, table, aside, databases, scores, summary)
    show(summary, aside, scores)
    if table.is_empty():
        say("0 turns: there was nothing to audit.")
        return 3
    say(f"{table.height:,} turns: {table.height - aside.height:,} gradable, {aside.height:,} set aside.")
    unopened = table.filter(pl.col("fault").str.starts_with("database_")).height
    return 4 if unopened == table.height else 0


if __name__ == "__main__":
    sys.exit(main())
