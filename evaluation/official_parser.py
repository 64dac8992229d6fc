"""
Reads SQL as the official evaluator's small parser does: what it accepts, what it drops and what it misreads.

The grammar, each clause only at its place:

    query      [(] FROM-part select-part [where] [group by] [having] [order by] [limit] ;* [)] ;* [set-operator query]
    condition  unit [not] operator value, chained by and/or, never in parentheses
    unit       column [(- + * /) column], with optional aggregates, DISTINCT and parentheses; never a constant
    value      one string, one number, a subquery, or a column

Departures from SQL that decide verdicts:
- the FROM part is read before the select list, from the next `from` token on; the word `join` is optional;
- `as` defines an alias for the whole text; the last definition of a name counts everywhere;
- a bare column belongs to the first table of its own FROM list that has it; derived tables offer no columns;
- a column on the right of an operator swallows the text up to the next `,`, `)`, `and`, clause keyword, `join`, `on`
  or `as`; only its first column is kept;
- one direction for a whole ORDER BY; LIMIT takes any one token; set operations nest to the right;
- whatever is left over after a complete query is ignored.

Everything else is an UnreadableError that names the word. Structures are nested tuples, so that they compare and hash.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias, Union

from evaluation.official_tokens import END, UnreadableError, tokenize

Column: TypeAlias = tuple[str, str, bool | None]  # aggregate or "none", "table.column" or "*", DISTINCT
Unit: TypeAlias = tuple[str, Column, Column | None]  # arithmetic operator or "none", left side, right side
Value: TypeAlias = Union[str, float, Column, "Query", None]


class Condition(NamedTuple):
    """One comparison. `high` is BETWEEN's second value."""

    negated: bool
    operator: str
    left: Unit
    value: Value
    high: Value = None


Conditions: TypeAlias = tuple[Condition | str, ...]  # conditions and connectors in turn, as far as the text has both


class Query(NamedTuple):
    """
    One SELECT with its set operation. `tables`: names, or a Query for a derived table. `order`: () or
    (direction, units). `limit`: whether there is one; its number where `parse` is told to keep it. `operation`: the
    set operator, or None.
    """

    distinct: bool | None
    select: tuple[tuple[str, Unit], ...]
    tables: tuple[Union[str, "Query"], ...]
    joins: Conditions
    where: Conditions
    group: tuple[Column, ...]
    having: Conditions
    order: tuple[()] | tuple[str, tuple[Unit, ...]]
    limit: bool | str
    operation: str | None
    operand: Union["Query", None]


UNREAD = Query(None, (), (), (), (), (), (), (), False, None, None)  # what the evaluator puts for an unreadable query

CLAUSE_WORDS = frozenset(["select", "from", "where", "group", "order", "limit", "intersect", "union", "except"])
SET_OPERATORS = frozenset({"intersect", "union", "except"})
OPERATORS = frozenset(["not", "between", "=", ">", "<", ">=", "<=", "!=", "in", "like", "is", "exists"])
AGGREGATES = frozenset(
    ["none", "max", "min", "count", "sum", "avg"]
)  # "none" is in the evaluator's own list: none(a) is read
ARITHMETIC = frozenset({"none", "-", "+", "*", "/"})
_CONDITION_ENDS = CLAUSE_WORDS | {")", ";", "join", "on", "as"}
_SWALLOW_ENDS = CLAUSE_WORDS | {",", ")", "and", "join", "on", "as", END}
_LIST_ENDS = CLAUSE_WORDS | {")", ";", END}
_FROM_ENDS = CLAUSE_WORDS | {")", ";"}


def parse(text: str, columns: Mapping[str, frozenset[str]], keep_limit: bool = False) -> Query:
    """
    The structure of one query. `columns`: table name to its column names, all in lower case. `keep_limit`: read LIMIT
    as other copies of the evaluator do (MTSQL-R1's): it takes a whole number only, and the number is kept.
    Raises UnreadableError; RecursionError for absurdly deep nesting is turned into one.
    """
    tokens = tokenize(text)
    aliases = _aliases(tokens, columns)
    try:
        return _Reader(tokens, aliases, columns, keep_limit).query()
    except RecursionError:
        raise UnreadableError("nested too deeply") from None


def _aliases(tokens: list[str], columns: Mapping[str, frozenset[str]]) -> dict[str, str]:
    aliases: dict[str, str] = {}
    for index, word in enumerate(tokens):
        if word == "as":
            if tokens[index + 1] == END:
                raise UnreadableError("AS without a name at the end of the text")
            aliases[tokens[index + 1]] = tokens[index - 1] if index else tokens[-2]
    for table in columns:
        if table in aliases:
            raise UnreadableError(f"alias '{table}' is also the name of a table")
        aliases[table] = table
    return aliases


