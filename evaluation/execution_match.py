"""
Execution match (EX): do gold and prediction return the same?

Rule `official` agrees with the official Spider/SParC/CoSQL evaluator (taoyds/test-suite-sql-eval at e97acc54, `--etype
exec` with its defaults) pair for pair. Where it would stop the whole run, the pair gets a verdict of its own:

    status           ex      when
    right, wrong     T / F
    pred_error       False   the database refuses the prediction (also: it would write)
    pred_timeout     False   the prediction passes its deadline (the official evaluator waits)
    pred_too_large   False   the prediction passes a limit on rows, bytes or memory
    no_answer        None    the prediction is empty: the official evaluator raises (False with `keep_distinct`)
    gold_failed      None    the database refuses the gold: the official evaluator stops
    gold_timeout     None    the gold passes its own, longer deadline
    gold_too_large   None    the gold passes a limit
    undecided        None    the results have so many alike columns that the comparison was given up

The other rules are reported under their own names and never in place of the official one:

    sound       the statements as written, DISTINCT kept; row order counts if the gold has ORDER BY at its top level (it
                is parsed, not searched); equal numbers are equal wherever they stand
    tie_aware   as sound, and right too if the prediction gives another answer that the gold's ORDER BY and LIMIT admit
                (columns in the order given): the data do not say which of tied rows come first, or come at all
    bird        BIRD's: the statements as written, results compared as sets of rows, columns in the order given

"As written" is but for one thing: split operators (`> =`) of the releases are joined, outside strings.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from sqlparse.engine import FilterStack

from evaluation.result_match import UndecidedError, official_match, set_match, value_match
from text2sql.datasets import join_split_operators
from text2sql.executor import Execution, Executor, Limits, Query

Rule = Literal["official", "sound", "tie_aware", "bird"]
Status = Literal[
    "right",
    "wrong",
    "pred_error",
    "pred_timeout",
    "pred_too_large",
    "no_answer",
    "gold_failed",
    "gold_timeout",
    "gold_too_large",
    "undecided",
]

# Gold is trusted and run once: a longer deadline than a prediction's, and room for every row.
GOLD_LIMITS = Limits(
    timeout_seconds=60.0,
    max_rows=1_000_000,
    max_cell_bytes=64 * 2**20,
    max_result_bytes=256 * 2**20,
    memory_bytes=2**30,
)

_GOLD_STATUS: dict[str, Status] = {"error": "gold_failed", "timeout": "gold_timeout", "too_large": "gold_too_large"}
_PRED_STATUS: dict[str, Status] = {"error": "pred_error", "timeout": "pred_timeout", "too_large": "pred_too_large"}
_SPLIT_OPERATOR = re.compile(r"([<>!]) =")
_CURRENT_YEAR = re.compile(r"YEAR\s*\(\s*CURDATE\s*\(\s*\)\s*\)\s*", re.IGNORECASE)
_NEEDS_SPLITTER = re.compile(r";|distinct|\bgo\b", re.IGNORECASE)
# one statement whose words, strings and operators sqlparse cannot read in any other way
_PLAIN = re.compile(r"""(?:[\w\s()*,.<>=!+/-]++|'[^'\\]*'|"[^"\\]*")*+;?[ ]*\Z""", re.ASCII)
_STRING_OR_DISTINCT = re.compile(r"""('[^'\\]*'|"[^"\\]*")|\bdistinct\b""", re.IGNORECASE | re.ASCII)
_SPECIAL = re.compile(r"--|/\*|\bgo\b|\ddistinct", re.IGNORECASE)


@dataclass(frozen=True)
class ExecutionVerdict:
    """
    See the module's table. `both_empty`: gold and prediction returned no row, on every database. `message` is the
    database's own words for a failed query, or says what differs.
    """

    ex: bool | None
    status: Status
    both_empty: bool = False
    message: str | None = None


def execution_match(
    gold: str,
    pred: str,
    databases: Sequence[Path],
    executor: Executor,
    *,
    keep_distinct: bool = False,
    rule: Rule = "official",
    replace_value: bool = True,
    limits: Limits | None = None,
    gold_limits: Limits = GOLD_LIMITS,
) -> ExecutionVerdict:
    """
    The verdict on one pair. Several `databases` are a test suite: the prediction must be right on each. `limits` are
    the prediction's (default: the executor's). `keep_distinct` and `replace_value` (the letters `value` in the
    prediction become `1`; MTSQL-R1's copy of the evaluator leaves that out) apply to rule `official`.
    Raises DatabaseError and InfrastructureError.
    """
    official = rule == "official"
    if official:
        gold, pred = official_text(gold, keep_distinct), official_prediction(pred, keep_distinct, replace_value)
    else:
        gold, pred = join_split_operators(gold), join_split_operators(pred)
    limits = limits or executor.limits
    both_empty = True
    for database in databases:
        gold_run = executor.execute(gold, database, limits=gold_limits)
        if gold_run.status in _GOLD_STATUS:
            return ExecutionVerdict(None, _GOLD_STATUS[gold_run.status], message=gold_run.message)
        if not pred.strip():
            return ExecutionVerdict(False if keep_distinct or not official else None, "no_answer")
        pred_run = (
            gold_run if pred == gold else _run_prediction(pred, database, executor, limits, gold_run, gold_limits)
        )
        if pred_run.status in _PRED_STATUS:
            return ExecutionVerdict(False, _PRED_STATUS[pred_run.status], message=pred_run.message)
        try:
            same = _same(gold, gold_run, pred_run, rule)
        except UndecidedError as error:
            return ExecutionVerdict(None, "undecided", message=str(error))
        if not same and rule == "tie_aware":
            same = _admitted(gold, pred_run, database, executor, gold_limits)
        if not same:
            return ExecutionVerdict(False, "wrong", message=_difference(gold_run, pred_run))
        both_empty = both_empty and not gold_run.rows and not pred_run.rows
    return ExecutionVerdict(True, "right", both_empty)


