"""
What the released reward code of MTSQL-R1 computes from the decoded text of an episode, for comparison with published
numbers. Nothing else in the project reads rewards from text.

    score = EX + EM + 0.8 G + 0.1 E + 0.1 M

Verified against taichengguo/MTSQL-R1 at a720f970, `text2sql_process.compute_score`. Its quirks, all kept:

 1. The final SQL is the last <answer_sql> block anywhere in the text, tool replies included, so the instructions'
    own example counts when the model never answers. Without any block: the SQL of the last call that can be read,
    then the last thinking block, then the whole text.
 2. Gold that fails scores EX 0. Gold that exact match cannot read scores EM 0 and makes every F 0.
 3. EX comes first: when it raises (an empty final SQL), EM is 0 too.
 4. The evaluator's copy does not replace `value` by 1. It keeps LIMIT's number and cannot read LIMIT of anything but
    a whole number; exact match sees the number in subqueries only.
 5. F, called an F1, is the share of clauses that are equal as parsed, of those that either query has: select, from,
    where, groupBy, having, orderBy, limit, intersect, union, except. Values, order and sides count. 0 if either query
    cannot be read; LIMIT 0 is no clause.
 6. G is the mean F over all calls written in the text: of either tool, repeated ones, ones inside thinking, ones never
    run. A trailing comma in the call's JSON is forgiven here, but not for E and M.
 7. E is a mean over exec_sql calls. The reply is the first tool reply after the call, whosesoever it is; the verdict
    is the first <exec_verify> after the call outside complete tool replies, however far; none counts as pass.
 8. The reply's status is guessed from its words: four phrases mean an error, signs such as [] or "0 rows" an empty
    result (also inside the data), everything else is fine, timeouts and most error messages included.
 9. An empty result earns 0 for pass and 0.1 for no_pass, whatever gold gives.
10. M is a mean over memory_retrieve calls of F for pass and 1 - F for no_pass, but reads <exec_verify> as in 7;
    <memory_verify> is never read. No later verdict counts as pass; the next execution's verdict is taken for this one.
11. Tags are read in any case for E and M, in lower case only for G and the answer.
12. A call whose name is no text spoils E and M for the whole episode.
13. Query and database are one text with one tab between them; a tab within the query is an error.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from evaluation.official_parser import UNREAD, Query, parse
from evaluation.official_tokens import UnreadableError
from evaluation.schema_index import EvaluatorSchema
from evaluation.set_match import EvaluatorRaisesError, normalise, partial_scores, verdict
from text2sql.errors import DataError
from text2sql.trajectory import Segment

WEIGHTS = {"execution_match": 1.0, "exact_match": 1.0, "propose": 0.8, "e_verify": 0.1, "m_verify": 0.1}

_ANSWER = re.compile(r"<answer_sql>(.*?)</answer_sql>", re.DOTALL)
_THINKING = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_CALL_ANY_CASE = re.compile(_CALL.pattern, re.DOTALL | re.IGNORECASE)
_REPLY = re.compile(r"<tool_response>(.*?)</tool_response>", re.DOTALL | re.IGNORECASE)
_VERDICT = re.compile(r"<exec_verify>\s*(pass|no_pass)\s*</exec_verify>", re.IGNORECASE)
_TRAILING_COMMA = re.compile(r",\s*([}\]])")
_ERROR_PHRASES = ("no such table", "no such column", "ambiguous column name", "syntax error")
_EMPTY_SIGNS = re.compile(
    r"\[\s*\]|\b(?:no|0)\s+rows?\b|\bempty\s+(?:result|set|list)\b|\bresult\s+set\s+is\s+empty\b|\bno\s+data\b"
    r"|\b(?:rows?|rowcount|count)\s*:\s*0\b",
    re.IGNORECASE,
)
_ODD_NUMBER = re.compile("nan|-", re.IGNORECASE)  # nan, unlike its text, differs from itself; -0 equals 0
_EMPTY_LIST = re.compile(r"\[\s*\]")
_EMPTY_WORDS = ("row", "empty", "data", "count")  # every other empty sign has one of them; looking for them is quick
_SCORES = {"ok": (1.0, 0.0), "error": (0.0, 1.0), "empty": (0.0, 0.1)}  # for pass, for no_pass


class AuthorsJudge(Protocol):
    """What is asked of `evaluation.verdicts.Scorer`."""

    def schema(self, db_id: str) -> EvaluatorSchema: ...
    def plain_execution_match(self, db_id: str, gold: str, pred: str) -> bool: ...


@dataclass(frozen=True)
class AuthorsScore:
    """Each part between 0 and 1, unweighted; `as_published` gives the weighted parts under the code's own names."""

    execution_match: float
    exact_match: float
    propose: float
    e_verify: float
    m_verify: float

    def as_published(self) -> dict[str, float]:
        outcome = self.execution_match + self.exact_match
        e_verify, m_verify = WEIGHTS["e_verify"] * self.e_verify, WEIGHTS["m_verify"] * self.m_verify
        propose = WEIGHTS["propose"] * self.propose
        return {
            "score": outcome + e_verify + m_verify + propose,
            "outcome_reward": outcome,
            "exec_verify_reward": e_verify,
            "coherence_reward": m_verify,
            "process_reward_for_generate": propose,
        }


