"""
Why a wrong prediction is wrong: one class per prediction, decided from gold, prediction and the earlier turns' SQL.

The paper names the classes and does not define them (figure of its introduction). Here they are, in the order in which
they are tried; the first that fits is the answer. Examples are over singer(id, name, age, country) and song(id, title,
singer_id); elements are those of `evaluation.clauses`.

execution             there is no answer, it is no query that can be read, or the database refuses or stops it
                      gold SELECT name FROM singer            prediction SELECT nam FROM singer
constraint_coherence  a condition, HAVING or LIMIT that an earlier turn set and gold keeps is lost or changed, or one
                      that gold no longer has is carried on
                      earlier ... WHERE country = 'France'    gold SELECT age FROM singer WHERE country = 'France'
                                                              prediction SELECT age FROM singer
join_path             other tables, or the same tables joined on other columns, although SELECT, WHERE and ORDER BY use
                      the same columns
                      gold ... JOIN song ON singer.id = song.singer_id
                                                              prediction ... JOIN song ON singer.id = song.id
schema_linking        other tables, and so other columns
                      gold SELECT name FROM singer            prediction SELECT title FROM song
aggregation_drift     another aggregate function, or another GROUP BY or HAVING, over the same tables
                      gold SELECT max(age) FROM singer        prediction SELECT min(age) FROM singer
schema_linking        other columns of the same tables
                      gold SELECT name FROM singer            prediction SELECT age FROM singer
other                 anything else: order, literals, set operations, what AND and OR bind
                      gold ... ORDER BY age                   prediction ... ORDER BY age DESC
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

from evaluation.clauses import ClauseView, clause_view
from evaluation.schema_index import EvaluatorSchema

ErrorClass = Literal["execution", "constraint_coherence", "schema_linking", "join_path", "aggregation_drift", "other"]
ERROR_CLASSES: tuple[ErrorClass, ...] = get_args(ErrorClass)

_NOT_RUN = frozenset({"no_answer", "pred_error", "pred_timeout", "pred_too_large"})
_WORD = re.compile(r"'(?:[^']|'')*'|[\w.]+")
_FUNCTION = re.compile(r"\w+")


def classify_error(
    gold: str, pred: str | None, history: Sequence[str], schema: EvaluatorSchema | None = None, status: str = ""
) -> ErrorClass:
    """
    The class of a wrong prediction. `history`: the SQL of the earlier turns, as the agent saw it. `schema` settles
    which table a bare column belongs to. `status`: of the verdict, see `evaluation.execution_match`. Never raises.
    """
    tables = tuple(schema.ordered_columns.items()) if schema is not None else None
    found = clause_view(pred, tables) if pred and status not in _NOT_RUN else None
    if found is None:
        return "execution"
    asked = clause_view(gold, tables)
    if asked is None:
        return "other"
    earlier = {constraint for sql in history if (view := clause_view(sql, tables)) for constraint in view.constraints}
    if set(asked.constraints) & earlier != set(found.constraints) & earlier:
        return "constraint_coherence"
    same_columns = _columns(asked) == _columns(found)
    if asked.tables != found.tables or _joins(asked) != _joins(found):
        return "join_path" if same_columns or asked.tables == found.tables else "schema_linking"
    if _functions(asked) != _functions(found) or asked.clauses.get("group") != found.clauses.get("group"):
        return "aggregation_drift"
    return "other" if same_columns else "schema_linking"


def _columns(view: ClauseView) -> set[str]:
    """The columns that the query is about: those of SELECT, WHERE and ORDER BY."""
    elements = [element for clause in ("select", "where", "order") for element in view.clauses.get(clause, ())]
    words = {word for element in elements for word in _WORD.findall(element)}
    return words & set(view.columns)


def _joins(view: ClauseView) -> set[str]:
    return set(view.clauses.get("join", ()))


def _functions(view: ClauseView) -> Counter[str]:
    """How often each aggregate function is called, whatever it is called on."""
    return Counter(match.group() for call in view.aggregates if (match := _FUNCTION.match(call)))
