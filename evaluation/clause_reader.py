"""
Reads the elements of each clause out of a parsed query; what an element is, `evaluation.clauses` says.

The work is done on sqlglot's tree: every expression is resolved (aliases, bare columns, quoted words), brought to one
spelling and written out; that text is the element.
"""

from collections.abc import Mapping

from sqlglot import Dialect, TokenType, exp
from sqlglot.tokenizer_core import Token

CLAUSES = ("select", "where", "join", "group", "order")

# Columns by table, in lower case, in a form that can be a cache key.
Tables = tuple[tuple[str, tuple[str, ...]], ...]
Elements = dict[str, list[str]]

_KEYWORDS = {"select": "SELECT", "where": "WHERE", "join": "FROM", "group": "GROUP BY", "order": "ORDER BY"}
_MIRRORED = {exp.LT: exp.GT, exp.GT: exp.LT, exp.LTE: exp.GTE, exp.GTE: exp.LTE, exp.EQ: exp.EQ, exp.NEQ: exp.NEQ}
_SPLIT_OPERATORS = {
    (TokenType.GT, TokenType.EQ): (TokenType.GTE, ">="),
    (TokenType.LT, TokenType.EQ): (TokenType.LTE, "<="),
    (TokenType.NOT, TokenType.EQ): (TokenType.NEQ, "!="),
}
_SQLITE = Dialect.get_or_raise("sqlite")
_QUERY = "(query)"


def read_elements(sql: str, tables: Tables | None) -> "Reader | None":
    """The elements of the first statement in `sql`, None if it is no query. Raises whatever the parser raises."""
    tokens = _join_split_operators(_SQLITE.tokenize(sql))
    first = next((token.token_type for token in tokens if token.token_type != TokenType.L_PAREN), None)
    if first not in (TokenType.SELECT, TokenType.WITH):
        return None  # sqlglot would read other statements as an opaque command and log a warning for each
    statement = _SQLITE.parser().parse(tokens, sql)[0]
    return Reader(statement, tables) if isinstance(statement, exp.Query) else None


def _join_split_operators(tokens: list[Token]) -> list[Token]:
    """`> =`, `< =` and `! =` as one operator: the benchmarks' gold has them, and execution match accepts them."""
    joined: list[Token] = []
    for token in tokens:
        kind = _SPLIT_OPERATORS.get((joined[-1].token_type, token.token_type)) if joined else None
        if kind and len(joined[-1].text) == 1:
            joined[-1] = Token(*kind, line=token.line, col=token.col, start=joined[-1].start, end=token.end)
        else:
            joined.append(token)
    return joined


class _Scope:
    """The FROM list of one query: `sources` maps each alias to the table it stands for."""

    def __init__(self, outer: "_Scope | None", ctes: Mapping[str, str]) -> None:
        self.outer = outer
        self.ctes = ctes
        self.sources: dict[str, str] = {}
        self.items: dict[str, exp.Expr] = {}  # select items by their name, for the clauses that may use it

    def table(self, alias: str) -> str:
        if alias in self.sources:
            return self.sources[alias]
        return self.outer.table(alias) if self.outer else alias


