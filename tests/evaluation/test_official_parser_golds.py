"""The official reading of the dev sets' golds against the parsed `sql` that the data sets were released with."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from evaluation.exact_match import load_schema
from evaluation.official_parser import Condition, Query, parse

AGGREGATES = ("none", "max", "min", "count", "sum", "avg")
ARITHMETIC = ("none", "-", "+", "*", "/")
OPERATORS = ("not", "between", "=", ">", "<", ">=", "<=", "!=", "in", "like", "is", "exists")


class Released:
    """Turns released structures, which hold numbers for columns and operators, into ours, which hold names."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.tables = [name.lower() for name in entry["table_names_original"]]
        columns = entry["column_names_original"]
        self.columns = ["*" if at < 0 else f"{self.tables[at]}.{name.lower()}" for at, name in columns]

    def query(self, sql: Mapping[str, Any]) -> Query:
        operation = next((name for name in ("intersect", "union", "except") if sql[name]), None)
        distinct, items = sql["select"]
        order = sql["orderBy"]
        return Query(
            bool(distinct),
            tuple((AGGREGATES[at], self.unit(unit)) for at, unit in items),
            tuple(
                self.query(unit) if kind == "sql" else self.tables[unit] for kind, unit in sql["from"]["table_units"]
            ),
            self.conditions(sql["from"]["conds"]),
            self.conditions(sql["where"]),
            tuple(self.column(column) for column in sql["groupBy"]),
            self.conditions(sql["having"]),
            (order[0], tuple(self.unit(unit) for unit in order[1])) if order else (),
            sql["limit"] is not None,
            operation,
            self.query(sql[operation]) if operation else None,
        )

    def column(self, column: Sequence[Any] | None) -> Any:
        return column and (AGGREGATES[column[0]], self.columns[column[1]], bool(column[2]))

    def unit(self, unit: Sequence[Any]) -> Any:
        return (ARITHMETIC[unit[0]], self.column(unit[1]), self.column(unit[2]))

    def conditions(self, conditions: Sequence[Any]) -> Any:
        return tuple(part if isinstance(part, str) else self.condition(*part) for part in conditions)

    def condition(self, negated: bool, operator: int, unit: Any, value: Any, high: Any) -> Condition:
        return Condition(negated, OPERATORS[operator], self.unit(unit), self.value(value), self.value(high))

    def value(self, value: Any) -> Any:
        if isinstance(value, dict):
            return self.query(value)
        return self.column(value) if isinstance(value, list) else value


@pytest.mark.parametrize("benchmark", ["sparc", "cosql"])
def test_released_structures_are_reproduced(shared: Path, benchmark):
    """Every dev gold whose database is at hand is read as its release says, clause by clause, value by value."""
    data = shared / "data"
    entries = {entry["db_id"]: entry for entry in json.loads((data / "tables.json").read_text("utf-8"))}
    schemas = {}
    different, compared = [], 0
    for dialogue in json.loads((data / benchmark / "dev.json").read_text("utf-8")):
        name = dialogue["database_id"]
        path = data / "database" / name / f"{name}.sqlite"
        if not path.is_file():
            continue
        schema = schemas.setdefault(name, load_schema(path, entries[name]))
        released = Released(entries[name])
        for turn in dialogue["interaction"]:
            compared += 1
            if parse(turn["query"], schema.columns) != released.query(turn["sql"]):
                different.append(turn["query"])

    assert [] == different
    assert 900 < compared