def authors_score(solution: str, gold: str, db_id: str, judge: AuthorsJudge) -> AuthorsScore:
    """The score of one decoded episode. Raises only what the judge raises for a broken machine or database."""
    schema = judge.schema(db_id)
    final = final_sql(solution)
    ex = em = 0.0
    if final:
        ex = float(judge.plain_execution_match(db_id, gold, final))
        em = float(_exact_match(gold, final, schema))
    e_verify, m_verify = _verify(solution, gold, schema)
    codes = [code for call in _CALL.finditer(solution) if (code := _code(call[1])) is not None]
    propose = sum(clause_equality(gold, code, schema) for code in codes) / len(codes) if codes else 0.0
    return AuthorsScore(ex, em, propose, e_verify, m_verify)


def decoded_text(segments: Sequence[Segment]) -> str:
    """An episode of ours as the authors' code would see it decoded: role words as bare lines, no special tokens."""
    pieces = []
    for segment in segments:
        if segment.author == "model":
            pieces.append(segment.text)
        elif segment.author == "environment":
            pieces.append(f"\nuser\n<tool_response>\n{segment.text}\n</tool_response>\nassistant\n")
    return "".join(pieces)


def split_ground_truth(ground_truth: str) -> tuple[str, str]:
    """Query and database id of `query<TAB>db_id`. Raises DataError."""
    parts = ground_truth.split("\t")
    if len(parts) != 2:
        raise DataError(f"ground_truth has {len(parts) - 1} tabs; expected one, between query and database id")
    return parts[0], parts[1]


def final_sql(solution: str) -> str:
    """Quirk 1."""
    if answers := _ANSWER.findall(solution):
        found = answers[-1]
    elif (code := next((c for c in map(_code, reversed(_CALL.findall(solution))) if c is not None), None)) is not None:
        found = code
    elif thinking := _THINKING.findall(solution):
        found = thinking[-1]
    else:
        return solution
    return str(found).replace("\n", " ").strip()


@lru_cache(maxsize=32_768)
def clause_equality(gold: str, pred: str, schema: EvaluatorSchema) -> float:
    """F: the share of clauses that are equal as parsed (quirk 5)."""
    expected, found = _clauses(gold, schema), _clauses(pred, schema)
    if expected is None or found is None:
        return 0.0
    if _ODD_NUMBER.search(gold) or _ODD_NUMBER.search(pred):
        expected, found = ({name: repr(value) for name, value in clauses.items()} for clauses in (expected, found))
    present = expected.keys() | found.keys()
    equal = sum(bool(expected.get(name) == found.get(name)) for name in present)
    return equal / len(present)


@lru_cache(maxsize=32_768)
def _exact_match(gold: str, pred: str, schema: EvaluatorSchema) -> bool:
    if _parse(gold, schema) is None:
        return False
    try:
        gold_query, query = _compared(gold, schema), _compared(pred, schema)
        if gold_query == query and _is_plain(query):
            return True
        return verdict(gold_query, query, partial_scores(gold_query, query))
    except (EvaluatorRaisesError, RecursionError):
        return False


def _is_plain(query: Query) -> bool:
    """Nothing in it on which the evaluator would raise or look deeper: equal to itself, it is an exact match."""
    connectors = (*query.where[1::2], *query.tables)
    return query.operand is None and all(isinstance(word, str) for word in connectors)


@lru_cache(maxsize=32_768)
def _parse(sql: str, schema: EvaluatorSchema) -> Query | None:
    try:
        return parse(sql, schema.columns, keep_limit=True)
    except UnreadableError:
        return None


