"""
The one judge: selection, rewards, reports and this command line all ask `Scorer`.

    python -m evaluation.verdicts PAIRS.jsonl --database DIR --tables tables.json [--keep-distinct] [--suite]
                                  [--workers N]

reads one JSON object a line, {"id", "db_id", "gold", "pred"} (`-`: standard input; other keys are ignored; pred null or
"" is no answer), and writes one a line in the same order: {"id", "em", "em_sound", "ex", "ex_keep_distinct",
"hardness", "partial", "status", "reason", "both_empty", "gold_empty"}. em and ex are null where the official evaluator
would stop with an exception. With --suite each line also has {"ex_suite", "suite_status", "suite_gold",
"suite_left_out", "suite_reason"}: is the prediction right on generated neighbours of its database, too
(`evaluation.suite`)? Further .sqlite files in a database's folder are another thing: they are part of EX, with and
without --suite. Pairing is by line, so an id that occurs twice is refused. Progress and, as the last line,
the counts go to standard error. Exit status: 0 pairs were judged, however they came out; 1 the input cannot be read;
2 wrong usage; 3 there was no pair; 4 no pair could be judged (no database can be opened, or the machine failed).
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from evaluation.clauses import Tables, clause_f1
from evaluation.exact_match import EvaluatorSchema, ExactMatch, exact_match, load_schema
from evaluation.execution_match import (
    GOLD_LIMITS,
    ExecutionVerdict,
    asked_for,
    execution_match,
    official_prediction,
    official_text,
)
from evaluation.sound import exact_match_sound
from evaluation.suite import Suite
from text2sql.datasets import read_tables
from text2sql.errors import DatabaseError, DataError, InfrastructureError
from text2sql.executor import Execution, Executor, Limits, Query, check_sqlite_file, is_sqlite_file
from text2sql.schema import Schema, read_schema
from text2sql.textfiles import json_line

# Of the rules that verdicts follow (evaluation.report.RULES names them). It is part of the fingerprint of every stage that
# judges: raise it when a verdict can come out otherwise, and no artifact that rests on old verdicts is used again.
METRIC_VERSION = "1"

T = TypeVar("T")
V = TypeVar("V", "Verdict", "Outcome")
Key = tuple[str, str, str]  # database, gold, prediction
KEPT_VERDICTS = 50_000
BATCH = 32  # pairs whose queries run together
SUITE_KEYS = ("ex_suite", "suite_status", "suite_gold", "suite_left_out", "suite_reason")


@dataclass(frozen=True)
class Verdict:
    """
    What is said of one pair. `em` None: the official evaluator raises. `ex` None: the gold cannot be run (see `status`,
    the words of `evaluation.execution_match`). No answer is wrong: em and ex False, status `no_answer`. `em_sound`: the
    same clauses, however spelt. `both_empty`: gold and prediction returned nothing; `gold_empty`: gold did.
    """

    em: bool | None
    em_sound: bool | None
    ex: bool | None
    ex_keep_distinct: bool | None
    hardness: str | None
    partial: Mapping[str, list[int]] | None
    status: str
    reason: str | None
    both_empty: bool = False
    gold_empty: bool = False


@dataclass(frozen=True)
class Outcome:
    """What rewards ask of a pair: the fields of `Verdict` that the two official measures need, and nothing beside."""

    em: bool | None
    ex: bool | None
    hardness: str | None
    status: str


class Scorer:
    """Judges predictions over the databases `<database_root>/<db_id>/<db_id>.sqlite`. Safe to use from threads."""

    def __init__(
        self, database_root: Path, tables_json: Path, executor: Executor, *, gold_limits: Limits = GOLD_LIMITS
    ) -> None:
        self.database_root = database_root
        self.tables_json = tables_json
        self.executor = executor
        self.gold_limits = gold_limits
        self._databases: dict[str, tuple[Path, ...]] = {}
        self._schemas: dict[str, EvaluatorSchema] = {}
        self._structures: dict[str, Schema] = {}
        self._verdicts: dict[Key, Verdict] = {}
        self._outcomes: dict[Key, Outcome] = {}

    def verdict(self, db_id: str, gold: str, pred: str | None) -> Verdict:
        """EM and EX of one pair. Raises DatabaseError, DataError and InfrastructureError, never for the SQL."""
        return _kept(self._verdicts, (db_id, gold, pred or ""), self._judge)

    def outcome(self, db_id: str, gold: str, pred: str | None) -> Outcome:
        """The same verdict as far as rewards need it, at half the cost. Raises as `verdict`."""
        return _kept(self._outcomes, (db_id, gold, pred or ""), self._outcome)

    def queries(self, db_id: str, gold: str, pred: str | None, *, replace_value: bool = True) -> list[Query]:
        """What judging a pair asks the executor for; nothing where there is no database, which judging reports."""
        try:
            databases = self.databases(db_id)
        except DatabaseError:
            return []
        return asked_for(gold, pred or "", databases, replace_value=replace_value, gold_limits=self.gold_limits)

    def ahead(
        self,
        things: Iterable[T],
        pair: Callable[[T], tuple[str, str, str | None]],
        *,
        replace_value: bool = True,
    ) -> Iterator[T]:
        """
        `things` in their order, for a caller that judges one after the other: the queries of the next batches run
        meanwhile, those of a thing when it is given out have run. `pair` is what will be judged of a thing: (db_id,
        gold, prediction). Verdicts are what they are without it.
        """
        return self.executor.ahead(things, lambda thing: self.queries(*pair(thing), replace_value=replace_value))

    def execution_match(
        self, db_id: str, gold: str, pred: str, *, keep_distinct: bool = False, replace_value: bool = True
    ) -> ExecutionVerdict:
        """EX of one pair by rule `official`; see `evaluation.execution_match`."""
        return execution_match(
            gold,
            pred,
            self.databases(db_id),
            self.executor,
            keep_distinct=keep_distinct,
            replace_value=replace_value,
            gold_limits=self.gold_limits,
        )

    def database(self, db_id: str) -> Path:
        """The database's own file, checked to be one. Raises DatabaseError."""
        return self.databases(db_id)[0]

    def databases(self, db_id: str) -> tuple[Path, ...]:
        """
        The database's own file and, as the official evaluator has it, every other SQLite file in its folder: a test
        suite. Files that are no SQLite databases (archive stubs) are left out.
        """
        if db_id not in self._databases:
            folder = self.database_root / db_id
            own = folder / f"{db_id}.sqlite"
            check_sqlite_file(own)
            others = (path for path in sorted(folder.iterdir()) if ".sqlite" in path.name and path != own)
            self._databases[db_id] = (own, *(path for path in others if is_sqlite_file(path)))
        return self._databases[db_id]

    def schema(self, db_id: str) -> EvaluatorSchema:
        """What exact match reads of the database; one object per database, since parsed golds are kept by it."""
        if db_id not in self._schemas:
            self._schemas.setdefault(db_id, load_schema(self.database(db_id), self._entries.get(db_id)))
        return self._schemas[db_id]

    def structure(self, db_id: str) -> Schema:
        """The database's tables, columns and keys, those of tables.json included."""
        if db_id not in self._structures:
            self._structures[db_id] = read_schema(self.database(db_id), self._entries.get(db_id))
        return self._structures[db_id]

    def clause_f1(self, db_id: str, gold: str, pred: str) -> dict[str, float]:
        """F1 per clause, with the database's columns to settle names; {} when the gold cannot be read."""
        schema = self.schema(db_id)
        tables: Tables = tuple(schema.ordered_columns.items())
        return clause_f1(gold, pred, tables)

    def gold_execution(self, db_id: str, gold: str) -> Execution:
        """The gold's result on the database's own file, as EX runs it (without DISTINCT), within gold's limits."""
        return self.executor.execute(official_text(gold), self.database(db_id), limits=self.gold_limits)

    def plain_execution_match(self, db_id: str, gold: str, pred: str) -> bool:
        """EX as MTSQL-R1's copy of the evaluator has it: `value` stays, a gold that fails scores 0."""
        return bool(self.execution_match(db_id, gold, pred, replace_value=False).ex)

    @cached_property
    def _entries(self) -> Mapping[str, Mapping[str, Any]]:
        return read_tables(self.tables_json)

    def _outcome(self, db_id: str, gold: str, pred: str) -> Outcome:
        if known := self._verdicts.get((db_id, gold, pred)):
            return Outcome(known.em, known.ex, known.hardness, known.status)
        exact = exact_match(gold, pred, self.schema(db_id))
        execution = self.execution_match(db_id, gold, pred)
        ex = execution.ex if execution.status != "no_answer" else False
        return Outcome(exact.em, ex, exact.hardness, execution.status)

    def _judge(self, db_id: str, gold: str, pred: str) -> Verdict:
        exact = exact_match(gold, pred, self.schema(db_id))
        execution = self.execution_match(db_id, gold, pred)
        gold_run = self.gold_execution(db_id, gold)
        keep_distinct = execution
        if _distinct_matters(gold, pred):
            keep_distinct = self.execution_match(db_id, gold, pred, keep_distinct=True)
        answered = execution.status != "no_answer"
        return Verdict(
            em=exact.em,
            em_sound=exact_match_sound(gold, pred, self.schema(db_id)) if answered else False,
            ex=execution.ex if answered else False,
            ex_keep_distinct=keep_distinct.ex if answered else False,
            hardness=exact.hardness,
            partial=exact.partial,
            status=execution.status,
            reason=_reason(exact, execution),
            both_empty=execution.both_empty,
            gold_empty=gold_run.status == "empty",
        )


