"""
Queries as data, and their one canonical SQL.

A `Query` has a main table; every other table it uses is one that the main table refers to, directly or over others, so
the joins follow from the columns. SQL style: upper-case keywords, single quotes, aliases T1, T2... only when joining.
Everything stays within what the official evaluator can read.
"""

from dataclasses import dataclass, replace
from typing import Literal

from text2sql.demo.domain import Column, Domain

Kind = Literal["list", "count", "aggregate", "groups", "top", "top_group", "lookup", "values"]
Value = str | int | float


@dataclass(frozen=True)
class Field:
    """A column of a table."""

    table: str
    column: str


@dataclass(frozen=True)
class Item:
    """A select item or an order key. Without `field`: `*`."""

    field: Field | None
    aggregate: str = ""
    distinct: bool = False


@dataclass(frozen=True)
class Condition:
    """`field op value`; for BETWEEN `value` is the lower and `upper` the upper end; `query` is a subquery as value."""

    field: Field
    op: str
    value: Value = ""
    upper: Value = ""
    query: "Query | None" = None


@dataclass(frozen=True)
class Query:
    """`kind` says what the answer is: a list of rows, a count, groups with numbers, one top row..."""

    kind: Kind
    main: str
    select: tuple[Item, ...]
    where: tuple[Condition, ...] = ()
    connector: str = "AND"
    group: Field | None = None
    having: tuple[str, int] | None = None
    order: Item | None = None
    descending: bool = False
    limit: int | None = None
    distinct: bool = False
    combined: "tuple[str, Query] | None" = None

    def fields(self) -> list[Field]:
        """Every field this query names itself, subqueries left out."""
        items = [*self.select, *([self.order] if self.order else [])]
        named = [item.field for item in items if item.field]
        named.extend(condition.field for condition in self.where)
        return [*named, *([self.group] if self.group else [])]


COUNT = Item(None, "COUNT")


def column_of(domain: Domain, field: Field) -> Column:
    return domain.table(field.table).column(field.column)


def label_of(domain: Domain, table: str) -> Field:
    """The field that names a row of `table`: its own label, or that of the parent that names it."""
    here = domain.table(table)
    if here.label:
        return Field(table, here.label.name)
    return label_of(domain, here.column(here.shown).parent)


def without_order(query: Query) -> Query:
    return replace(query, order=None, descending=False, limit=None)


def to_sql(query: Query, domain: Domain) -> str:
    """The gold SQL of a query."""
    aliases, source = _from(query, domain)

    def name(field: Field) -> str:
        return f"{aliases[field.table]}.{field.column}" if len(aliases) > 1 else field.column

    def item(one: Item) -> str:
        inner = ("DISTINCT " if one.distinct else "") + (name(one.field) if one.field else "*")
        return f"{one.aggregate}({inner})" if one.aggregate else inner

    def condition(one: Condition) -> str:
        if one.query is not None:
            return f"{name(one.field)} {one.op} ({to_sql(one.query, domain)})"
        upper = f" AND {literal(one.upper)}" if one.op == "BETWEEN" else ""
        return f"{name(one.field)} {one.op} {literal(one.value)}{upper}"

    parts = [f"SELECT {'DISTINCT ' if query.distinct else ''}{', '.join(map(item, query.select))} FROM {source}"]
    if query.where:
        parts.append("WHERE " + f" {query.connector} ".join(map(condition, query.where)))
    if query.group:
        parts.append(f"GROUP BY {name(query.group)}")
    if query.having:
        parts.append(f"HAVING COUNT(*) {query.having[0]} {query.having[1]}")
    if query.order:
        parts.append(f"ORDER BY {item(query.order)} {'DESC' if query.descending else 'ASC'}")
    if query.limit:
        parts.append(f"LIMIT {query.limit}")
    if query.combined:
        parts.append(f"{query.combined[0]} {to_sql(query.combined[1], domain)}")
    return " ".join(parts)


def literal(value: Value) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


def _from(query: Query, domain: Domain) -> tuple[dict[str, str], str]:
    """Aliases by table, the main table first, and the FROM clause."""
    steps: list[tuple[str, Column]] = []
    for field in query.fields():
        for step in domain.path(query.main, field.table):
            if step not in steps:
                steps.append(step)
    aliases = {query.main: "T1"}
    clause = query.main if not steps else f"{query.main} AS T1"
    for child, reference in steps:
        aliases[reference.parent] = f"T{len(aliases) + 1}"
        parent = aliases[reference.parent]
        clause += f" JOIN {reference.parent} AS {parent} ON {aliases[child]}.{reference.name} = {parent}.id"
    return aliases, clause
