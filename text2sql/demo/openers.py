"""
Questions that stand alone: the first turn of a dialogue, or a change of subject later on.

Each function draws one question, or gives None when this database or this draw does not offer it. OPENERS lists them
with their weights.
"""

from collections.abc import Callable
from dataclasses import replace

from text2sql.demo.domain import Table
from text2sql.demo.draw import Draw, Step
from text2sql.demo.query import COUNT, Condition, Field, Item, Query, column_of, label_of

AGGREGATES = ("AVG", "MAX", "MIN", "SUM")


def listing(draw: Draw) -> Step:
    table = draw.table()
    return Step("list", _list(draw, table))


def filtered(draw: Draw) -> Step | None:
    table = draw.table()
    condition = draw.condition(table.name)
    if not condition:
        return None
    return Step("filter", replace(_list(draw, table), where=(condition,)), condition=condition)


def filtered_twice(draw: Draw) -> Step | None:
    table = draw.table()
    first = draw.condition(table.name)
    second = first and draw.condition(table.name, avoid=[first.field])
    if not first or not second:
        return None
    return Step("filter", replace(_list(draw, table), where=(first, second)), condition=first)


def either(draw: Draw) -> Step | None:
    table = draw.table()
    field = draw.pick(draw.categories(table))
    if not field:
        return None
    first, second = draw.rng.sample(sorted(set(draw.values(table.name, field))), 2)
    where = (Condition(field, "=", first), Condition(field, "=", second))
    return Step("filter", replace(_list(draw, table), where=where, connector="OR"), condition=where[0])


def named_like(draw: Draw) -> Step | None:
    table = draw.table()
    field = label_of(draw.domain, table.name)
    name = draw.rng.choice(draw.values(table.name, field))
    if table.person or " " not in name:
        return None
    word = name.split()[-1]
    condition = Condition(field, "LIKE", f"%{word}%")
    return Step("filter", replace(_list(draw, table), where=(condition,)), condition=condition)


def columns(draw: Draw) -> Step | None:
    table = draw.table(labelled=False)
    options = draw.categories(table) + draw.numbers(table)
    options += [label_of(draw.domain, ref.parent) for ref in table.of_kind("reference") if ref.name != table.shown]
    field = draw.rng.choice(options)
    query = _list(draw, table)
    wanted = draw.rng.random() < 0.6 or not table.label
    condition = draw.condition(table.name, avoid=[field, *draw.told(table)]) if wanted else None
    where = (condition,) if condition else ()
    return Step("columns", replace(query, select=(*query.select, Item(field)), where=where), field=field)


def counting(draw: Draw) -> Step | None:
    table = draw.table(labelled=False)
    condition = draw.condition(table.name) if draw.rng.random() < 0.8 else None
    return Step("count", Query("count", table.name, (COUNT,), (condition,) if condition else ()))


def aggregate(draw: Draw) -> Step | None:
    table = draw.table(labelled=False)
    field = draw.pick(draw.numbers(table))
    if not field:
        return None
    function = _aggregate(draw, field)
    condition = draw.condition(table.name, avoid=[field]) if draw.rng.random() < 0.6 else None
    query = Query("aggregate", table.name, (Item(field, function),), (condition,) if condition else ())
    return Step("aggregate", query, field=field, aggregate=function)


def range_of(draw: Draw) -> Step | None:
    table = draw.table(labelled=False)
    field = draw.pick(draw.numbers(table))
    if not field:
        return None
    query = Query("aggregate", table.name, (Item(field, "MIN"), Item(field, "MAX")))
    return Step("range", query, field=field)


def different(draw: Draw) -> Step | None:
    table = draw.table(labelled=False)
    field = draw.pick(draw.categories(table))
    if not field:
        return None
    condition = draw.condition(table.name, avoid=[field]) if draw.rng.random() < 0.5 else None
    where = (condition,) if condition else ()
    if draw.rng.random() < 0.4:
        return Step("count_different", Query("count", table.name, (Item(field, "COUNT", True),), where), field=field)
    return Step("different", Query("values", table.name, (Item(field),), where, distinct=True), field=field)


