"""The finding on one gold query: does it run, what does it return, how hard is it, what is doubtful about it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from evaluation.database_audit import DatabaseFacts, quoted
from evaluation.exact_match import EvaluatorSchema, hardness, load_schema
from evaluation.gold_flags import cuts_a_tie, parse, sort_key_columns, tie_probes
from text2sql.errors import DatabaseError
from text2sql.executor import Executor, Limits
from text2sql.schema import Schema, read_only

SAMPLED_VALUES = 1_000  # different values of a column that are looked at to call it numeric text

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
        self, facts: DatabaseFacts, entry: Mapping[str, Any] | None, executor: Executor, limits: Limits | None
    ) -> None:
        self.facts = facts
        self.executor = executor
        self.limits = limits
        self.undecodable = {table for table, _ in facts.undecodable}
        self.numeric_text: dict[tuple[str, str], bool] = {}
        self.evaluator_schema: EvaluatorSchema | None = load_schema(facts.path, entry) if facts.schema else None

    def finding(self, gold: str) -> Finding:
        if self.facts.schema is None or self.evaluator_schema is None:
            return Finding(self.facts.fault, self.facts.message)
        if not gold.strip():
            return Finding("gold_empty_text", "the query is empty")
        try:
            execution = self.executor.execute(gold, self.facts.path, limits=self.limits)
        except DatabaseError as error:
            return Finding("database_broken", str(error))
        level = hardness(gold, self.evaluator_schema)
        readable = () if level else ("gold_not_official_readable",)
        if execution.status in _FAULTS:
            return Finding(_FAULTS[execution.status], execution.message or "", hardness=level, flags=readable)
        nothing = () if execution.rows else ("gold_returns_nothing",)
        misread = ("word_read_as_text",) if execution.hint else ()
        flags = (*nothing, *readable, *misread, *self._doubts(gold, self.facts.schema))
        return Finding(rows=len(execution.rows), hardness=level, flags=flags)

    def _doubts(self, gold: str, schema: Schema) -> Iterator[str]:
        words = gold.lower()
        if any(table.lower() in words for table in self.undecodable):
            yield "undecodable_bytes"
        tree = parse(gold)
        if tree is None:
            return
        if any(self._is_numeric_text(column) for column in sort_key_columns(tree, schema)):
            yield "order_by_numeric_text"
        for probe in tie_probes(tree):
            execution = self.executor.execute(probe.sql, self.facts.path, limits=self.limits)
            if execution.status == "ok" and cuts_a_tie(probe, execution.rows):
                yield "tie_cut_by_limit"
                break

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