def _kept(known: dict[Key, V], key: Key, judge: Callable[[str, str, str], V]) -> V:
    """`judge` of a pair, once. A time-out is not kept: a busy machine can be its reason, and the next time may tell."""
    found = known.get(key)
    if found is None:
        found = judge(*key)
        if "timeout" not in found.status:
            if len(known) >= KEPT_VERDICTS:
                known.clear()
            known[key] = found
    return found


def _distinct_matters(gold: str, pred: str) -> bool:
    return official_text(gold) != official_text(gold, True) or official_prediction(pred) != official_prediction(
        pred, True
    )


def _reason(exact: ExactMatch, execution: ExecutionVerdict) -> str | None:
    said = [f"EM: {exact.reason}" if exact.reason else "", f"EX: {execution.message}" if execution.message else ""]
    return "; ".join(filter(None, said)) or None


@dataclass(frozen=True)
class Pair:
    """One line of the command line's input."""

    id: str | int
    db_id: str
    gold: str
    pred: str | None


def read_pairs(lines: Iterable[str]) -> list[Pair]:
    """Raises DataError: names the line and the key that is wrong, or the id that occurs twice."""
    pairs: list[Pair] = []
    seen: set[str | int] = set()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise DataError(f"line {number} is no JSON ({error}); expected one object a line.") from None
        if not isinstance(value, dict):
            raise DataError(f"line {number} is no JSON object; expected the keys id, db_id, gold, pred.")
        pair = Pair(value.get("id", ""), value.get("db_id", ""), value.get("gold", ""), value.get("pred"))
        texts = {"db_id": pair.db_id, "gold": pair.gold, "pred": pair.pred or ""}
        for key, found in texts.items():
            if key not in value or not isinstance(found, str):
                raise DataError(f"line {number}: {key} is {value.get(key, 'missing')!r}; expected a text.")
        if "id" not in value or not isinstance(pair.id, str | int) or pair.id in seen:
            problem = "occurs twice" if pair.id in seen else "is missing or no text"
            raise DataError(f"line {number}: id {pair.id!r} {problem}; ids tell which verdict is whose.")
        seen.add(pair.id)
        pairs.append(pair)
    return pairs


