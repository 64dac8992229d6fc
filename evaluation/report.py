"""
A report on predictions: every total, what was left out and why, and what made the numbers.

    python -m evaluation.report PREDICTIONS.jsonl --database DIR --tables tables.json
                                [--gold GOLD.jsonl] [--suite] [--json OUT] [--markdown OUT]

reads turns and predictions (`evaluation.pairing` has the formats), judges each pair (`evaluation.verdicts`) and writes
the report as JSON and as Markdown, with --suite also suite EX beside EX (`evaluation.suite`); without --json and --markdown, Markdown goes to standard output. Exit status: 0 the
report was made; 1 the input cannot be read; 2 wrong usage; 3 there was no turn; 4 no turn could be judged.
"""

import argparse
import json
import sqlite3
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from evaluation.dialogue_scores import ScoredTurn, totals
from evaluation.error_taxonomy import ERROR_CLASSES, classify_error
from evaluation.pairing import AskedTurn, Pairing, read_pairing
from evaluation.report_text import markdown
from evaluation.suite import SUITE_RULES, Suite
from evaluation.verdicts import Pair, Scorer, add_suite_arguments, judge_pairs, suite_of
from text2sql.artifacts import file_digest
from text2sql.errors import DatabaseError, DataError
from text2sql.executor import Executor, Limits

# What each number follows; a rule that changes gets a new name here, so that old reports stay readable.
RULES = {
    "em": "taoyds/test-suite-sql-eval at e97acc54, values and DISTINCT ignored",
    "ex": "taoyds/test-suite-sql-eval at e97acc54, one database per id unless its folder holds a test suite",
    "em_sound": "1: the same clauses read with sqlglot, ON conditions and columns on the right side compared",
    "ex_suite": f"{SUITE_RULES}: EX, and the same on generated neighbours of the database (evaluation.neighbours)",
    "errors": "1: evaluation.error_taxonomy, over the golds of the earlier turns",
}


def make_report(
    pairing: Pairing, scorer: Scorer, *, corrections: str = "none", suite: Suite | None = None
) -> dict[str, Any]:
    """
    The report as plain JSON values: `totals`, `errors` (class to count, over wrong predictions), `pairing`, `ungraded`
    (turns that got no verdict on EX or EM, by name) and `made_with`. `corrections`: the hash of the corrections that
    the golds rest on. With `suite` the totals have suite EX.
    """
    pairs = [Pair(turn.id, turn.db_id, turn.gold, turn.pred) for turn in pairing.turns]
    verdicts = list(judge_pairs(pairs, scorer, suite=suite))
    scored = [_scored(turn, verdict) for turn, verdict in zip(pairing.turns, verdicts, strict=True)]
    return {
        "totals": totals(scored),
        "errors": _errors(pairing.turns, scored, scorer),
        "pairing": {
            "asked": len(pairing.turns),
            **{name: list(getattr(pairing, name)) for name in ("missing", "unknown", "repeated")},
        },
        "ungraded": [
            {"id": turn.id, "ex": score.ex, "em": score.em, "status": score.status, "reason": verdict["reason"]}
            for turn, score, verdict in zip(pairing.turns, scored, verdicts, strict=True)
            if score.ex is None or score.em is None
        ],
        "made_with": {
            "sqlite": sqlite3.sqlite_version,
            "python": sys.version.split()[0],
            "sqlglot": version("sqlglot"),
            "limits": {"prediction": asdict(scorer.executor.limits), "gold": asdict(scorer.gold_limits)},
            "rules": {name: rule for name, rule in RULES.items() if suite or name != "ex_suite"},
            "corrections": corrections,
        },
    }


def _scored(turn: AskedTurn, verdict: Mapping[str, Any]) -> ScoredTurn:
    """A missing prediction is a wrong answer here, where the official evaluator would stop."""
    unanswered = verdict["status"] == "no_answer"
    return ScoredTurn(
        turn.dialogue_id,
        turn.turn,
        turn.db_id,
        em=verdict["em"],
        ex=False if unanswered else verdict["ex"],
        em_sound=verdict["em_sound"],
        ex_keep_distinct=verdict["ex_keep_distinct"],
        hardness=verdict["hardness"],
        partial=verdict["partial"],
        status=verdict["status"],
        both_empty=bool(verdict["both_empty"]),
        gold_empty=bool(verdict["gold_empty"]),
        gold=turn.gold,
        pred=turn.pred,
        ex_suite=False if unanswered else verdict.get("ex_suite"),
        suite_status=verdict.get("suite_status") or "",
        suite_gold=verdict.get("suite_gold") or "",
    )


