"""
What can be doubtful about a gold query that runs: its sort keys are numbers stored as text, or its LIMIT cuts through
tied rows, so that another query is just as right. Both are found by reading the query with sqlglot and asking SQLite;
a query that sqlglot cannot read gets neither flag.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from text2sql.schema import Schema

TIE_WINDOW = 50  # rows looked at behind the cut

_WORTH_PARSING = re.compile(r"\b(?:order\s+by|limit|min|max)\b", re.IGNORECASE)
_KEY = "audit_sort_key_"


@dataclass(frozen=True)
class TieProbe:
    """
    A SELECT with LIMIT, asked again without its cut. The last `keys` columns of `sql` are its sort keys; `cuts` are the
    positions in its rows where the original LIMIT and OFFSET cut.
    """

    sql: str
    keys: int
    cuts: tuple[int, ...]


def parse(gold: str) -> exp.Expr | None:
    """The query's tree, None when it has no sort key and no LIMIT to look at, or sqlglot cannot read it."""
    if not _WORTH_PARSING.search(gold):
        return None
    try:
        return sqlglot.parse_one(gold, read="sqlite")
    except (SqlglotError, RecursionError):
        return None


def sort_key_columns(tree: exp.Expr, schema: Schema) -> set[tuple[str, str]]:
    """
    (table, column), in the database's spelling, of every plain column that an ORDER BY sorts by or that MIN or MAX is
    taken of. A bare column that several tables of its FROM have counts for each.
    """
    columns: set[tuple[str, str]] = set()
    for select in tree.find_all(exp.Select):
        sources = _sources(select)
        keys: list[exp.Expr] = [key for key, _ in _order_keys(select)]
        keys += [call for call in select.find_all(exp.Min, exp.Max) if call.find_ancestor(exp.Select) is select]
        for key in keys:
            column = key.this if isinstance(key, exp.Min | exp.Max) else key
            if isinstance(column, exp.Column):
                columns |= set(_resolve(column, sources, schema))
    return columns


def tie_probes(tree: exp.Expr) -> Iterator[TieProbe]:
    """A probe for each SELECT that has one, subqueries included. A LIMIT on a set operation has none."""
    for select in tree.find_all(exp.Select):
        if probe := tie_probe(select):
            yield probe


def tie_probe(select: exp.Select) -> TieProbe | None:
    """
    The probe of this SELECT's own LIMIT. None without one, and for a SELECT DISTINCT sorted by what it does not show
    (its rows would change with the sort key added).
    """
    limit, offset = _number(select.args.get("limit")), _number(select.args.get("offset"))
    if not limit:
        return None
    keys = _order_keys(select)
    if select.args.get("distinct") and not all(shown for _, shown in keys):
        return None
    probe = select.copy()
    probe.set("offset", None)
    for number, (key, _) in enumerate(keys):
        probe = probe.select(exp.alias_(key.copy(), f"{_KEY}{number}"), copy=False)
    start = offset or 0
    probe = probe.limit(start + limit + TIE_WINDOW, copy=False)
    return TieProbe(probe.sql(dialect="sqlite"), len(keys), (start, start + limit) if start else (limit,))


def cuts_a_tie(probe: TieProbe, rows: tuple[tuple[Any, ...], ...]) -> bool:
    """Whether rows on both sides of a cut have equal sort keys, and the rows that tie there are not all alike."""
    width = len(rows[0]) - probe.keys if rows else 0
    for cut in probe.cuts:
        if cut < len(rows) and rows[cut - 1][width:] == rows[cut][width:]:
            tied = {row[:width] for row in rows if row[width:] == rows[cut][width:]}
            if len(tied) > 1:
                return True
    return False


def _order_keys(select: exp.Select) -> list[tuple[exp.Expr, bool]]:
    """
    The sort keys with a position (ORDER BY 2) or the alias of a select item replaced by what it stands for, and
    whether the select list shows the key.
    """
    order = select.args.get("order")
    if order is None:
        return []
    items = select.expressions
    by_alias = {item.alias.lower(): item.this for item in items if isinstance(item, exp.Alias)}
    shown = [item.unalias() for item in items]
    keys = []
    for ordered in order.expressions:
        key = ordered.this
        if isinstance(key, exp.Literal) and key.is_int and 0 < int(key.this) <= len(shown):
            key = shown[int(key.this) - 1]
        elif isinstance(key, exp.Column) and not key.table and key.name.lower() in by_alias:
            key = by_alias[key.name.lower()]
        keys.append((key, key in shown))
    return keys


def _sources(select: exp.Select) -> dict[str, str]:
    """Alias or name -> table name, both lower case, of the plain tables in the FROM clause."""
    clauses = [select.args.get("from_"), *select.args.get("joins", [])]
    tables = [clause.this for clause in clauses if clause is not None and isinstance(clause.this, exp.Table)]
    return {table.alias_or_name.lower(): table.name.lower() for table in tables}


def _resolve(column: exp.Column, sources: dict[str, str], schema: Schema) -> Iterator[tuple[str, str]]:
    wanted = {sources.get(column.table.lower(), "")} if column.table else set(sources.values())
    for table in schema.tables:
        if table.name.lower() in wanted:
            yield from (
                (table.name, found.name) for found in table.columns if found.name.lower() == column.name.lower()
            )


def _number(clause: exp.Expr | None) -> int | None:
    """The number of a LIMIT or OFFSET clause; None for none, or for anything but a plain number."""
    value = clause.expression if clause is not None else None
    return int(value.this) if isinstance(value, exp.Literal) and value.is_int else None
