"""The FROM part of a query by meaning: its tables, and the conditions that joins and WHERE put on every row."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from sqlglot import exp

from evaluation.official_parser import Condition, Query
from evaluation.schema_index import EvaluatorSchema
from evaluation.sound_conditions import Tree, flat
from evaluation.sound_scope import Common, Scope, Source


class QueryReader(Protocol):
    """What this file needs of `evaluation.sound_reader.Reader`."""

    schema: EvaluatorSchema

    def query(self, node: exp.Expr, around: Scope) -> tuple[Query, dict[str, str]]: ...
    def tree(self, node: exp.Expr, scope: Scope, negated: bool = False) -> Tree: ...
    def outputs(self, node: exp.Select, scope: Scope) -> dict[str, str]: ...


class Tables:
    """
    Collects the sources of one SELECT into its scope. `pending`: conditions with the scope whose names they use.
    `equal`: columns equated by USING and NATURAL. `outer`: ON of an outer join, by position of its table.
    """

    def __init__(self, reader: QueryReader, scope: Scope) -> None:
        self.reader = reader
        self.scope = scope
        self.tables: list[str] = []
        self.pending: list[tuple[exp.Expr, Scope]] = []
        self.equal: list[tuple[str, str]] = []
        self.outer: list[tuple[int, exp.Expr]] = []

    def read(self, node: exp.Select) -> tuple[tuple[str, ...], list[Tree]]:
        """Tables (an outer-joined one with its side and conditions; a derived one as text), and all conditions."""
        self._collect(node)
        plain = {table for table in self.tables if self.tables.count(table) == 1}
        rest: list[tuple[exp.Expr, Scope]] = []
        equal = [pair for pair in self.equal if _equates(pair, plain)]
        for condition, scope in self.pending:
            pair = _equated(condition, scope)
            if pair is not None and _equates(pair, plain):
                equal.append(pair)
            else:
                rest.append((condition, scope))
        classes = _classes(equal)
        for scope in (self.scope, *(scope for _, scope in rest)):
            scope.renamed = {name: min(members) for members in classes for name in members}
        for position, on in self.outer:
            conditions = flat(self.reader.tree(part, self.scope) for part in _conjuncts(on))
            self.tables[position] += f" on {conditions!r}"
        trees = [self.reader.tree(condition, scope) for condition, scope in rest]
        return tuple(self.tables), [*trees, *map(_joined, classes)]

    def _collect(self, node: exp.Select) -> None:
        if node.args.get("from_") is not None:
            self._add(node.args["from_"].this)
        for join in node.args.get("joins") or ():
            self._join(join)
        if node.args.get("where") is not None:
            self.pending += [(part, self.scope) for part in _conjuncts(node.args["where"].this)]

    def _add(self, node: exp.Expr, side: str = "") -> None:
        """One table, derived table or group of joined tables in parentheses. `side` marks an outer join."""
        if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table):
            self._add(node.this, side)
        elif isinstance(node, exp.Table) and (node.db or node.name.lower() not in self.scope.common):
            name = node.name.lower()
            columns = self.reader.schema.columns.get(name)
            known = {column: f"{name}.{column}" for column in columns} if columns is not None else None
            self.scope.sources.append(Source(node.alias_or_name.lower(), name, known))
            self.tables.append(side + name)
        elif isinstance(node, exp.Table):
            common = self.scope.common[node.name.lower()]
            self._derived(common.query, node.alias_or_name.lower(), common.earlier, side)
        else:
            self._derived(node, node.alias_or_name.lower(), self.scope.common, side)
        for join in node.args.get("joins") or ():
            self._join(join)

    def _derived(self, node: exp.Expr, alias: str, common: Mapping[str, Common], side: str) -> None:
        while isinstance(node, exp.Subquery) and not node.args.get("joins"):
            node = node.this
        if not side and isinstance(node, exp.Select) and _only_chooses(node):
            inner = Tables(self.reader, Scope(self.scope.parent, common, self.scope.nested, self.scope.values))
            inner._collect(node)
            inner.scope.aliases = {item.alias.lower(): item.this for item in node.expressions if item.alias}
            self.tables += inner.tables
            self.pending += inner.pending
            self.equal += inner.equal
            self.scope.sources.append(Source(alias, alias, self.reader.outputs(node, inner.scope)))
            return
        query, outputs = self.reader.query(node, Scope(self.scope.parent, common, nested=True, values=True))
        text = f"({query!r})"
        self.scope.sources.append(Source(alias, text, {name: f"<{column}>" for name, column in outputs.items()}))
        self.tables.append(side + text)

    def _join(self, node: exp.Join) -> None:
        side = f"{node.side.lower()} " if node.side else ""
        before = list(self.scope.sources)
        self._add(node.this, side)
        added = self.scope.sources[-1]
        shared = [name.name.lower() for name in node.args.get("using") or ()]
        if node.method == "NATURAL":
            earlier = {name for source in before for name in source.columns or ()}
            shared = sorted(earlier & set(added.columns or ()))
        pairs = [pair for name in shared for pair in _shared(name, before, added)]
        on = node.args.get("on")
        if side:
            self.tables[-1] += f" using {pairs}" if pairs else ""
            self.outer += [(len(self.tables) - 1, on)] if on is not None else []
        else:
            self.equal += pairs
            self.pending += [(part, self.scope) for part in _conjuncts(on)] if on is not None else []


def _conjuncts(node: exp.Expr) -> list[exp.Expr]:
    """The conditions that AND connects; the TRUE that sqlglot puts for a join without ON is none."""
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.And):
        return [part for side in node.flatten() for part in _conjuncts(side)]
    return [] if isinstance(node, exp.Boolean) and node.this else [node]


def _only_chooses(node: exp.Select) -> bool:
    """Whether a derived table only chooses rows and columns of inner-joined tables, so that merging changes nothing."""
    reshapes = ("distinct", "group", "having", "order", "limit", "offset", "windows", "with_", "qualify")
    if node.args.get("from_") is None or any(node.args.get(key) for key in reshapes):
        return False
    if any(join.side for join in node.args.get("joins") or ()):
        return False
    return not any(item.find(exp.AggFunc, exp.Window, exp.Query) for item in node.expressions)


def _shared(name: str, before: Iterable[Source], added: Source) -> list[tuple[str, str]]:
    right = added.find(name)
    left = next((found for source in before if (found := source.find(name)) is not None), None)
    return [(left, right)] if left is not None and right is not None else []


def _equated(node: exp.Expr, scope: Scope) -> tuple[str, str] | None:
    """The two columns that a condition makes equal, both of this query's own tables."""
    if not isinstance(node, exp.EQ) or not isinstance(node.this, exp.Column):
        return None
    if not isinstance(node.expression, exp.Column):
        return None
    sides = [scope.local(side.table.lower(), side.name.lower()) for side in (node.this, node.expression)]
    return (sides[0], sides[1]) if sides[0] is not None and sides[1] is not None else None


def _equates(pair: tuple[str, str], plain: set[str]) -> bool:
    """Whether the columns are of two different tables that each occur once, so that their names say which they are."""
    left, right = (name.partition(".")[0] for name in pair)
    return left != right and left in plain and right in plain


def _classes(pairs: Iterable[tuple[str, str]]) -> list[set[str]]:
    classes: list[set[str]] = []
    for pair in pairs:
        merged = set(pair)
        for members in [members for members in classes if members & merged]:
            merged |= members
            classes.remove(members)
        classes.append(merged)
    return classes


def _joined(members: set[str]) -> Condition:
    return Condition(False, "joined", ("none", ("none", " = ".join(sorted(members)), None), None), None)
