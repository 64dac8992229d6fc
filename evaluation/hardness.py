"""
Hardness of a gold query as the official evaluator rates it: easy, medium, hard or extra.

Three counts decide: A, clauses, joins, `or` and LIKE; B, nested queries; C, how many of four things occur more than
once. Two oddities of the original are kept: "aggregates" in WHERE and HAVING are really negated conditions, and every
connector in HAVING counts as one.

Behaviour verified against: taoyds/test-suite-sql-eval at e97acc54, `evaluation.py`, on parsed but not normalised SQL.
"""

from evaluation.official_parser import Condition, Conditions, Query
from evaluation.set_match import EvaluatorRaisesError


def rate(query: Query) -> str:
    """The hardness of a parsed query. Raises EvaluatorRaisesError where the evaluator cannot count."""
    conditions = [*_even(query.joins), *_even(query.where), *_even(query.having)]
    components = _components(query, conditions)
    nested = sum(isinstance(value, Query) for condition in conditions for value in (condition.value, condition.high))
    nested += query.operand is not None
    several = _several(query)

    if nested == 0:
        if components <= 1 and several == 0:
            return "easy"
        if (several <= 2 and components <= 1) or (components <= 2 and several < 2):
            return "medium"
        if (several > 2 and components <= 2) or (2 < components <= 3 and several <= 2):
            return "hard"
    if components <= 1 and several == 0 and nested <= 1:
        return "hard"
    return "extra"


def _even(conditions: Conditions) -> list[Condition]:
    found = []
    for condition in conditions[::2]:
        if isinstance(condition, str):
            raise EvaluatorRaisesError("conditions and connectors out of step")
        found.append(condition)
    return found


def _components(query: Query, conditions: list[Condition]) -> int:
    ors = sum(clause[1::2].count("or") for clause in (query.joins, query.where, query.having))
    likes = sum(condition.operator == "like" for condition in conditions)
    clauses = bool(query.where) + bool(query.group) + bool(query.order) + bool(query.limit)
    return clauses + max(len(query.tables) - 1, 0) + ors + likes


def _several(query: Query) -> int:
    aggregates = sum(aggregate != "none" for aggregate, _ in query.select)
    aggregates += sum(condition.negated for condition in _even(query.where))
    aggregates += sum(aggregate != "none" for aggregate, _, _ in query.group)
    if query.order:
        for _, left, right in query.order[1]:
            aggregates += left[0] != "none"
            aggregates += right is not None and right[0] != "none"
    aggregates += sum(isinstance(part, str) or part.negated for part in query.having)
    return (aggregates > 1) + (len(query.select) > 1) + (len(query.where) > 1) + (len(query.group) > 1)
