"""
Realistic mistakes in SQL, made by editing a right query in place.

Two classes, by what finds them. An execution mistake fails or returns nothing: a column or a whole query on the wrong
table, a join left out, the wrong alias, a value looked for in another column, a misspelt name. A coherence mistake runs
and returns rows, and only a look at the earlier turns shows it: a filter lost, the last turn's query said again,
another aggregate, the order turned round, a column forgotten.

Edits keep the spelling of the query (quotes, case, spaces), so that nothing but the mistake tells the two apart.
Nothing is executed here: a caller makes sure that a mistake has the effect it is meant to have.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence

from sqlglot import exp

from agents.mtsql.sql_edits import PLAIN, Edit, Parsed, compared_texts, parse, renamed, replaced, span
from text2sql.schema import Schema, Table

AGGREGATES = ("AVG", "MAX", "MIN", "SUM")


def execution_mistakes(sql: str, schema: Schema, rng: random.Random) -> Iterator[str]:
    """Queries that should fail or return nothing, the likeliest mistakes first more often than not. May be empty."""
    parsed = parse(sql)
    if parsed is not None:
        yield from _drawn([(weight, maker(parsed, schema)) for maker, weight in EXECUTION_MISTAKES], rng)


def coherence_mistakes(sql: str, earlier: Sequence[str], rng: random.Random) -> Iterator[str]:
    """Queries that should run but forget or change something. `earlier`: SQL of the turns before. May be empty."""
    parsed = parse(sql)
    if parsed is not None:
        yield from _drawn([(weight, maker(parsed, earlier)) for maker, weight in COHERENCE_MISTAKES], rng)


def _drawn(kinds: list[tuple[float, list[str]]], rng: random.Random) -> Iterator[str]:
    """Draws a kind by weight, then one of its queries, until all are used up."""
    kinds = [(weight, list(dict.fromkeys(queries))) for weight, queries in kinds if queries]
    while kinds:
        index = rng.choices(range(len(kinds)), [weight for weight, _ in kinds])[0]
        queries = kinds[index][1]
        yield queries.pop(rng.randrange(len(queries)))
        if not queries:
            del kinds[index]


def _column_of_other_table(parsed: Parsed, schema: Schema) -> list[str]:
    """A column that only tables outside the query have, of the same type as the right one."""
    used = set(parsed.tables())
    known = {column.name.lower() for table in schema.tables if table.name.lower() in used for column in table.columns}
    known |= _keys(schema)
    found = []
    for column in _facts(parsed, schema):
        wanted = _type_of(column.name, [table for table in schema.tables if table.name.lower() in used])
        for table in schema.tables:
            if table.name.lower() not in used:
                names = [c.name for c in table.columns if _is_text(c.type) == wanted and c.name.lower() not in known]
                found += [parsed.edited([renamed(column, name)]) for name in names if PLAIN.fullmatch(name)]
    return found


def _other_table(parsed: Parsed, schema: Schema) -> list[str]:
    """
    The whole query on another table whose columns are alike (doctors for patients): each column is replaced by the
    column of the same type and position.
    """
    tables = list(parsed.tree.find_all(exp.Table))
    own = next(
        (table for table in schema.tables if len(tables) == 1 and table.name.lower() == tables[0].name.lower()), None
    )
    if own is None or not any(literal.is_string for literal in parsed.tree.find_all(exp.Literal)):
        return []
    found = []
    for other in schema.tables:
        twins = _twin_columns(own, other)
        if other is own or any(column.name.lower() not in twins for column in parsed.columns()):
            continue
        edits = [renamed(column, twins[column.name.lower()]) for column in parsed.columns()]
        found.append(parsed.edited([*edits, replaced(tables[0].this, other.name)]))
    return found


def _missing_join(parsed: Parsed, schema: Schema) -> list[str]:
    """All columns asked from the first table, without the join that some of them need."""
    joins = list(parsed.tree.find_all(exp.Join))
    tables = list(parsed.tree.find_all(exp.Table))
    if len(joins) != 1 or len(tables) != 2 or list(parsed.tree.find_all(exp.Subquery)):
        return []
    first = next(table for table in tables if table.find_ancestor(exp.Join) is None)
    if first.this.meta["start"] > span(joins[0])[0]:
        return []
    inside = {id(column) for column in joins[0].find_all(exp.Column)}
    edits: list[Edit] = [(first.this.meta["end"] + 1, span(joins[0])[1], "")]
    for column in parsed.columns():
        if id(column) not in inside and column.args.get("table"):
            edits.append((column.args["table"].meta["start"], column.this.meta["start"], ""))
    return [parsed.edited(edits)]


def _wrong_alias(parsed: Parsed, schema: Schema) -> list[str]:
    """A column asked from the other table of a join."""
    aliases = {table.alias_or_name.lower(): table.name.lower() for table in parsed.tree.find_all(exp.Table)}
    has = {table.name.lower(): {column.name.lower() for column in table.columns} for table in schema.tables}
    found = []
    for column in parsed.columns():
        said = column.args.get("table")
        if said is None:
            continue
        for alias, table in aliases.items():
            if alias != column.table.lower() and column.name.lower() not in has.get(table, set()):
                text = alias.upper() if said.name.isupper() else alias
                found.append(parsed.edited([replaced(said, text)]))
    return found


def _value_in_other_column(parsed: Parsed, schema: Schema) -> list[str]:
    """A text looked for in another text column of the same table."""
    aliases = {table.alias_or_name.lower(): table.name.lower() for table in parsed.tree.find_all(exp.Table)}
    found = []
    for column, _ in compared_texts(parsed):
        names = {aliases.get(column.table.lower())} if column.table else set(aliases.values())
        for table in schema.tables:
            if table.name.lower() in names:
                others = [c.name for c in table.columns if _is_text(c.type) and c.name.lower() != column.name.lower()]
                found += [parsed.edited([renamed(column, name)]) for name in others if PLAIN.fullmatch(name)]
    return found


def _wrong_case(parsed: Parsed, schema: Schema) -> list[str]:
    """A text with its first letter in the other case."""
    found = []
    for _, literal in compared_texts(parsed):
        start, text = literal.meta["start"] + 1, literal.name
        if text and text[0].isalpha():
            found.append(parsed.edited([(start, start + 1, text[0].swapcase())]))
    return found


def _misspelt(parsed: Parsed, schema: Schema) -> list[str]:
    """A column in the plural, or without its plural."""
    known = {column.name.lower() for table in schema.tables for column in table.columns}
    found = []
    for column in _facts(parsed, schema):
        name = column.name[:-1] if column.name.endswith("s") else column.name + "s"
        if name.lower() not in known and PLAIN.fullmatch(column.name):
            found.append(parsed.edited([renamed(column, name)]))
    return found


def _misspelt_table(parsed: Parsed, schema: Schema) -> list[str]:
    """A table in the plural, or without its plural."""
    known = {table.name.lower() for table in schema.tables}
    found = []
    for table in parsed.tree.find_all(exp.Table):
        name = table.name[:-1] if table.name.endswith("s") else table.name + "s"
        if name.lower() not in known and PLAIN.fullmatch(table.name) and isinstance(table.this, exp.Identifier):
            found.append(parsed.edited([replaced(table.this, name)]))
    return found


def _lost_condition(parsed: Parsed, earlier: Sequence[str]) -> list[str]:
    """A filter of an earlier turn left out."""
    where = parsed.tree.args.get("where")
    if where is None or where.find(exp.Select):
        return []
    conditions = list(where.this.flatten()) if isinstance(where.this, exp.And | exp.Or) else [where.this]
    spans = [span(condition) for condition in conditions]
    before = parsed.sql[: spans[0][0]].upper().rfind("WHERE")
    found = []
    for index, (start, end) in enumerate(spans):
        if len(spans) == 1:
            cut = (len(parsed.sql[:before].rstrip()), end)
        elif index == 0:
            cut = (start, spans[1][0])
        else:
            cut = (spans[index - 1][1], end)
        if any(literal.name in said for literal in conditions[index].find_all(exp.Literal) for said in earlier):
            found.append(parsed.edited([(*cut, "")]))
    return found


def _said_again(parsed: Parsed, earlier: Sequence[str]) -> list[str]:
    """The query of the turn before, unchanged."""
    return [earlier[-1]] if earlier and earlier[-1] != parsed.sql else []


def _other_aggregate(parsed: Parsed, earlier: Sequence[str]) -> list[str]:
    found = []
    for function in parsed.tree.find_all(exp.Avg, exp.Max, exp.Min, exp.Sum):
        if "start" in function.meta:
            said = parsed.sql[function.meta["start"] : function.meta["end"] + 1]
            for name in AGGREGATES:
                if name != said.upper():
                    new = name.lower() if said.islower() else name
                    found.append(parsed.edited([(function.meta["start"], function.meta["end"] + 1, new)]))
    return found


def _turned_order(parsed: Parsed, earlier: Sequence[str]) -> list[str]:
    """ASC for DESC and the other way round."""
    words = list(re.finditer(r"\b(ASC|DESC)\b", parsed.sql, re.IGNORECASE))
    inside = [span(literal) for literal in parsed.tree.find_all(exp.Literal)]
    found = []
    for word in words:
        if not any(start <= word.start() < end for start, end in inside):
            new = "DESC" if word[0].upper() == "ASC" else "ASC"
            found.append(parsed.edited([(*word.span(), new.lower() if word[0].islower() else new)]))
    return found


def _forgotten_column(parsed: Parsed, earlier: Sequence[str]) -> list[str]:
    """One of several select items left out, the last one."""
    select = parsed.tree
    if not isinstance(select, exp.Select) or len(select.expressions) < 2:
        return []
    before, last = (_end_of_item(parsed.sql, item) for item in select.expressions[-2:])
    return [parsed.edited([(before, last, "")])]


def _end_of_item(sql: str, item: exp.Expr) -> int:
    """Behind a select item, with the closing bracket of an aggregate."""
    end = span(item)[1]
    return sql.index(")", end) + 1 if isinstance(item, exp.AggFunc) else end


Maker = Callable[[Parsed, Schema], list[str]]
EXECUTION_MISTAKES: tuple[tuple[Maker, float], ...] = (
    (_column_of_other_table, 3),
    (_other_table, 5),
    (_missing_join, 3),
    (_wrong_alias, 2),
    (_value_in_other_column, 3),
    (_wrong_case, 0.5),
    (_misspelt, 1),
    (_misspelt_table, 0.5),
)
COHERENCE_MISTAKES: tuple[tuple[Callable[[Parsed, Sequence[str]], list[str]], float], ...] = (
    (_lost_condition, 5),
    (_said_again, 3),
    (_other_aggregate, 3),
    (_turned_order, 2),
    (_forgotten_column, 2),
)


def _keys(schema: Schema) -> set[str]:
    """Names of columns that only link rows: primary and foreign keys."""
    keys = {name.lower() for table in schema.tables for name in table.primary_key}
    return keys | {key.column.lower() for key in schema.foreign_keys}


def _facts(parsed: Parsed, schema: Schema) -> list[exp.Column]:
    """Columns of the query that are no keys."""
    keys = _keys(schema)
    return [column for column in parsed.columns() if column.name.lower() not in keys]


def _is_text(declared: str) -> bool:
    return any(word in declared.upper() for word in ("CHAR", "TEXT", "CLOB"))


def _type_of(name: str, tables: Sequence[Table]) -> bool:
    """Whether the column called `name` holds text."""
    return any(_is_text(c.type) for table in tables for c in table.columns if c.name.lower() == name.lower())


def _twin_columns(own: Table, other: Table) -> dict[str, str]:
    """Columns of `own` mapped to the columns of `other` of the same type in the same position."""
    pairs: dict[str, str] = {}
    for text in (True, False):
        mine = [column.name for column in own.columns if _is_text(column.type) == text]
        theirs = [column.name for column in other.columns if _is_text(column.type) == text]
        pairs |= {a.lower(): b for a, b in zip(mine, theirs, strict=False) if PLAIN.fullmatch(b)}
    return pairs
