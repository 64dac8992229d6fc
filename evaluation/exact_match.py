"""
Exact set match (EM) as the official Spider/SParC/CoSQL evaluator computes it, pair for pair.

A prediction that the official parser cannot read is wrong however right it is; `readable` and `reason` say so. What
the two queries mean, whatever their spelling, is compared by `exact_match_sound` (`evaluation.sound`) and reported
beside EM, never in its place.

Reproduces: taoyds/test-suite-sql-eval at e97acc54, `--etype match` with its defaults (values and DISTINCT ignored).
"""

from dataclasses import dataclass
from functools import lru_cache

from evaluation import hardness as _hardness
from evaluation.official_parser import UNREAD, Query, parse
from evaluation.official_tokens import UnreadableError
from evaluation.schema_index import EvaluatorSchema, load_schema
from evaluation.set_match import EvaluatorRaisesError, normalise, partial_scores, verdict
from evaluation.sound import exact_match_sound

__all__ = ["EvaluatorSchema", "ExactMatch", "exact_match", "exact_match_sound", "hardness", "load_schema"]


@dataclass(frozen=True)
class ExactMatch:
    """
    One verdict. `em` is None where the evaluator would stop: the gold is unreadable or the comparison raises; then
    `partial` is None too. `partial`: part to [accuracy, recall, f1, gold count, predicted count]. `hardness` is the
    gold's. `readable`: the prediction could be read; otherwise `reason` says why not.
    """

    em: bool | None
    partial: dict[str, list[int]] | None
    hardness: str | None
    readable: bool
    reason: str | None


@dataclass(frozen=True)
class _Gold:
    query: Query | None  # normalised; None: unreadable, or the evaluator raises on it
    hardness: str | None
    reason: str | None


def exact_match(gold: str, pred: str, schema: EvaluatorSchema) -> ExactMatch:
    """
    EM of one pair. Never raises on account of the SQL. Runs of white space count as one blank, since the evaluator's
    input is one query a line; in the prediction the letters `value` become `1`, as they do there.
    """
    known = _gold(gold, schema)
    readable, reason = True, None
    try:
        parsed = parse(_one_line(pred).replace("value", "1"), schema.columns)
    except UnreadableError as error:
        parsed, readable, reason = UNREAD, False, f"not readable: {error}"
    if known.query is None:
        return ExactMatch(None, None, known.hardness, readable, known.reason)
    try:
        query = normalise(parsed, schema.representatives)
        partial = partial_scores(known.query, query)
        em = verdict(known.query, query, partial)
    except (EvaluatorRaisesError, RecursionError) as error:
        return ExactMatch(None, None, known.hardness, readable, f"the evaluator raises: {error}")
    return ExactMatch(em, partial, known.hardness, readable, reason)


def hardness(gold: str, schema: EvaluatorSchema) -> str | None:
    """easy, medium, hard or extra; None when the evaluator cannot read the gold. Never raises."""
    return _gold(gold, schema).hardness


@lru_cache(maxsize=32_768)
def _gold(gold: str, schema: EvaluatorSchema) -> _Gold:
    try:
        parsed = parse(_one_line(gold), schema.columns)
    except UnreadableError as error:
        return _Gold(None, None, f"gold not readable: {error}")
    rating = None
    try:
        rating = _hardness.rate(parsed)
        return _Gold(normalise(parsed, schema.representatives), rating, None)
    except (EvaluatorRaisesError, RecursionError) as error:
        return _Gold(None, rating, f"the evaluator raises on the gold: {error}")


def _one_line(text: str) -> str:
    return " ".join(text.split())
