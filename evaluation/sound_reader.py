"""
Reads SQL with sqlglot into the structures that exact set match compares, by meaning instead of by spelling.

`read` gives the same `Query` as the official parser's after normalisation, so `evaluation.set_match` compares both.
What is evened out on the way, each step without changing what the query returns:

- aliases of tables and columns, numbers in ORDER BY and GROUP BY, quoting, casing, comments, parentheses;
- comma, CROSS, INNER, NATURAL and USING joins: their conditions are conditions of WHERE;
- columns that such a join makes equal are one column (instead of the official evaluator's groups of foreign keys);
- derived tables and WITH queries that only choose rows and columns are merged into the query around them;
- `<>`; a literal on the left; NOT in front of conditions; BETWEEN; lists of IN; count(1);
- order of conditions that AND or OR connects, of GROUP BY columns; DISTINCT inside IN and EXISTS.

Kept apart, unlike in the official reading: outer joins, what AND and OR bind, each direction of ORDER BY, UNION ALL,
ON conditions, a column on the right side of a comparison. Values are dropped, except in derived tables, as there.
"""

from collections.abc import Sequence

from sqlglot import exp

from evaluation.official_parser import Condition, Query, Unit, Value
from evaluation.schema_index import EvaluatorSchema
from evaluation.sound_conditions import Tree, flat
from evaluation.sound_scope import Common, Scope, Source
from evaluation.sound_tables import Tables