@lru_cache(maxsize=32_768)
def _compared(sql: str, schema: EvaluatorSchema) -> Query:
    """What exact match compares of a query. Raises EvaluatorRaisesError."""
    return normalise(_limits_as_presence(_parse(sql, schema) or UNREAD), schema.representatives)


def _limits_as_presence(query: Query) -> Query:
    """LIMIT's number counts in subqueries only; on this level and in set operands it is there or not."""
    operand = _limits_as_presence(query.operand) if query.operand is not None else None
    return query._replace(limit=bool(query.limit), operand=operand)


@lru_cache(maxsize=32_768)
def _clauses(sql: str, schema: EvaluatorSchema) -> dict[str, Any] | None:
    """The clauses that the query has."""
    query = _parse(sql, schema)
    if query is None:
        return None
    found: dict[str, Any] = {
        "select": (query.distinct, query.select),
        "from": (query.tables, query.joins),
        "where": query.where,
        "groupBy": query.group,
        "having": query.having,
        "orderBy": query.order,
        "limit": query.limit if query.limit != "0" else "",
    }
    if query.operation is not None:
        found[query.operation] = query.operand
    return {name: value for name, value in found.items() if value}


def _code(call: str) -> str | None:
    """The SQL of a call for G and for the final SQL; the tool's name does not matter (quirk 6)."""
    content = _json(call) or _json(_TRAILING_COMMA.sub(r"\1", call)) or {}
    arguments = content.get("arguments")
    code = arguments.get("code") if isinstance(arguments, dict) else None
    return code if isinstance(code, str) else None


@lru_cache(maxsize=4096)
def _json(text: str) -> dict[str, Any] | None:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _verify(solution: str, gold: str, schema: EvaluatorSchema) -> tuple[float, float]:
    """E and M, quirks 7 to 12."""
    e_scores: list[float] = []
    m_scores: list[float] = []
    replies = list(_REPLY.finditer(solution))
    said_outside = _Outside(solution, replies)
    for name, arguments, end in _named_calls(solution):
        if not isinstance(name, str):
            return 0.0, 0.0
        said = said_outside.verdict_after(end)
        passed = said is None or said.lower() == "pass"
        if name.lower() == "exec_sql":
            reply = next((reply[1] for reply in replies if reply.start() >= end), "")
            for_pass, for_no_pass = _SCORES[_guessed_status(reply)]
            e_scores.append(for_pass if passed else for_no_pass)
        elif name.lower() == "memory_retrieve":
            code = arguments.get("code") if isinstance(arguments, dict) else None
            similarity = clause_equality(gold, code, schema) if isinstance(code, str) and code else 0.0
            m_scores.append(similarity if passed else 1.0 - similarity)
    return _mean(e_scores), _mean(m_scores)


class _Outside:
    """The text outside complete tool replies, cut once for all calls of an episode."""

    def __init__(self, solution: str, replies: Sequence[re.Match[str]]) -> None:
        self.solution = solution
        self.spans = [reply.span() for reply in replies]
        starts, ends = [*(first for first, _ in self.spans), None], [0, *(last for _, last in self.spans)]
        self.text = "".join([solution[end:start] for end, start in zip(ends, starts, strict=True)])

    def verdict_after(self, place: int) -> str | None:
        """The first verdict after `place` in what is left when the replies after it are taken out."""
        text, start = self.text, place
        for first, last in self.spans:
            if first < place < last:  # a call inside a reply: other replies are complete from there
                text, start = _REPLY.sub("", self.solution[place:]), 0
                break
            if last <= place:
                start -= last - first
        said = _VERDICT.search(text, start)
        return said[1] if said else None


def _named_calls(solution: str) -> Iterator[tuple[Any, Any, int]]:
    """Name, arguments and end of each call whose JSON can be read."""
    for call in _CALL_ANY_CASE.finditer(solution):
        content = _json(call[1])
        if content is not None:
            yield content.get("name") or "", content.get("arguments"), call.end()


def _guessed_status(reply: str) -> str:
    text = reply.strip().lower()
    if any(phrase in text for phrase in _ERROR_PHRASES):
        return "error"
    if any(word in text for word in _EMPTY_WORDS):
        return "empty" if _EMPTY_SIGNS.search(text) else "ok"
    return "empty" if _EMPTY_LIST.search(text) else "ok"


def _mean(scores: list[float]) -> float:
    return sum(scores) / len(scores) if scores else 0.0