class _Reader:
    """Walks over the tokens; `at` is the next one to read."""

    __slots__ = ("aliases", "at", "columns", "keep_limit", "tokens")

    def __init__(
        self, tokens: list[str], aliases: dict[str, str], columns: Mapping[str, frozenset[str]], keep_limit: bool
    ) -> None:
        self.tokens = tokens
        self.aliases = aliases
        self.columns = columns
        self.keep_limit = keep_limit
        self.at = 0

    def fail(self, problem: str) -> UnreadableError:
        before = self.tokens[self.at - 1] if self.at else ""
        word = self.tokens[self.at] or "end of text"
        return UnreadableError(f"{problem} at '{f'{before} {word}'.strip()}' (token {self.at + 1})")

    def accept(self, word: str) -> bool:
        if self.tokens[self.at] == word:
            self.at += 1
            return True
        return False

    def expect(self, word: str, problem: str) -> None:
        if self.tokens[self.at] != word:
            raise self.fail(problem)
        self.at += 1

    def query(self) -> Query:
        start = self.at
        block = self.accept("(")
        select_at = self.at
        self.at = start
        tables, joins, names = self.from_part()
        after_from = self.at
        self.at = select_at
        distinct, select = self.select_list(names)
        self.at = after_from

        where = self.conditions(names) if self.accept("where") else ()
        group = self.group_by(names)
        having = self.conditions(names) if self.accept("having") else ()
        order = self.order_by(names)
        limit = self.limit()
        self.skip_semicolons()
        if block:
            self.expect(")", "no ')' after the query")
            self.skip_semicolons()
        operation, operand = None, None
        if self.tokens[self.at] in SET_OPERATORS:
            operation = self.tokens[self.at]
            self.at += 1
            operand = self.query()
        return Query(distinct, select, tables, joins, where, group, having, order, limit, operation, operand)

    def skip_semicolons(self) -> None:
        while self.tokens[self.at] == ";":
            self.at += 1

    def select_list(self, names: list[str]) -> tuple[bool, tuple[tuple[str, Unit], ...]]:
        self.expect("select", "SELECT expected")
        distinct = self.accept("distinct")
        items = []
        while (word := self.tokens[self.at]) not in CLAUSE_WORDS and word != END:
            aggregate = "none"
            if word in AGGREGATES:
                aggregate = word
                self.at += 1
            items.append((aggregate, self.unit(names)))
            self.accept(",")
        return distinct, tuple(items)

    def from_part(self) -> tuple[tuple[str | Query, ...], Conditions, list[str]]:
        try:
            self.at = self.tokens.index("from", self.at) + 1
        except ValueError:
            raise UnreadableError("no FROM") from None
        tables: list[str | Query] = []
        names: list[str] = []
        joins: list[Condition | str] = []
        while self.tokens[self.at] != END:
            block = self.accept("(")
            if self.tokens[self.at] == "select":
                tables.append(self.query())
            else:
                self.accept("join")
                name = self.table()
                tables.append(name)
                names.append(name)
            if self.accept("on"):
                if joins:
                    joins.append("and")
                joins.extend(self.conditions(names))
            if block:
                self.expect(")", "no ')' after a table in parentheses")
            if self.tokens[self.at] in _FROM_ENDS:
                break
        return tuple(tables), tuple(joins), names

    def table(self) -> str:
        word = self.tokens[self.at]
        name = self.aliases.get(word)
        if name is None or not self.has_name(name):
            raise self.fail(_table_problem(word, self.tokens[self.at - 1]))
        self.at += 3 if self.tokens[self.at + 1] == "as" else 1
        return name

    def has_name(self, name: str) -> bool:
        """Whether the evaluator's one map of names, for tables and columns alike, has it."""
        if name in self.columns or name == "*":
            return True
        table, dot, column = name.partition(".")
        return bool(dot) and table in self.columns and column in self.columns[table]

    def conditions(self, names: list[str]) -> Conditions:
        found: list[Condition | str] = []
        while self.tokens[self.at] != END:
            left = self.unit(names)
            negated = self.accept("not")
            operator = self.tokens[self.at]
            if operator not in OPERATORS:
                raise self.fail(_operator_problem(operator))
            self.at += 1
            value = self.value(names)
            high = None
            if operator == "between":
                self.expect("and", "BETWEEN without AND")
                high = self.value(names)
            found.append(Condition(negated, operator, left, value, high))
            word = self.tokens[self.at]
            if word in _CONDITION_ENDS:
                break
            if word in ("and", "or"):
                found.append(word)
                self.at += 1
        return tuple(found)

    def value(self, names: list[str]) -> Value:
        start = self.at
        block = self.accept("(")
        word = self.tokens[self.at]
        value: Value
        if word == "select":
            value = self.query()
        elif '"' in word:
            value = word
            self.at += 1
        else:
            try:
                value = float(word)
                self.at += 1
            except ValueError:
                value = self.swallowed_column(start, names)
        if block:
            self.expect(")", "no ')' after a value (a list of several values?)")
        return value

    def swallowed_column(self, start: int, names: list[str]) -> Column:
        end = self.at
        tokens = self.tokens
        while tokens[end] not in _SWALLOW_ENDS:
            end += 1
        cut = _Reader([*tokens[start:end], END], self.aliases, self.columns, self.keep_limit)
        try:
            column = cut.column(names)
        except UnreadableError:
            raise self.fail("value expected, a string, number, column or subquery,") from None
        self.at = end
        return column

    def unit(self, names: list[str]) -> Unit:
        block = self.accept("(")
        left = self.column(names)
        operator, right = "none", None
        if (word := self.tokens[self.at]) in ARITHMETIC:
            operator = word
            self.at += 1
            right = self.column(names)
        if block:
            self.expect(")", "no ')' after an expression")
        return operator, left, right

    def column(self, names: list[str]) -> Column:
        block = self.accept("(")
        word = self.tokens[self.at]
        if word in AGGREGATES:
            self.at += 1
            self.expect("(", f"no '(' after {word}")
            distinct = self.accept("distinct")
            name = self.column_name(names)
            self.expect(")", f"{word} of more than one column")
            return word, name, distinct  # the evaluator leaves a parenthesis around an aggregate open
        distinct = self.accept("distinct")
        name = self.column_name(names)
        if block:
            self.expect(")", "no ')' after a column")
        return "none", name, distinct

    def column_name(self, names: list[str]) -> str:
        word = self.tokens[self.at]
        columns = self.columns
        if word == "*":
            self.at += 1
            return "*"
        if "." in word:
            qualifier, _, column = word.partition(".")
            table = self.aliases.get(qualifier)
            if table is None or "." in column or column not in columns.get(table, ()):
                raise self.fail(_column_problem(word))
            self.at += 1
            return f"{table}.{column}"
        for table in names:
            if word in columns.get(table, ()):
                self.at += 1
                return f"{table}.{word}"
        raise self.fail(_column_problem(word))

    def group_by(self, names: list[str]) -> tuple[Column, ...]:
        if not self.accept("group"):
            return ()
        self.expect("by", "GROUP without BY")
        columns = []
        while self.tokens[self.at] not in _LIST_ENDS:
            columns.append(self.column(names))
            if not self.accept(","):
                break
        return tuple(columns)

    def order_by(self, names: list[str]) -> tuple[()] | tuple[str, tuple[Unit, ...]]:
        if not self.accept("order"):
            return ()
        self.expect("by", "ORDER without BY")
        direction = "asc"
        units = []
        while self.tokens[self.at] not in _LIST_ENDS:
            units.append(self.unit(names))
            if self.tokens[self.at] in ("asc", "desc"):
                direction = self.tokens[self.at]
                self.at += 1
            if not self.accept(","):
                break
        return direction, tuple(units)

    def limit(self) -> bool | str:
        if not self.accept("limit"):
            return False
        if (word := self.tokens[self.at]) == END:
            raise self.fail("LIMIT without a number")
        if self.keep_limit:
            try:
                word = str(int(word))
            except ValueError:
                raise self.fail("LIMIT of something else than a whole number") from None
        self.at += 1
        return word if self.keep_limit else True


def _table_problem(word: str, before: str) -> str:
    if word == ",":
        return "tables separated by a comma"
    if word in ("left", "right", "full", "inner", "cross", "natural", "outer", "using"):
        return f"{word.upper()} in FROM"
    if word == "(":
        return "JOIN of a derived table"
    if before == ")":
        return "alias of a derived table, or a word after it"
    if before not in ("from", "join", "("):
        return "table alias without AS, or a word after the tables"
    return "unknown table"


def _operator_problem(word: str) -> str:
    if word in ("<", ">", "=="):
        return f"operator starting with '{word}'"
    return "operator expected, one of = > < >= <= != in like is between, set off by blanks,"


def _column_problem(word: str) -> str:
    if word == END:
        return "column expected"
    if word == "as":
        return "column alias"
    if word in ("case", "cast", "exists", "not", "null", "select"):
        return f"{word.upper()} where a column is expected"
    if '"' in word or word[0].isdigit():
        return "literal where a column is expected"
    return "unknown column, or an expression that is no column,"
