"""Random choices of what to ask: tables, columns, conditions, all from one database and one random generator."""

import random
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from text2sql.demo.domain import Column, Domain, Table
from text2sql.demo.query import Condition, Field, Item, Query, label_of, to_sql

T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """
    One planned turn: what is asked (`intent` names the frames that can say it), the query that answers it, and what the
    wording needs to know. `before` is the query of the turn it builds on; None when it stands alone.
    """

    intent: str
    query: Query
    before: Query | None = None
    field: Field | None = None
    key: Field | None = None
    condition: Condition | None = None
    other: Condition | None = None
    aggregate: str = ""
    number: int = 0
    child: str = ""
    name: str = ""


class Draw:
    """Choices over one database. `rng` is the only source of chance."""

    def __init__(self, domain: Domain, connection: sqlite3.Connection, rng: random.Random) -> None:
        self.domain = domain
        self.connection = connection
        self.rng = rng

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql).fetchall()

    def run(self, query: Query) -> list[tuple[Any, ...]]:
        return self.rows(to_sql(query, self.domain))

    def pick(self, options: Sequence[T]) -> T | None:
        return self.rng.choice(options) if options else None

    def table(self, labelled: bool = True) -> Table:
        """Any table; with `labelled` one whose rows have a name of their own. Tables that refer to others come up more often."""
        tables = [table for table in self.domain.tables if table.label or not labelled]
        return self.rng.choices(tables, [2 + len(table.of_kind("reference")) for table in tables])[0]

    def numbers(self, table: Table, dates: bool = True) -> list[Field]:
        """Numeric fields of `table`; without `dates` those that are quantities."""
        return [Field(table.name, c.name) for c in table.of_kind("number") if dates or c.high != "latest"]

    def categories(self, table: Table) -> list[Field]:
        return [Field(table.name, c.name) for c in table.of_kind("category")]

    def keys(self, table: Table, parents: bool = True) -> list[Field]:
        """What rows of `table` can be grouped by: own categories, names and categories of the tables referred to."""
        found = self.categories(table)
        if parents:
            for reference in table.of_kind("reference"):
                parent = self.domain.table(reference.parent)
                found.append(label_of(self.domain, parent.name))
                found.extend(self.categories(parent))
        return found

    def told(self, table: Table) -> list[Field]:
        """Fields of the parent that names the rows of `table`: with its name in the answer, a condition on it tells little."""
        if table.label:
            return []
        parent = self.domain.table(table.column(table.shown).parent)
        return [Field(parent.name, column.name) for column in parent.columns]

    def condition(self, main: str, avoid: Sequence[Field] = (), own: bool = False) -> Condition | None:
        """A condition on rows of `main`: on its own columns, or on a table that it refers to."""
        table = self.domain.table(main)
        options: list[tuple[Field, int]] = [(field, 4) for field in self.categories(table)]
        options += [(field, 3) for field in self.numbers(table)]
        if not own:
            for reference in table.of_kind("reference"):
                parent = self.domain.table(reference.parent)
                options += [(field, 2) for field in self.categories(parent)]
                options += [(field, 1) for field in self.numbers(parent)]
                options.append((label_of(self.domain, parent.name), 2))
        options = [(field, weight) for field, weight in options if field not in avoid]
        if not options:
            return None
        field = self.rng.choices([o[0] for o in options], [o[1] for o in options])[0]
        return self.condition_on(main, field)

    def condition_on(self, main: str, field: Field) -> Condition:
        """A condition on `field` with a value that occurs among the rows of `main`."""
        column = self.domain.table(field.table).column(field.column)
        values = self.values(main, field)
        if column.kind != "number":
            return Condition(field, "=", self.rng.choice(values))
        place = self.rng.uniform(0.2, 0.8)
        value = _round_number(values[int(place * (len(values) - 1))], column)
        if self.rng.random() < 0.08 and len(values) > 8:
            upper = _round_number(values[min(len(values) - 1, int(place * len(values)) + len(values) // 4)], column)
            if upper > value:
                return Condition(field, "BETWEEN", value, upper)
        return Condition(field, ">" if place < self.rng.random() else "<", value)

    def only_in_one_column(self, main: str, condition: Condition) -> bool:
        """Whether the text of a condition is found in one column only, so that it says by itself which one is meant."""
        if condition.op != "=" or not isinstance(condition.value, str):
            return False
        tables = [self.domain.table(name) for name in (main, *self.domain.ancestors(main))]
        fields = [Field(table.name, column.name) for table in tables for column in table.of_kind("category", "label")]
        return sum(condition.value in self.values(field.table, field) for field in fields) == 1

    def values(self, main: str, field: Field) -> list[Any]:
        """All values of `field` over the rows of `main`, sorted, repetitions kept, NULL left out."""
        rows = self.run(Query("values", main, (Item(field),)))
        return sorted(row[0] for row in rows if row[0] is not None)


def _round_number(value: float, column: Column) -> Any:
    """A number that a person would say: years as they are, wide ranges in tens, hundreds or thousands."""
    low, high, _ = column.bounds
    if column.high == "latest" or high - low <= 60:
        return int(value) if value == int(value) else value
    unit = next(unit for unit in (1000, 100, 50, 10, 5, 1) if unit * 8 <= high - low)
    return max(int(unit * round(value / unit)), unit)
