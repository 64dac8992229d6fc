"""The finding on one gold query: does it run, what does it return, how hard is it, what is doubtful about it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluation.database_audit import DatabaseFacts, quoted
from evaluation.exact_match import EvaluatorSchema, hardness, load_schema
from evaluation.gold_flags import cuts_a_tie, parse, sort_key_columns, tie_probes
from text2sql.errors import DatabaseError
from text2sql.executor import Execution, Executor, Limits
from text2sql.schema import Schema, read_only

SAMPLED_VALUES = 1_000  # different values of a column that are looked at to call it numeric text

BATCH = 16  # queries sent to a worker together; their results are in memory at once

_RAN = ("ok", "empty")
_FAULTS = {"error": "gold_invalid", "timeout": "gold_timeout", "too_large": "gold_too_large"}


@dataclass(frozen=True)
class Finding:
    """What is known of one gold query on one database."""

    fault: str = ""
    message: str = ""
    rows: int | None = None
    hardness: str | None = None
    flags: tuple[str, ...] = ()


class GoldAuditor:
    """Judges the gold queries of one database."""

    def __init__(
        self, facts: DatabaseFacts, entry: Mapping[str, Any] | None, executor: Executor, limits: Limits
    ) -> None:
        self.facts = facts
        self.executor = executor
        self.limits = limits
        self.undecodable = {table for table, _ in facts.undecodable}
        self.numeric_text: dict[tuple[str, str], bool] = {}
        self.evaluator_schema: EvaluatorSchema | None = load_schema(facts.path, entry) if facts.schema else None

    def findings(self, golds: Sequence[str]) -> Iterator[Finding]:
        """One finding per gold, in order. Raises InfrastructureError when the machine fails."""
        if self.facts.schema is None or self.evaluator_schema is None:
            yield from (Finding(self.facts.fault, self.facts.message) for _ in golds)
            return
        for start in range(0, len(golds), BATCH):
            batch = golds[start : start + BATCH]
            try:
                executions = self._execute(batch)
            except DatabaseError as error:
                yield from (Finding("database_broken", str(error)) for _ in batch)
                continue
            runs = [gold for gold, execution in zip(batch, executions, strict=True) if execution.status in _RAN]
            doubts = dict(zip(runs, self._doubts(runs, self.facts.schema), strict=True))
            for gold, execution in zip(batch, executions, strict=True):
                yield self._finding(gold, execution, doubts.get(gold, []), self.evaluator_schema)

    def _execute(self, queries: Sequence[str]) -> list[Execution]:
        return self.executor.execute_many([(sql, self.facts.path) for sql in queries], limits=self.limits)

    def _finding(self, gold: str, execution: Execution, doubts: list[str], schema: EvaluatorSchema) -> Finding:
        if not gold.strip():
            return Finding("gold_empty_text", "the query is empty")
        level = hardness(gold, schema)
        flags = [] if level else ["gold_not_official_readable"]
        if execution.status not in _RAN:
            return Finding(_FAULTS[execution.status], execution.message or "", hardness=level, flags=tuple(flags))
        if not execution.rows:
            flags.append("gold_returns_nothing")
        if execution.hint:
            flags.append("word_read_as_text")
        return Finding(rows=len(execution.rows), hardness=level, flags=(*flags, *doubts))

    def _doubts(self, golds: Sequence[str], schema: Schema) -> list[list[str]]:
        """The flags of golds that run; all tie probes go to the executor together."""
        trees = [parse(gold) for gold in golds]
        probes = [list(tie_probes(tree)) if tree else [] for tree in trees]
        answers = iter(self._execute([probe.sql for found in probes for probe in found]))
        doubts = []
        for gold, tree, own_probes in zip(golds, trees, probes, strict=True):
            flags = []
            if any(re.search(rf"\b{re.escape(table)}\b", gold, re.IGNORECASE) for table in self.undecodable):
                flags.append("undecodable_bytes")
            if tree and any(self._is_numeric_text(column) for column in sort_key_columns(tree, schema)):
                flags.append("order_by_numeric_text")
            cut = [cuts_a_tie(probe, answer.rows) for probe, answer in zip(own_probes, answers, strict=False)]
            if any(cut):
                flags.append("tie_cut_by_limit")
            doubts.append(flags)
        return doubts

    def _is_numeric_text(self, column: tuple[str, str]) -> bool:
        """At least half of the column's different text values are written as numbers."""
        if column not in self.numeric_text:
            table, name = quoted(column[0]), quoted(column[1])
            with read_only(self.facts.path) as connection:
                values = connection.execute(
                    f"SELECT DISTINCT {name} FROM {table} WHERE typeof({name}) = 'text' LIMIT {SAMPLED_VALUES}"
                ).fetchall()
            numbers = sum(_is_number(value) for (value,) in values)
            self.numeric_text[column] = numbers > 0 and 2 * numbers >= len(values)
        return self.numeric_text[column]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.strip()[-1].isdigit() or text.strip().endswith(".")
