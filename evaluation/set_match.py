"""
The comparison of exact set match: two parsed queries, normalised, ten partial scores, and the tables of FROM.

Works on the structures of `evaluation.official_parser`, whoever made them: the official reading and the sound reading
(`evaluation.sound`) are compared by the same rules.

Normalisation
- Values in conditions are dropped unless they are subqueries, columns on the right side included; recursively in those
  subqueries and in set operands, not in derived tables.
- DISTINCT is dropped in the query and its set operands; it stays in subqueries and derived tables.
- A column joined to others by foreign keys becomes its group's representative, if its own table is a plain table of the
  outer query's FROM. Left sides, select list, GROUP BY, ORDER BY; never inside subqueries or derived tables.

Behaviour verified against: taoyds/test-suite-sql-eval at e97acc54, `evaluation.py`.
"""

from collections.abc import Mapping
from typing import Any

from evaluation.official_parser import Column, Condition, Conditions, Query, Unit, Value

PARTS = (
    "select",
    "select(no AGG)",
    "where",
    "where(no OP)",
    "group(no Having)",
    "group",
    "order",
    "and/or",
    "IUEN",
    "keywords",
)


class EvaluatorRaisesError(Exception):
    """The official evaluator itself would stop with an exception on this pair; that is a verdict of its own."""


def normalise(query: Query, representatives: Mapping[str, str]) -> Query:
    """The query with values, DISTINCT and foreign keys evened out. Raises EvaluatorRaisesError."""
    prefixes = tuple(f"{table}." for table in query.tables if isinstance(table, str))
    renamed = {
        column: representative
        for column, representative in representatives.items()
        if column != representative and column.startswith(prefixes)
    }
    return _normalised(query, renamed)


def _normalised(query: Query, renamed: Mapping[str, str]) -> Query:
    order = query.order
    return Query(
        None,
        tuple([(aggregate, _unit(unit, renamed)) for aggregate, unit in query.select]),
        query.tables,
        _conditions(query.joins, renamed),
        _conditions(query.where, renamed),
        tuple([_column(column, renamed) for column in query.group]),
        _conditions(query.having, renamed),
        (order[0], tuple([_unit(unit, renamed) for unit in order[1]])) if order else (),
        query.limit,
        query.operation,
        _normalised(query.operand, renamed) if query.operand is not None else None,
    )


def _column(column: Column, renamed: Mapping[str, str]) -> Column:
    aggregate, name, _ = column
    return aggregate, renamed.get(name, name), None


def _unit(unit: Unit, renamed: Mapping[str, str]) -> Unit:
    operator, left, right = unit
    return operator, _column(left, renamed), _column(right, renamed) if right is not None else None


def _conditions(conditions: Conditions, renamed: Mapping[str, str] | None) -> Conditions:
    """Conditions without their values; left sides renamed, or left alone where `renamed` is None (in subqueries)."""
    if not conditions:
        return ()
    result = list(conditions)
    for index in range(0, len(result), 2):
        condition = result[index]
        if isinstance(condition, str):  # two conditions without a connector stand before it
            raise EvaluatorRaisesError("conditions and connectors out of step")
        left = condition.left if renamed is None else _unit(condition.left, renamed)
        value, high = _value(condition.value), _value(condition.high)
        result[index] = Condition(condition.negated, condition.operator, left, value, high)
    return tuple(result)


def _value(value: Value) -> Query | None:
    return _without_values(value) if isinstance(value, Query) else None


def _without_values(query: Query) -> Query:
    return query._replace(
        joins=_conditions(query.joins, None),
        where=_conditions(query.where, None),
        having=_conditions(query.having, None),
        operand=_without_values(query.operand) if query.operand is not None else None,
    )


def partial_scores(gold: Query, pred: Query) -> dict[str, list[int]]:
    """
    Per part `[accuracy, recall, f1, gold count, predicted count]` of two normalised queries; the first three are
    0 or 1 and always equal. Raises EvaluatorRaisesError.
    """
    select, select_plain = _matches(gold.select, pred.select)
    where, where_plain = _where(gold, pred)
    return {
        "select": select,
        "select(no AGG)": select_plain,
        "where": where,
        "where(no OP)": where_plain,
        "group(no Having)": _group_names(gold, pred),
        "group": _group(gold, pred),
        "order": _order(gold, pred),
        "and/or": _connectors(gold, pred),
        "IUEN": _set_operations(gold, pred),
        "keywords": _keywords(gold, pred),
    }


def queries_match(gold: Query, pred: Query) -> bool:
    """Exact match of two normalised queries. Raises EvaluatorRaisesError."""
    return verdict(gold, pred, partial_scores(gold, pred))