def judge_pairs(
    pairs: Sequence[Pair], scorer: Scorer, *, keep_distinct: bool = False, suite: Suite | None = None
) -> Iterator[dict[str, Any]]:
    """
    The output objects, in order. As the official evaluator raises on an empty prediction, its ex is null. A pair whose
    database cannot be read or on which the machine fails has only nulls, and status `database` or `infrastructure`.
    With `suite` each has SUITE_KEYS, too.
    """

    def judge(pair: Pair) -> dict[str, Any]:
        try:
            verdict = asdict(scorer.verdict(pair.db_id, pair.gold, pair.pred))
            if keep_distinct:
                verdict["ex"] = verdict["ex_keep_distinct"]
            elif verdict["status"] == "no_answer":
                verdict["ex"] = None
            if suite is not None:
                verdict |= on_neighbours(pair, verdict["ex"], suite)
        except (DatabaseError, InfrastructureError) as error:
            status = "database" if isinstance(error, DatabaseError) else "infrastructure"
            keys = (*Verdict.__dataclass_fields__, *(SUITE_KEYS if suite else ()))
            nothing: dict[str, Any] = dict.fromkeys(keys)
            return {"id": pair.id, **nothing, "status": status, "reason": str(error)}
        return {"id": pair.id, **verdict}

    def on_neighbours(pair: Pair, ex: bool | None, suite: Suite) -> dict[str, Any]:
        found = suite.verdict(scorer.structure(pair.db_id), pair.gold, pair.pred, ex, keep_distinct=keep_distinct)
        values = (found.ex_suite, found.status, found.gold, found.left_out, found.reason)
        return dict(zip(SUITE_KEYS, values, strict=True))

    def judge_batch(batch: Sequence[Pair]) -> list[dict[str, Any]]:
        queries = [query for pair in batch for query in scorer.queries(pair.db_id, pair.gold, pair.pred)]
        scorer.executor.start_many(queries).finish()
        return [judge(pair) for pair in batch]

    batches = [pairs[start : start + BATCH] for start in range(0, len(pairs), BATCH)]
    with ThreadPoolExecutor(scorer.executor.workers + 1) as threads:  # one compares while the others wait for results
        for verdicts in threads.map(judge_batch, batches):
            yield from verdicts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m evaluation.verdicts", description="EM and EX of pairs of SQL.")
    parser.add_argument("pairs", help="JSON Lines with id, db_id, gold, pred; - for standard input")
    parser.add_argument("--database", type=Path, required=True, metavar="DIR", help="holds <db_id>/<db_id>.sqlite")
    parser.add_argument("--tables", type=Path, required=True, metavar="tables.json")
    parser.add_argument("--keep-distinct", action="store_true", help="let `ex` be the verdict with DISTINCT kept")
    add_suite_arguments(parser)
    parser.add_argument("--timeout", type=float, default=Limits.timeout_seconds, metavar="SECONDS")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="processes that run queries")
    arguments = parser.parse_args()
    try:
        pairs = _read(arguments.pairs)
        with ExitStack() as stack:
            limits = Limits(timeout_seconds=arguments.timeout)
            executor = stack.enter_context(Executor(limits, workers=arguments.workers))
            scorer = Scorer(arguments.database, arguments.tables, executor)
            suite = suite_of(arguments, executor, stack)
            verdicts = judge_pairs(pairs, scorer, keep_distinct=arguments.keep_distinct, suite=suite)
            counts = _write(verdicts, len(pairs))
    except (DataError, OSError) as error:
        _say(str(error))
        return 1
    failed = counts["database"] + counts["infrastructure"]
    _say(_summary(counts, len(pairs), arguments.suite))
    if not pairs:
        return 3
    return 4 if failed == len(pairs) else 0