def grouped(draw: Draw) -> Step | None:
    table = draw.table(labelled=False)
    key = draw.pick(draw.keys(table))
    if not key:
        return None
    condition = draw.condition(table.name, avoid=[key], own=True) if draw.rng.random() < 0.3 else None
    query = Query("groups", table.name, (Item(key), COUNT), (condition,) if condition else (), group=key)
    return Step("group", query, key=key)


def grouped_aggregate(draw: Draw) -> Step | None:
    table = draw.table(labelled=False)
    key, field = draw.pick(draw.keys(table)), draw.pick(draw.numbers(table, dates=False))
    if not key or not field:
        return None
    function = _aggregate(draw, field)
    query = Query("groups", table.name, (Item(key), Item(field, function)), group=key)
    return Step("group_aggregate", query, key=key, field=field, aggregate=function)


def having(draw: Draw) -> Step | None:
    table = draw.table(labelled=False)
    key = draw.pick(draw.keys(table))
    if not key:
        return None
    counts = sorted(row[1] for row in draw.run(Query("groups", table.name, (Item(key), COUNT), group=key)))
    bound = (draw.rng.choice((">", ">=")), counts[len(counts) // 2])
    query = Query("groups", table.name, (Item(key),), group=key, having=bound)
    return Step("having", query, key=key, number=bound[1], aggregate=bound[0])


def top_group(draw: Draw) -> Step | None:
    table = draw.table(labelled=False)
    key = draw.pick(draw.keys(table))
    if not key:
        return None
    condition = draw.condition(table.name, avoid=[key], own=True) if draw.rng.random() < 0.25 else None
    most = draw.rng.random() < 0.7
    query = Query("top_group", table.name, (Item(key),), (condition,) if condition else (), group=key)
    return Step("top_group", replace(query, order=COUNT, descending=most, limit=1), key=key)


def top(draw: Draw) -> Step | None:
    table = draw.table(labelled=False)
    field = draw.pick(draw.numbers(table))
    if not field:
        return None
    avoid = [field, *draw.told(table)]
    condition = draw.condition(table.name, avoid=avoid) if draw.rng.random() < 0.5 else None
    query = replace(_list(draw, table), kind="top", where=(condition,) if condition else ())
    query = replace(query, order=Item(field), descending=draw.rng.random() < 0.6, limit=1)
    return Step("top" if table.label else "top_event", query, field=field)


def top_some(draw: Draw) -> Step | None:
    table = draw.table()
    field = draw.pick(draw.numbers(table))
    if not field:
        return None
    count = draw.rng.choice((2, 3, 4, 5))
    query = replace(_list(draw, table), order=Item(field), descending=draw.rng.random() < 0.6, limit=count)
    return Step("top_some", query, field=field, number=count)


def lookup(draw: Draw) -> Step:
    """A fact about one named row. Twin tables (doctors, patients) answer the same question with other columns."""
    fields = [Field(table.name, column.name) for table in draw.domain.tables for column in table.columns if column.ask]
    nouns = [column_of(draw.domain, field).noun for field in fields]
    field = draw.rng.choices(fields, [4 if nouns.count(noun) > 1 else 1 for noun in nouns])[0]
    label = label_of(draw.domain, field.table)
    name = draw.rng.choice(draw.values(field.table, label))
    query = Query("lookup", field.table, (Item(field),), (Condition(label, "=", name),))
    return Step("lookup", query, field=field, name=name)


def above_average(draw: Draw) -> Step | None:
    table = draw.table()
    field = draw.pick(draw.numbers(table, dates=False))
    if not field:
        return None
    condition = average_condition(field, draw.rng.choice("><"))
    return Step("above_average", replace(_list(draw, table), where=(condition,)), field=field, condition=condition)


def without_children(draw: Draw) -> Step | None:
    pairs = [(t, child, ref) for t in draw.domain.tables if t.label for child, ref in draw.domain.children(t.name)]
    table, child, reference = draw.rng.choice(pairs)
    inner = Query("values", child.name, (Item(Field(child.name, reference.name)),))
    condition = Condition(Field(table.name, "id"), "NOT IN", query=inner)
    return Step("without", replace(_list(draw, table), where=(condition,)), condition=condition, child=child.name)


def with_children(draw: Draw) -> Step | None:
    pairs = [(t, child, ref) for t in draw.domain.tables if t.label for child, ref in draw.domain.children(t.name)]
    table, child, reference = draw.rng.choice(pairs)
    inner_condition = draw.condition(child.name, own=True)
    if not inner_condition:
        return None
    inner = Query("values", child.name, (Item(Field(child.name, reference.name)),), (inner_condition,))
    condition = Condition(Field(table.name, "id"), "IN", query=inner)
    return Step("with", replace(_list(draw, table), where=(condition,)), condition=condition, child=child.name)


def two_sets(draw: Draw) -> Step | None:
    """INTERSECT or EXCEPT over the names or categories that rows with two different conditions share."""
    table = draw.table(labelled=False)
    keys = draw.categories(table) + [label_of(draw.domain, ref.parent) for ref in table.of_kind("reference")]
    key = draw.pick(keys)
    field = draw.pick([f for f in draw.categories(table) + draw.numbers(table) if f != key])
    if not key or not field:
        return None
    first, second = draw.condition_on(table.name, field), draw.condition_on(table.name, field)
    if first == second or "BETWEEN" in (first.op, second.op):
        return None
    if column_of(draw.domain, field).kind == "number" and (first.op, second.op) != (">", "<"):
        return None
    kind = draw.rng.choice(("INTERSECT", "EXCEPT"))
    right = Query("values", table.name, (Item(key),), (second,))
    query = Query("values", table.name, (Item(key),), (first,), combined=(kind, right))
    return Step("both" if kind == "INTERSECT" else "but_not", query, key=key, condition=first, other=second)


def twins(draw: Draw) -> Step | None:
    """UNION over two columns of the same noun in two tables, such as the home towns of doctors and of patients."""
    fields = [Field(t.name, c.name) for t in draw.domain.tables for c in t.of_kind("category") if c.ask]
    pairs = [
        (a, b)
        for a in fields
        for b in fields
        if a.table != b.table and column_of(draw.domain, a).noun == column_of(draw.domain, b).noun
    ]
    pair = draw.pick(pairs)
    if not pair:
        return None
    kind = draw.rng.choice(("UNION", "INTERSECT", "EXCEPT"))
    right = Query("values", pair[1].table, (Item(pair[1]),))
    query = Query("values", pair[0].table, (Item(pair[0]),), combined=(kind, right))
    return Step(f"twins_{kind.lower()}", query, field=pair[0], child=pair[1].table)


def average_condition(field: Field, op: str) -> Condition:
    return Condition(field, op, query=Query("aggregate", field.table, (Item(field, "AVG"),)))


def _list(draw: Draw, table: Table) -> Query:
    return Query("list", table.name, (Item(label_of(draw.domain, table.name)),))


def _aggregate(draw: Draw, field: Field) -> str:
    column = column_of(draw.domain, field)
    if column.high == "latest":
        return draw.rng.choice(("MAX", "MIN"))
    return draw.rng.choice(AGGREGATES if column.total else AGGREGATES[:3])


OPENERS: tuple[tuple[Callable[[Draw], Step | None], float], ...] = (
    (listing, 6),
    (filtered, 14),
    (filtered_twice, 4),
    (either, 4),
    (named_like, 3),
    (columns, 8),
    (counting, 11),
    (aggregate, 8),
    (range_of, 2),
    (different, 4),
    (grouped, 8),
    (grouped_aggregate, 5),
    (having, 4),
    (top_group, 5),
    (top, 10),
    (top_some, 7),
    (lookup, 24),
    (above_average, 4),
    (without_children, 3),
    (with_children, 4),
    (two_sets, 12),
    (twins, 5),
)
