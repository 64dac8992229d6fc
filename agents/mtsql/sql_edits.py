"""
Queries that can be edited in place: a tree by sqlglot in which every word knows its place in the text.

An edit leaves everything else as it was written (quotes, case, spaces), unlike printing a changed tree.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Names that need no quotes."""

Edit = tuple[int, int, str]
"""Replace text[start:end] by the third part."""


@dataclass(frozen=True)
class Parsed:
    """A query and its tree; every identifier and literal of the tree knows its place in the text."""

    sql: str
    tree: exp.Expr

    def edited(self, edits: Sequence[Edit]) -> str:
        text = self.sql
        for start, end, new in sorted(edits, reverse=True):
            text = text[:start] + new + text[end:]
        return text

    def tables(self) -> list[str]:
        return [table.name.lower() for table in self.tree.find_all(exp.Table)]

    def columns(self) -> list[exp.Column]:
        return [column for column in self.tree.find_all(exp.Column) if not isinstance(column.this, exp.Star)]


def parse(sql: str) -> Parsed | None:
    """None for a query that sqlglot cannot read."""
    try:
        tree = sqlglot.parse_one(sql, dialect="sqlite")
    except SqlglotError:
        return None
    for column in list(tree.find_all(exp.Column)):
        if _is_quoted_text(column, sql):
            literal = exp.Literal.string(column.name)
            literal.meta.update(column.this.meta)
            column.replace(literal)
    return Parsed(sql, tree)


def _is_quoted_text(column: exp.Column, sql: str) -> bool:
    """`city = "Oslo"`: SQLite reads a name in double quotes as text when no column is called so, sqlglot as a name."""
    compared = isinstance(column.parent, exp.Binary | exp.In | exp.Between) and column.arg_key != "this"
    return compared and not column.table and sql[column.this.meta["start"]] == '"'


def span(node: exp.Expr) -> tuple[int, int]:
    """From the first to behind the last character of a node, as far as its words know their places."""
    places = [part.meta for part in node.walk() if "start" in part.meta]
    return min(place["start"] for place in places), max(place["end"] for place in places) + 1


def replaced(identifier: exp.Expr, text: str) -> Edit:
    return identifier.meta["start"], identifier.meta["end"] + 1, text


def renamed(column: exp.Column, name: str) -> Edit:
    return replaced(column.this, name)


def compared_texts(parsed: Parsed) -> list[tuple[exp.Column, exp.Literal]]:
    """Comparisons `column = 'text'`."""
    return [
        (comparison.this, comparison.expression)
        for comparison in parsed.tree.find_all(exp.EQ)
        if isinstance(comparison.this, exp.Column)
        and isinstance(comparison.expression, exp.Literal)
        and comparison.expression.is_string
    ]