class Reader:
    """Collects the elements and entities of one statement; the tree is used up on the way."""

    def __init__(self, statement: exp.Query, tables: Tables | None) -> None:
        self.schema = {name: frozenset(columns) for name, columns in tables} if tables is not None else None
        self.tables: set[str] = set()
        self.columns: set[str] = set()
        self.literals: set[str] = set()
        self.aggregates: set[str] = set()
        self._generator = _SQLITE.generator(comments=False)
        self.elements = self.query(statement, None, {})

    def query(self, node: exp.Expr, outer: _Scope | None, ctes: Mapping[str, str]) -> Elements:
        elements: Elements = {clause: [] for clause in CLAUSES}
        ctes = self._ctes(node, outer, ctes, elements)
        scope = _Scope(outer, ctes)
        if isinstance(node, exp.Subquery):
            _extend(elements, self.query(node.this, outer, ctes))
        elif isinstance(node, exp.SetOperation):
            operator = node.key.upper() + ("" if node.args.get("distinct") else " ALL")
            _extend(elements, self.query(node.this, outer, ctes))
            _extend(elements, self.query(node.expression, outer, ctes), operator + " ")
        elif isinstance(node, exp.Select):
            self._select(node, scope, elements)
        else:
            raise TypeError(f"no query: {node.key}")
        self._order(node, scope, elements)
        return elements

    def _ctes(
        self, node: exp.Expr, outer: _Scope | None, ctes: Mapping[str, str], elements: Elements
    ) -> Mapping[str, str]:
        with_ = node.args.get("with_")
        if with_ is None:
            return ctes
        inner = {**ctes, **{cte.alias.lower(): _QUERY for cte in with_.expressions}}
        for cte in with_.expressions:
            _nest(elements["join"], self.query(cte.this, outer, inner))
        return inner

    def _select(self, node: exp.Select, scope: _Scope, elements: Elements) -> None:
        joins: list[exp.Join] = node.args.get("joins") or []
        source = node.args.get("from_")
        if source is not None:
            self._source(source.this, scope, elements["join"])
        for join in joins:
            self._source(join.this, scope, elements["join"])
        for join in joins:
            self._join(join, scope, elements["join"])

        if node.args.get("distinct"):
            elements["select"].append("DISTINCT")
        needed_later = any(node.args.get(clause) for clause in ("group", "having", "order"))
        for item in node.expressions:
            value = item.unalias()
            elements["select"].append(self._text(value.copy() if needed_later else value, scope, elements["select"]))
        if where := node.args.get("where"):
            self._conditions(where.this, scope, elements, "where")
        scope.items = {item.alias.lower(): item.this for item in node.expressions if isinstance(item, exp.Alias)}
        if group := node.args.get("group"):
            for key in group.expressions:
                elements["group"].append(self._text(_item(key, node), scope, elements["group"]))
        if having := node.args.get("having"):
            found: Elements = {"group": []}
            self._conditions(having.this, scope, found, "group")
            elements["group"].extend(f"HAVING {element}" for element in found["group"])

    def _order(self, node: exp.Expr, scope: _Scope, elements: Elements) -> None:
        order = elements["order"]
        if keys := node.args.get("order"):
            for key in keys.expressions:
                direction = "DESC" if key.args.get("desc") else "ASC"
                order.append(f"{self._text(_item(key.this, node), scope, order)} {direction}")
        for name in ("limit", "offset"):
            if bound := node.args.get(name):
                order.append(f"{name.upper()} {self._text(bound.expression, scope, order)}")

    def _source(self, node: exp.Expr, scope: _Scope, found: list[str]) -> None:
        """One entry of FROM: a table, a derived table, or joins in parentheses."""
        if isinstance(node, exp.Table):
            name = node.name.lower()
            table = scope.ctes.get(name, name)
            if table != _QUERY:
                self.tables.add(table)
        elif isinstance(node, exp.Subquery) and isinstance(node.this, exp.Query):
            _nest(found, self.query(node.this, scope.outer, scope.ctes))
            table = name = _QUERY
        elif isinstance(node, exp.Paren | exp.Subquery):
            self._source(node.this, scope, found)
            return
        else:
            table = name = node.sql(dialect=_SQLITE).lower()
        found.append(table)
        scope.sources[node.alias.lower() or name] = table
        for join in node.args.get("joins") or []:
            self._source(join.this, scope, found)
            self._join(join, scope, found)

    def _join(self, join: exp.Join, scope: _Scope, found: list[str]) -> None:
        table = scope.sources.get(join.this.alias_or_name.lower(), _QUERY)
        if kind := " ".join(word.upper() for word in (join.method, join.side) if word):
            found.append(f"{kind} JOIN {table}")
        on = join.args.get("on")
        if on is not None and on != exp.true():  # sqlglot writes ON TRUE for a join without condition
            held: Elements = {"join": []}
            self._conditions(on, scope, held, "join")
            found.extend(held["join"])
        for column in join.args.get("using") or []:
            name = column.name.lower()
            earlier = [other for other in scope.sources.values() if other != table and self._may_have(other, name)]
            found.append(" = ".join(sorted([f"{table}.{name}", f"{(earlier or [table])[0]}.{name}"])))

    def _may_have(self, table: str, column: str) -> bool:
        return self.schema is None or table not in self.schema or column in self.schema[table]

    def _conditions(
        self, node: exp.Expr, scope: _Scope, elements: Elements, clause: str, conjunct: bool = True
    ) -> None:
        """Each condition below AND, OR and parentheses as one element of `clause`."""
        node = node.unnest()
        if isinstance(node, exp.And | exp.Or):
            if isinstance(node, exp.Or):
                elements[clause].append(self._or(node, scope))
            conjunct = conjunct and isinstance(node, exp.And)
            for side in list(node.flatten()):
                self._conditions(side, scope, elements, clause, conjunct)
            return
        joins_tables = clause == "where" and conjunct and self._joins_tables(node, scope)
        clause = "join" if joins_tables else clause
        elements[clause].append(self._text(node, scope, elements[clause]))

    def _or(self, node: exp.Or, scope: _Scope) -> str:
        sides = []
        for side in node.flatten():
            walk = side.walk(prune=_is_query)
            sides.append(sorted({self._name(inner, scope) for inner in walk if isinstance(inner, exp.Column)}))
        return " OR ".join(sorted(" AND ".join(columns) for columns in sides))

    def _joins_tables(self, node: exp.Expr, scope: _Scope) -> bool:
        if not isinstance(node, exp.EQ) or len(scope.sources) < 2:
            return False
        sides = (node.this, node.expression)
        if not all(isinstance(side, exp.Column) for side in sides) or any(self._is_text(s, scope) for s in sides):
            return False
        left, right = (side.table.lower() or self._owner(side.name.lower(), scope) for side in sides)
        return left != right and left is not None and right is not None

    def _text(self, node: exp.Expr, scope: _Scope, found: list[str]) -> str:
        """`node` in its one spelling; what nested queries hold is added to `found`."""
        holder = exp.Paren(this=node.unnest())  # so that the node itself can be replaced
        parts = list(holder.walk(prune=_is_query))
        for part in parts:
            if isinstance(part, exp.Column):
                part.replace(self._resolved(part, scope))
            elif isinstance(part, exp.Query):
                _nest(found, self.query(part, scope, scope.ctes))
                part.replace(exp.Var(this=_QUERY if isinstance(part, exp.Subquery) else "query"))
            elif isinstance(part, exp.Literal):
                self.literals.add(f"'{part.this}'" if part.is_string else part.this)
        if any(isinstance(part, exp.Predicate | exp.Not) for part in parts):
            self._normalise(holder)
        self.aggregates.update(self._sql(part) for part in parts if isinstance(part, exp.AggFunc))
        return self._sql(holder.this)

    def _resolved(self, column: exp.Column, scope: _Scope, by_alias: bool = True) -> exp.Expr:
        """What a column stands for: a select item, a text, or its full name."""
        name = column.name.lower()
        if by_alias and not column.table and name in scope.items and not self._owners(name, scope):
            item = exp.Paren(this=scope.items[name].copy())
            for inner in list(item.find_all(exp.Column)):
                inner.replace(self._resolved(inner, scope, by_alias=False))
            self._normalise(item)
            resolved: exp.Expr = item.this
            return resolved
        if self._is_text(column, scope):
            self.literals.add(f"'{column.name}'")
            return exp.Literal.string(column.name)
        written = self._name(column, scope)
        if not isinstance(column.this, exp.Star):
            self.columns.add(written)
        return exp.Var(this=written)

    def _normalise(self, node: exp.Expr) -> None:
        """One spelling for comparisons: sides of `=` sorted, columns left of literals, NOT a = b as a <> b."""
        for negation in list(node.find_all(exp.Not)):
            if isinstance(inner := negation.this.unnest(), exp.EQ):
                negation.replace(exp.NEQ(this=inner.this, expression=inner.expression))
        for comparison in list(node.find_all(*_MIRRORED)):
            left, right = comparison.this, comparison.expression
            symmetric = isinstance(comparison, exp.EQ | exp.NEQ)
            literals = [isinstance(side, exp.Literal) for side in (left, right)]
            unsorted = symmetric and literals[0] == literals[1] and self._sql(left) > self._sql(right)
            if literals == [True, False] or unsorted:
                comparison.replace(_MIRRORED[type(comparison)](this=right, expression=left))
        for values in list(node.find_all(exp.In)):
            values.set("expressions", sorted(values.expressions, key=self._sql))

    def _sql(self, node: exp.Expr) -> str:
        if isinstance(node, exp.Var):
            return str(node.this)
        return self._generator.generate(node, copy=False)

    def _name(self, column: exp.Column, scope: _Scope) -> str:
        if isinstance(column.this, exp.Star):
            return f"{scope.table(column.table.lower())}.*" if len(scope.sources) > 1 else "*"
        name = column.name.lower()
        table = scope.table(column.table.lower()) if column.table else self._owner(name, scope)
        return f"{table}.{name}" if table else name

    def _owners(self, name: str, scope: _Scope) -> list[str]:
        """The tables of this query that are known to have the column."""
        return [t for t in scope.sources.values() if self.schema is not None and name in self.schema.get(t, ())]

    def _owner(self, name: str, scope: _Scope | None) -> str | None:
        """The table that a bare column belongs to: its query's only one, else the first known to have it."""
        while scope is not None:
            if owners := self._owners(name, scope):
                return owners[0]
            sources = list(scope.sources.values())
            if len(sources) == 1 and self._may_have(sources[0], name):
                return sources[0]
            scope = scope.outer
        return None

    def _is_text(self, column: exp.Column, scope: _Scope) -> bool:
        """Whether SQLite reads a double-quoted word as text, because it names no column."""
        if column.table or not isinstance(column.this, exp.Identifier) or not column.this.quoted:
            return False
        if self.schema is None or any(source not in self.schema for source in scope.sources.values()):
            return column.arg_key in ("expression", "expressions", "low", "high") and isinstance(
                column.parent, exp.Predicate
            )
        return self._owner(column.name.lower(), scope) is None


def _extend(elements: Elements, more: Elements, prefix: str = "") -> None:
    for clause, values in more.items():
        elements[clause].extend(prefix + value for value in values)


def _nest(found: list[str], nested: Elements) -> None:
    for clause, values in nested.items():
        for value in values:
            own_keyword = value.startswith(("HAVING ", "LIMIT ", "OFFSET "))
            found.append(f"({value})" if own_keyword else f"({_KEYWORDS[clause]} {value})")


def _is_query(node: exp.Expr) -> bool:
    return isinstance(node, exp.Query)


def _item(key: exp.Expr, node: exp.Expr) -> exp.Expr:
    """What a key of GROUP BY or ORDER BY means: a number counts select items."""
    if isinstance(key, exp.Literal) and not key.is_string and isinstance(node, exp.Select):
        position = int(key.this)
        if 1 <= position <= len(node.expressions):
            item: exp.Expr = node.expressions[position - 1]
            return item.unalias().copy()
    return key