_COMPARISONS: dict[type, str] = {exp.EQ: "=", exp.NEQ: "!=", exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<="}
_MIRRORED = {">": "<", "<": ">", ">=": "<=", "<=": ">="}
_OPPOSITE = {"=": "!=", "!=": "=", ">": "<=", "<=": ">", "<": ">=", ">=": "<", "is": "is not", "is not": "is"}
_PATTERNS: dict[type, str] = {exp.Like: "like", exp.ILike: "like", exp.Glob: "glob", exp.RegexpLike: "regexp"}

MOST_PARTS = 20_000
"""Names stand for what they name, and a chain of them (`a+a AS b, b+b AS c, ...`) doubles at each link."""


class UnsupportedError(Exception):
    """The statement is no query, or has a part that this reader does not know."""


def read(statement: exp.Expr, schema: EvaluatorSchema) -> Query:
    """The structure of one parsed statement. Raises UnsupportedError."""
    return Reader(schema).query(statement, Scope(None, {}))[0]


class Reader:
    """Reads queries of one database. `around` is the scope in which a query stands; each SELECT makes its own."""

    def __init__(self, schema: EvaluatorSchema) -> None:
        self.schema = schema
        self._parts = 0

    def query(self, node: exp.Expr, around: Scope) -> tuple[Query, dict[str, str]]:
        """A query, and what its output columns stand for."""
        self._count()
        common = dict(around.common)
        with_ = node.args.get("with_")
        for cte in with_.expressions if with_ else ():
            if cte.args["alias"].args.get("columns"):
                raise UnsupportedError("WITH that names its columns")
            common[cte.alias.lower()] = Common(cte.this, dict(common))
        around = Scope(around.parent, common, around.nested, around.values)
        if isinstance(node, exp.Subquery) and not isinstance(node.this, exp.Table):
            return self.query(node.this, around)
        if isinstance(node, exp.SetOperation):
            return self._set_operation(node, around)
        if isinstance(node, exp.Select):
            return self._select(node, around)
        raise UnsupportedError(f"{node.key} is no query")

    def _count(self) -> None:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise UnsupportedError(f"more than {MOST_PARTS:,} parts, once names stand for what they name")

    def _set_operation(self, node: exp.SetOperation, around: Scope) -> tuple[Query, dict[str, str]]:
        left, outputs = self.query(node.this, around)
        right, _ = self.query(node.expression, around)
        name = node.key if node.args.get("distinct") else f"{node.key} all"
        if right.operation:
            name += " of all that follows"
        scope = Scope(around.parent, around.common, around.nested, around.values, [Source("", "", outputs)])
        order = self._order(node.args.get("order"), scope, list(outputs.values()))
        limit = bool(node.args.get("limit"))
        if (order or limit) and (left.order or left.limit):
            raise UnsupportedError("ORDER BY or LIMIT in an operand of a set operation")
        return _appended(left, name, right)._replace(order=order or left.order, limit=limit or left.limit), outputs

    def _select(self, node: exp.Select, around: Scope) -> tuple[Query, dict[str, str]]:
        scope = Scope(around.parent, around.common, around.nested, around.values, aliases=column_aliases(node))
        tables, conditions = Tables(self, scope).read(node)
        group = node.args.get("group")
        keys = {self._key(key, scope, node.expressions) for key in group.expressions} if group else set()
        having = node.args.get("having")
        chosen = flat([self.tree(having.this, scope)]) if having else ()
        if chosen and not keys:
            keys = {"all rows"}  # HAVING without GROUP BY is about one group of all rows
        query = Query(
            distinct=bool(node.args.get("distinct")) if scope.nested else None,
            select=tuple([("none", self.unit(item, scope)) for item in node.expressions]),
            tables=tables,
            joins=(),
            where=flat(conditions),
            group=tuple([("none", key, None) for key in sorted(keys)]),
            having=chosen,
            order=self._order(node.args.get("order"), scope, node.expressions),
            limit=bool(node.args.get("limit")),
            operation=None,
            operand=None,
        )
        return query, self.outputs(node, scope)

    def outputs(self, node: exp.Select, scope: Scope) -> dict[str, str]:
        """The output columns of a SELECT, each with what it stands for; `*` gives the columns of its sources."""
        found: dict[str, str] = {}
        for item in node.expressions:
            if not item.is_star or isinstance(item, exp.Count):
                found.setdefault(item.alias_or_name.lower(), self.text(item, scope))
                continue
            wanted = item.table.lower() if isinstance(item, exp.Column) else ""
            for source in scope.sources:
                if not wanted or source.alias == wanted:
                    found = {**(source.columns or {}), **found}
        return found

    def _order(
        self, node: exp.Expr | None, scope: Scope, items: Sequence[exp.Expr | str]
    ) -> tuple[()] | tuple[str, tuple[Unit, ...]]:
        if node is None:
            return ()
        directions, units = [], []
        for ordered in node.expressions:
            descending = bool(ordered.args.get("desc"))
            nulls = "" if bool(ordered.args.get("nulls_first")) != descending else " nulls"
            directions.append(("desc" if descending else "asc") + nulls)
            key = ordered.this
            if isinstance(key, exp.Column) and not key.table:
                key = scope.aliases.get(key.name.lower(), key)
            units.append(_unit(self._key(key, scope, items)))
        return directions[0] if len(set(directions)) == 1 else ",".join(directions), tuple(units)

    def _key(self, node: exp.Expr, scope: Scope, items: Sequence[exp.Expr | str]) -> str:
        """A key of ORDER BY or GROUP BY; a whole number counts to an output column."""
        if isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit():
            place = int(node.name)
            if 0 < place <= len(items):
                item = items[place - 1]
                return item if isinstance(item, str) else self.text(item, scope)
        return self.text(node, scope)

    def unit(self, node: exp.Expr, scope: Scope) -> Unit:
        return _unit(self.text(node, scope))

    def meant(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        """The node without parentheses and own alias; for a column alias, the expression that it names."""
        node = _bare(node)
        named: list[exp.Expr] = []
        while isinstance(node, exp.Column) and not node.is_star:
            found = scope.resolve(node)
            if not isinstance(found, exp.Expr):
                break
            if found in named:  # SELECT x AS x, where no table has an x
                raise UnsupportedError(f"alias {node.name} that names itself")
            named.append(found)
            node = _bare(found)
        return node

    def text(self, node: exp.Expr, scope: Scope) -> str:
        """One canonical text for any expression: names resolved, nested queries read."""
        self._count()
        node = self.meant(node, scope)
        if isinstance(node, exp.Column):
            if node.is_star:
                return "*" if len(scope.sources) == 1 else f"{self._table_of(node, scope)}.*"
            found = scope.resolve(node)
            return found if isinstance(found, str) else f'"{node.name}"'
        if isinstance(node, exp.Star):
            return "*"
        if isinstance(node, exp.Literal):
            return f'"{node.name}"' if node.is_string else _number(node.name)
        if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) and not node.this.is_string:
            return f"-{_number(node.this.name)}"
        if isinstance(node, exp.Query):
            return repr(self.query(node, Scope(scope, scope.common, nested=True, values=True))[0])
        if isinstance(node, exp.Count) and isinstance(node.this, exp.Literal):
            return "count(this=*)"
        if isinstance(node, exp.Distinct) and not scope.nested and len(node.expressions) == 1:
            return self.text(node.expressions[0], scope)
        return f"{node.key}({' '.join(self._arguments(node, scope))})"

    def _arguments(self, node: exp.Expr, scope: Scope) -> list[str]:
        arguments = []
        for key, value in sorted(node.args.items()):
            parts = [part for part in (value if isinstance(value, list) else [value]) if part not in (None, False)]
            texts = [self.text(part, scope) if isinstance(part, exp.Expr) else str(part).lower() for part in parts]
            if texts and key != "big_int":
                arguments.append(f"{key}={','.join(texts)}")
        return arguments

    def _table_of(self, node: exp.Column, scope: Scope) -> str:
        return next((source.table for source in scope.sources if source.alias == node.table.lower()), node.table)

    def is_value(self, node: exp.Expr, scope: Scope) -> bool:
        """Whether an expression is the same for all rows: no column, no nested query."""
        for part in self.meant(node, scope).walk():
            if isinstance(part, exp.Query | exp.Star | exp.AggFunc):
                return False
            if isinstance(part, exp.Column) and scope.resolve(part) is not None:
                return False
        return True

    def tree(self, node: exp.Expr, scope: Scope, negated: bool = False) -> Tree:
        """A boolean expression, with every NOT pushed down to the conditions."""
        node = self.meant(node, scope)
        if isinstance(node, exp.Not):
            return self.tree(node.this, scope, not negated)
        if isinstance(node, exp.And | exp.Or):
            connector = "and" if isinstance(node, exp.And) != negated else "or"
            return connector, [self.tree(part, scope, negated) for part in node.flatten()]
        if isinstance(node, exp.Between):
            low = self._comparison(">=", node.this, node.args["low"], scope, negated)
            high = self._comparison("<=", node.this, node.args["high"], scope, negated)
            return "or" if negated else "and", [low, high]
        if isinstance(node, exp.In) and node.expressions:
            parts = [self._comparison("=", node.this, part, scope, negated) for part in node.expressions]
            return "and" if negated else "or", parts
        return self._condition(node, scope, negated)

    def _condition(self, node: exp.Expr, scope: Scope, negated: bool) -> Condition:
        operator = _COMPARISONS.get(type(node))
        if operator:
            return self._comparison(operator, node.this, node.expression, scope, negated)
        if isinstance(node, exp.Is | exp.NullSafeEQ):
            return self._comparison("is", node.this, node.expression, scope, negated)
        if isinstance(node, exp.NullSafeNEQ):
            return self._comparison("is not", node.this, node.expression, scope, negated)
        pattern = _PATTERNS.get(type(node))
        if pattern:
            negated = negated != bool(node.args.get("negate"))
            return Condition(negated, pattern, self.unit(node.this, scope), self._value(node.expression, scope))
        if isinstance(node, exp.In) and node.args.get("query"):
            return Condition(negated, "in", self.unit(node.this, scope), self._members(node.args["query"], scope))
        if isinstance(node, exp.Exists):
            return Condition(negated, "exists", _unit("*"), self._members(node.this, scope))
        return Condition(negated, "true", self.unit(node, scope), None)

    def _comparison(self, operator: str, left: exp.Expr, right: exp.Expr, scope: Scope, negated: bool) -> Condition:
        left, right = self.meant(left, scope), self.meant(right, scope)
        sides = self._rank(left, scope), self._rank(right, scope)
        if sides[0] > sides[1] or (sides == (0, 0) and self.text(left, scope) > self.text(right, scope)):
            left, right = right, left
            operator = _MIRRORED.get(operator, operator)
        if negated:
            operator = _OPPOSITE[operator]
        return Condition(operator == "is not", operator.split()[0], self.unit(left, scope), self._value(right, scope))

    def _rank(self, node: exp.Expr, scope: Scope) -> int:
        """Columns and expressions stand on the left, then nested queries, then values."""
        if isinstance(node, exp.Query):
            return 1
        return 2 if self.is_value(node, scope) else 0

    def _value(self, node: exp.Expr, scope: Scope) -> Value:
        node = self.meant(node, scope)
        if isinstance(node, exp.Query):
            return self.query(node, Scope(scope, scope.common, nested=True, values=scope.values))[0]
        return self.text(node, scope) if scope.values or not self.is_value(node, scope) else None

    def _members(self, node: exp.Expr, scope: Scope) -> Query:
        """The query of IN or EXISTS, for which DISTINCT makes no difference unless LIMIT comes after it."""
        query = self.query(node, Scope(scope, scope.common, nested=True, values=scope.values))[0]
        return query if query.limit else query._replace(distinct=False)


def column_aliases(node: exp.Select) -> dict[str, exp.Expr]:
    return {item.alias.lower(): item.this for item in node.expressions if isinstance(item, exp.Alias)}


def _bare(node: exp.Expr) -> exp.Expr:
    while isinstance(node, exp.Paren | exp.Alias):
        node = node.this
    return node


def _unit(text: str) -> Unit:
    return "none", ("none", text, None), None


def _number(text: str) -> str:
    try:
        return repr(float(text))
    except ValueError:
        return text.lower()


def _appended(query: Query, operation: str, operand: Query) -> Query:
    """A chain of set operations, which SQLite works off from the left, with one more operand at its end."""
    if query.operand is None:
        return query._replace(operation=operation, operand=operand)
    return query._replace(operand=_appended(query.operand, operation, operand))
