"""
What a gold and a prediction look at, read with sqlglot: tables, constants by column, joins, sizes of groups, LIMITs.

Neighbour databases are made around it (`evaluation.neighbours`): a condition is only put to the test by rows on both
sides of its constant. Columns are resolved by name, roughly: a name that several of the tables have counts for each,
which gives a column a constant too many and does no harm.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from text2sql.schema import Schema

Value = str | int | float
Place = tuple[str, str]  # table, column; in the database's spelling

_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Is, exp.Like, exp.ILike, exp.Glob)
_PATTERNS = (exp.Like, exp.ILike, exp.Glob)
_BARE_CONSTANT = re.compile(r"""'((?:[^']|'')*)'|"([^"]*)"|(?<![\w.])(-?\d+(?:\.\d+)?)(?![\w.])""")


@dataclass(frozen=True, order=True)
class Constant:
    """
    A value that a column is compared with; `pattern`: by LIKE, and `value` is the pattern. `gold`: the gold has it.
    What only a prediction asks for need not exist: another spelling, an empty text.
    """

    table: str
    column: str
    value: Value
    pattern: bool = False
    gold: bool = True


@dataclass(frozen=True)
class Focus:
    """
    `tables`: those that are read, None when that cannot be told (all are). `loose`: constants of a query that sqlglot
    cannot read, and whether it is the gold; they may belong to any column. `joins`: pairs of columns that the gold
    equates; `overlaps`: pairs whose values it unites, intersects or subtracts. `counts`: numbers that a COUNT is
    compared with. `most_rows`: the largest LIMIT with its OFFSET.
    """

    tables: tuple[str, ...] | None
    constants: tuple[Constant, ...] = ()
    loose: tuple[tuple[Value, bool], ...] = ()
    joins: tuple[tuple[Place, Place], ...] = ()
    overlaps: tuple[tuple[Place, Place], ...] = ()
    counts: tuple[int, ...] = ()
    most_rows: int = 0


def read_focus(gold: str, pred: str, schema: Schema) -> Focus:
    """The focus of a pair; `pred` may be "" to look at the gold alone. Joins are read from the gold only."""
    readers = [_Reader(gold, schema)] + ([_Reader(pred, schema)] if pred.strip() else [])
    of_gold = readers[0]
    constants = set(of_gold.constants)
    loose = {(value, True) for value in of_gold.loose}
    for reader in readers[1:]:
        constants |= {replace(constant, gold=False) for constant in set(reader.constants) - constants}
        loose |= {(value, False) for value in set(reader.loose) - set(of_gold.loose)}
    tables: tuple[str, ...] | None = None
    if all(reader.tables is not None for reader in readers):
        tables = tuple(sorted({name for reader in readers for name in reader.tables or ()}))
    return Focus(
        tables,
        tuple(sorted(constants, key=repr)),
        tuple(sorted(loose, key=repr)),
        tuple(sorted(set(of_gold.joins))),
        tuple(sorted(set(of_gold.overlaps))),
        tuple(sorted({count for reader in readers for count in reader.counts})),
        max(reader.most_rows for reader in readers),
    )