def asked_for(
    gold: str,
    pred: str,
    databases: Sequence[Path],
    *,
    replace_value: bool = True,
    limits: Limits | None = None,
    gold_limits: Limits = GOLD_LIMITS,
) -> list[Query]:
    """
    What `execution_match` by rule `official` is going to ask for, which runs faster when it is many pairs' together
    (`Executor.start_many`, `Executor.ahead`).
    """
    gold, pred = official_text(gold), official_prediction(pred, replace_value=replace_value)
    queries: list[Query] = [(gold, database, gold_limits) for database in databases]
    if pred != gold and pred.strip():
        queries += [(pred, database, limits) for database in databases]
    return queries


@lru_cache(maxsize=16_384)
def official_text(sql: str, keep_distinct: bool = False) -> str:
    """
    The text that the official evaluator executes: split operators joined (one blank, inside strings too); unless
    `keep_distinct`, only the first statement, without the word DISTINCT; YEAR(CURDATE()) as 2020.
    """
    sql = _SPLIT_OPERATOR.sub(r"\1=", sql)
    if not keep_distinct:
        sql = _first_statement_without_distinct(sql)
    return _CURRENT_YEAR.sub("2020", sql)


def official_prediction(sql: str, keep_distinct: bool = False, replace_value: bool = True) -> str:
    """The same for a prediction, in which the letters `value` become `1` before anything else."""
    return official_text(sql.replace("value", "1") if replace_value else sql, keep_distinct)


def _first_statement_without_distinct(sql: str) -> str:
    """What sqlparse's tokens make of it. Most texts are so plain that two searches give the same, 20 times as fast."""
    if not _NEEDS_SPLITTER.search(sql):
        return sql
    if _PLAIN.match(sql) and not _SPECIAL.search(sql):
        return _STRING_OR_DISTINCT.sub(lambda match: match[1] or "", sql)
    statement = next(iter(FilterStack().run(sql)), None)
    if statement is None:
        return ""
    return "".join(token.value for token in statement.tokens if token.value.lower() != "distinct")


def _run_prediction(
    pred: str, database: Path, executor: Executor, limits: Limits, gold: Execution, gold_limits: Limits
) -> Execution:
    """A prediction may return as many rows as its gold, even beyond its own limit."""
    if len(gold.rows) >= limits.max_rows:
        limits = Limits(
            limits.timeout_seconds,
            gold_limits.max_rows,
            gold_limits.max_cell_bytes,
            gold_limits.max_result_bytes,
            gold_limits.memory_bytes,
        )
    return executor.execute(pred, database, limits=limits)


def _same(gold_sql: str, gold: Execution, pred: Execution, rule: Rule) -> bool:
    if rule == "bird":
        return set_match(gold.rows, pred.rows)
    if rule != "official":
        return value_match(gold.rows, pred.rows, orders_its_rows(gold_sql))
    return official_match(gold.rows, pred.rows, "order by" in gold_sql.lower())


def _admitted(gold_sql: str, pred: Execution, database: Path, executor: Executor, gold_limits: Limits) -> bool:
    from evaluation.ties import admits, order_probe  # sqlglot: only these rules need it

    probe = order_probe(gold_sql)
    if probe is None:
        return False
    answers = executor.execute(probe.sql, database, limits=gold_limits)
    return answers.status in ("ok", "empty") and admits(probe, answers.rows, pred.rows)


@lru_cache(maxsize=8192)
def orders_its_rows(sql: str) -> bool:
    """Has the query an ORDER BY at its top level? A query that sqlglot cannot read is searched for the words."""
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        return bool(sqlglot.parse_one(sql, read="sqlite").args.get("order"))
    except (SqlglotError, RecursionError):
        return bool(re.search(r"order\s+by", sql, re.IGNORECASE))


def _difference(gold: Execution, pred: Execution) -> str:
    """What differs, in a few words, for reports."""
    if len(gold.rows) != len(pred.rows):
        return f"{len(pred.rows):,} rows where gold has {len(gold.rows):,}"
    if gold.rows and len(gold.rows[0]) != len(pred.rows[0]):
        return f"{len(pred.rows[0])} columns where gold has {len(gold.rows[0])}"
    return "other values, or another order"