def _errors(turns: Sequence[AskedTurn], scored: Sequence[ScoredTurn], scorer: Scorer) -> dict[str, int]:
    """How many wrong predictions (by EX) have each error class; the golds of earlier turns are the history."""
    golds: dict[str, dict[int, str]] = {}
    for turn in turns:
        if turn.turn is not None:
            golds.setdefault(turn.dialogue_id, {})[turn.turn] = turn.gold
    counts: Counter[str] = Counter()
    for turn, score in zip(turns, scored, strict=True):
        if score.ex is False:
            own = golds.get(turn.dialogue_id, {})
            history = [own[number] for number in sorted(own) if turn.turn is not None and number < turn.turn]
            schema = scorer.schema(turn.db_id)
            counts[classify_error(turn.gold, turn.pred, history, schema, score.status)] += 1
    return {name: counts[name] for name in ERROR_CLASSES}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m evaluation.report", description="Report on predicted SQL.")
    parser.add_argument("predictions", type=Path, help="JSON Lines with id, dialogue, turn, db_id, gold, pred")
    parser.add_argument("--database", type=Path, required=True, metavar="DIR", help="holds <db_id>/<db_id>.sqlite")
    parser.add_argument("--tables", type=Path, required=True, metavar="tables.json")
    parser.add_argument("--gold", type=Path, help="golds in a file of their own; pairs are made by id")
    add_suite_arguments(parser)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the report as JSON")
    parser.add_argument("--markdown", type=Path, metavar="OUT", help="write the report as Markdown")
    parser.add_argument("--timeout", type=float, default=Limits.timeout_seconds, metavar="SECONDS")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="processes that run queries")
    arguments = parser.parse_args()
    try:
        pairing = read_pairing(arguments.predictions, arguments.gold)
        with ExitStack() as stack:
            limits = Limits(timeout_seconds=arguments.timeout)
            executor = stack.enter_context(Executor(limits, workers=arguments.workers))
            scorer = Scorer(arguments.database, arguments.tables, executor)
            report = make_report(pairing, scorer, suite=suite_of(arguments, executor, stack))
        report["made_from"] = _sources(arguments)
        _write(report, arguments.json, arguments.markdown)
    except (DataError, DatabaseError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return _summary(report)


def _sources(arguments: argparse.Namespace) -> dict[str, dict[str, str]]:
    files = {"predictions": arguments.predictions, "gold": arguments.gold, "tables": arguments.tables}
    return {role: {"file": path.name, "sha256": file_digest(path)} for role, path in files.items() if path is not None}


def _write(report: Mapping[str, Any], json_path: Path | None, markdown_path: Path | None) -> None:
    text = markdown(report)
    if json_path is not None:
        json_path.write_text(json.dumps(report, ensure_ascii=False, allow_nan=False, indent=1) + "\n", encoding="utf-8")
    if markdown_path is not None:
        markdown_path.write_text(text, encoding="utf-8")
    if json_path is None and markdown_path is None:
        sys.stdout.buffer.write(text.encode())


def _summary(report: Mapping[str, Any]) -> int:
    """The exit status; to standard error what does not fit, and the counts as the last line."""
    paired, scores = report["pairing"], report["totals"]
    for name in ("missing", "unknown", "repeated"):
        if paired[name]:
            sys.stderr.write(f"{len(paired[name])} {name}: {', '.join(paired[name][:10])}\n")
    unjudged = [turn for turn in report["ungraded"] if turn["status"] in ("database", "infrastructure")]
    if unjudged:
        sys.stderr.write(f"{unjudged[0]['id']}: {unjudged[0]['reason']}\n")
    sys.stderr.write(
        f"{scores['turns']:,} turns: EX {scores['ex_right']:,}, EM {scores['em_right']:,}, no answer "
        f"{scores['no_answer']:,}, gold not gradable by EX {scores['ex_ungraded'] - len(unjudged):,}, not judged "
        f"{len(unjudged):,}\n"
    )
    if not paired["asked"]:
        return 3
    return 4 if len(unjudged) == paired["asked"] else 0


if __name__ == "__main__":
    sys.exit(main())