def add_suite_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--suite",
        action="store_true",
        help="judge predictions that are right by EX on generated neighbour databases, too (suite EX). Not the official "
        "test suites: those are further .sqlite files in a database's folder, and part of EX anyway",
    )
    parser.add_argument("--suite-seed", type=int, default=0, metavar="N", help="another N gives other neighbours")
    parser.add_argument(
        "--suite-cache",
        type=Path,
        metavar="DIR",
        help="keep the neighbours here for the next time (without it they are deleted); not in a database's folder",
    )


def suite_of(arguments: argparse.Namespace, executor: Executor, stack: ExitStack) -> Suite | None:
    """The suite that the command line asks for; neighbours that are not to be kept are deleted when `stack` ends."""
    if not arguments.suite:
        return None
    folder = arguments.suite_cache or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="neighbours-")))
    return Suite(executor, folder, seed=arguments.suite_seed)


def _read(name: str) -> list[Pair]:
    raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    try:
        return read_pairs(raw.decode("utf-8").split("\n"))  # splitlines() would also split inside JSON strings
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8: {error}") from None


def _write(verdicts: Iterable[Mapping[str, Any]], total: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for number, verdict in enumerate(verdicts, start=1):
        sys.stdout.buffer.write(json_line(verdict))
        counts[verdict["status"]] += 1
        counts["EM"] += verdict["em"] is True
        counts["EX"] += verdict["ex"] is True
        counts["suite EX"] += verdict.get("ex_suite") is True
        if number % 1000 == 0:
            sys.stdout.buffer.flush()
            _say(f"{number:,} of {total:,} pairs")
    sys.stdout.buffer.flush()
    return counts


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def _summary(counts: Counter[str], total: int, suite: bool) -> str:
    measures = ("EM", "EX", "suite EX") if suite else ("EM", "EX")
    right = ", ".join(f"{name} {counts[name]:,}" for name in measures)
    by_status = ", ".join(
        f"{status} {count}" for status, count in sorted(counts.items()) if status not in ("EM", "EX", "suite EX")
    )
    return f"{total:,} pairs: {right}; {by_status or 'nothing to judge'}"


if __name__ == "__main__":
    sys.exit(main())