class _Reader:
    """One text. What sqlglot cannot read has no tree: its constants are picked out by their spelling."""

    def __init__(self, sql: str, schema: Schema) -> None:
        self._columns = {
            table.name.lower(): {column.name.lower(): column.name for column in table.columns}
            for table in schema.tables
        }
        self._spelling = {table.name.lower(): table.name for table in schema.tables}
        self.tables: set[str] | None = None
        self.constants: list[Constant] = []
        self.loose: list[Value] = []
        self.joins: list[tuple[Place, Place]] = []
        self.overlaps: list[tuple[Place, Place]] = []
        self.counts: list[int] = []
        self.most_rows = 0
        tree = _parse(sql)
        if tree is None:
            self.loose = list(_bare_constants(sql))
            return
        self._aliases = {table.alias_or_name.lower(): table.name.lower() for table in tree.find_all(exp.Table)}
        self._read_tables(tree)
        for comparison in tree.find_all(*_COMPARISONS):
            pattern = isinstance(comparison, _PATTERNS)
            self._read_comparison(comparison.this, [comparison.expression], pattern)
            self._read_comparison(comparison.expression, [comparison.this], pattern)
        for between in tree.find_all(exp.Between):
            self._read_comparison(between.this, [between.args["low"], between.args["high"]])
        for membership in tree.find_all(exp.In):
            query = membership.args.get("query")
            shown = query.this.expressions if query is not None and isinstance(query.this, exp.Select) else []
            self._read_comparison(membership.this, [*membership.expressions, *shown])
        for operation in tree.find_all(exp.SetOperation):
            self._read_overlaps(operation.left.selects, operation.right.selects)
        self.most_rows = sum(_largest(tree, kind) for kind in (exp.Limit, exp.Offset))

    def _read_tables(self, tree: exp.Expr) -> None:
        made_here = {query.alias_or_name.lower() for query in tree.find_all(exp.CTE)}
        named = {table.name.lower() for table in tree.find_all(exp.Table)} - made_here
        if named <= set(self._spelling):  # else a view, or a table that is not there
            self.tables = {self._spelling[name] for name in named}

    def _read_comparison(self, side: exp.Expr, others: Sequence[exp.Expr], pattern: bool = False) -> None:
        numbers = [value for other in others if isinstance(value := self._constant(other), int | float)]
        if side.find(exp.Count):
            self.counts += [int(number) for number in numbers]
            return
        places = list(self._places(side))
        for other in others:
            value = self._constant(other)
            if value is not None:
                self.constants += [Constant(*place, value, pattern and isinstance(value, str)) for place in places]
            elif isinstance(other, exp.Column) and isinstance(side, exp.Column):
                self.joins += [(here, there) for here in places for there in self._places(other) if here < there]

    def _read_overlaps(self, left: Sequence[exp.Expr], right: Sequence[exp.Expr]) -> None:
        for one, other in zip(left, right, strict=False):
            self.overlaps += [
                (here, there) for here in self._places(one) for there in self._places(other) if here[0] != there[0]
            ]

    def _places(self, side: exp.Expr) -> Iterator[Place]:
        column = side if isinstance(side, exp.Column) else side.find(exp.Column)
        if column is None or self._constant(column) is not None:
            return
        wanted = self._aliases.get(column.table.lower())
        tables = [wanted] if wanted in self._columns else list(dict.fromkeys(self._aliases.values()))
        for table in tables:
            name = self._columns.get(table or "", {}).get(column.name.lower())
            if name is not None and table is not None:
                yield self._spelling[table], name

    def _constant(self, node: exp.Expr) -> Value | None:
        """SQLite reads a double-quoted word that is no column as a string; so does this."""
        if isinstance(node, exp.Paren):
            return self._constant(node.this)
        if isinstance(node, exp.Neg):
            value = self._constant(node.this)
            return -value if isinstance(value, int | float) else None
        if isinstance(node, exp.Literal):
            return str(node.this) if node.is_string else _number(str(node.this))
        quoted = isinstance(node, exp.Column) and not node.table and node.this.args.get("quoted")
        if quoted and not any(node.name.lower() in names for names in self._columns.values()):
            return str(node.name)
        return None


def _parse(sql: str) -> exp.Expr | None:
    try:
        return next((tree for tree in sqlglot.parse(sql, read="sqlite") if tree is not None), None)
    except (SqlglotError, RecursionError):
        return None


def _bare_constants(sql: str) -> Iterator[Value]:
    for match in _BARE_CONSTANT.finditer(sql):
        if match[3] is not None:
            number = _number(match[3])
            if number is not None:
                yield number
        else:
            yield match[1].replace("''", "'") if match[1] is not None else match[2]


def _number(text: str) -> Value | None:
    """A number as SQLite reads it; None for what is none, or is too large for a cell."""
    try:
        number = int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return None
    return number if -(2**62) < number < 2**62 else None


def _largest(tree: exp.Expr, kind: type[exp.Limit] | type[exp.Offset]) -> int:
    numbers = [clause.expression for clause in tree.find_all(kind)]
    return max((int(node.this) for node in numbers if isinstance(node, exp.Literal) and node.is_int), default=0)


def as_json(focus: Focus) -> Mapping[str, object]:
    """Plain values that tell one focus from another, for a digest."""
    return {
        "tables": focus.tables,
        "constants": [repr(constant) for constant in focus.constants],
        "loose": [repr(value) for value in focus.loose],
        "joins": focus.joins,
        "overlaps": focus.overlaps,
        "counts": focus.counts,
        "most_rows": focus.most_rows,
    }