def verdict(gold: Query, pred: Query, partial: Mapping[str, list[int]]) -> bool:
    """Exact match, given the partial scores: all of them 1 and the same tables. Raises EvaluatorRaisesError."""
    if not all(score[2] for score in partial.values()):
        return False
    return not gold.tables or _sorted_tables(gold) == _sorted_tables(pred)


def _sorted_tables(query: Query) -> tuple[list[str], list[Query]]:
    derived = [table for table in query.tables if not isinstance(table, str)]
    if any(table != derived[0] for table in derived):
        raise EvaluatorRaisesError("two different derived tables in one FROM cannot be sorted")
    return sorted([table for table in query.tables if isinstance(table, str)]), derived


def _score(matched: int, gold: int, pred: int) -> list[int]:
    right = int(gold == pred == matched)
    return [right, right, right, gold, pred]


def _paired(gold: list[Any], pred: list[Any]) -> int:
    """How many of `pred` find a partner of their own in `gold`."""
    if gold == pred:
        return len(gold)
    left = list(gold)
    matched = 0
    for item in pred:
        if item in left:
            left.remove(item)
            matched += 1
    return matched


def _matches(gold: tuple[tuple[str, Unit], ...], pred: tuple[tuple[str, Unit], ...]) -> tuple[list[int], list[int]]:
    with_aggregate = _paired(list(gold), list(pred))
    without = _paired([unit for _, unit in gold], [unit for _, unit in pred])
    return _score(with_aggregate, len(gold), len(pred)), _score(without, len(gold), len(pred))


def _where(gold: Query, pred: Query) -> tuple[list[int], list[int]]:
    golds, preds = list(gold.where[::2]), list(pred.where[::2])
    whole = _paired(golds, preds)
    left = _paired([condition[2] for condition in golds], [condition[2] for condition in preds])
    return _score(whole, len(golds), len(preds)), _score(left, len(golds), len(preds))


def _group_names(gold: Query, pred: Query) -> list[int]:
    golds = [name.partition(".")[2] or name for _, name, _ in gold.group]
    preds = [name.partition(".")[2] or name for _, name, _ in pred.group]
    return _score(_paired(golds, preds), len(golds), len(preds))


def _group(gold: Query, pred: Query) -> list[int]:
    same = (
        bool(gold.group)
        and bool(pred.group)
        and [name for _, name, _ in gold.group] == [name for _, name, _ in pred.group]
        and gold.having == pred.having
    )
    return _score(int(same), int(bool(gold.group)), int(bool(pred.group)))


def _order(gold: Query, pred: Query) -> list[int]:
    same = bool(gold.order) and gold.order == pred.order and gold.limit == pred.limit
    return _score(int(same), int(bool(gold.order)), int(bool(pred.order)))


def _connectors(gold: Query, pred: Query) -> list[int]:
    golds, preds = set(_odd(gold.where)), set(_odd(pred.where))
    if golds == preds:
        return [1, 1, 1, 1, 1]
    return [0, 0, 0, len(preds), len(golds)]  # the evaluator swaps the two counts


def _odd(conditions: Conditions) -> Conditions:
    connectors = conditions[1::2]
    for connector in connectors:
        if isinstance(connector, Condition) and (
            isinstance(connector.value, Query) or isinstance(connector.high, Query)
        ):
            raise EvaluatorRaisesError("a condition with a subquery stands where a connector should")
    return connectors


def _set_operations(gold: Query, pred: Query) -> list[int]:
    golds, preds = int(gold.operand is not None), int(pred.operand is not None)
    matched = 0
    if gold.operand is not None and pred.operand is not None and gold.operation == pred.operation:
        matched = int(queries_match(gold.operand, pred.operand))
    return _score(matched, golds, preds)


def _keywords(gold: Query, pred: Query) -> list[int]:
    golds, preds = keywords(gold), keywords(pred)
    return _score(len(golds & preds), len(golds), len(preds))


def keywords(query: Query) -> set[str]:
    """The keywords that count for this level of the query."""
    found: set[str] = set()
    if query.where:
        found.add("where")
    if query.group:
        found.add("group")
    if query.having:
        found.add("having")
    if query.order:
        found.update(("order", query.order[0]))
    if query.limit:
        found.add("limit")
    if query.operation:
        found.add(query.operation)
    for conditions in (query.joins, query.where, query.having):
        if "or" in conditions[1::2]:
            found.add("or")
        for condition in conditions[::2]:
            if condition[0]:
                found.add("not")
            if condition[1] == "in" or condition[1] == "like":
                found.add(condition[1])
    return found
