"""
The words of the environment, in two styles with the same content.

`FullWording` explains: the prompts and tool replies of the paper in our own words, for models that read instructions.
`CompactWording` states: a few tokens per message, for a model made from scratch that has to learn what they mean.
Nothing here is ever read back: calls, verdicts and answers are only looked for in what the model writes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from string import Template
from typing import Any, Protocol

from agents.mtsql.actions import EXEC_SQL, MEMORY_RETRIEVE, Malformed
from agents.mtsql.memory import RememberedTurn
from evaluation.clauses import ClauseView
from text2sql.dialogue import PriorTurn, Question

_PROMPTS = Path(__file__).parent / "prompts"
_DESCRIPTIONS = {
    EXEC_SQL: ("Runs an SQL query on the database and returns the beginning of its result.", "The SQL query to run."),
    MEMORY_RETRIEVE: (
        "Returns the earlier questions of this conversation with their SQL, to check a query against them.",
        "The SQL query to check.",
    ),
}


@dataclass(frozen=True)
class Situation:
    """What a reply depends on: the tools of this episode, and whether a further call would still be run."""

    question: Question
    tools: tuple[str, ...]
    call_left: bool

    def may_call(self, tool: str) -> bool:
        return self.call_left and tool in self.tools


class Wording(Protocol):
    def prompt(self, question: Question, tools: tuple[str, ...], horizon: str, max_tool_calls: int) -> str: ...

    def tool_schemas(self, tools: tuple[str, ...]) -> list[dict[str, Any]] | None:
        """Descriptions for the chat template; None when the template is to show none."""
        ...

    def executed(self, now: Situation, sql: str, result: str) -> str: ...

    def recalled(
        self, now: Situation, sql: str, view: ClauseView | None, result: str, turns: Sequence[RememberedTurn]
    ) -> str: ...

    def malformed(self, now: Situation, malformed: Malformed) -> str: ...


class FullWording:
    def prompt(self, question: Question, tools: tuple[str, ...], horizon: str, max_tool_calls: int) -> str:
        steps = [_text("full/step_execute")] * (EXEC_SQL in tools) + [_text("full/step_memory")] * (
            MEMORY_RETRIEVE in tools
        )
        steps += [_text("full/step_answer")]
        if tools:
            steps[-1] += f" Before that, at most {max_tool_calls} tool calls are run, one per message."
        history = "This is the first question of the conversation."
        if question.history:
            turns = [
                f"{i}. {turn.utterance}\n   SQL: {turn.sql or NO_ANSWER}" for i, turn in enumerate(question.history, 1)
            ]
            history = "\n".join(["Earlier questions of the conversation:", *turns])
        return _text(
            f"full/{horizon}",
            steps="\n".join(f"{number}. {step}" for number, step in enumerate(steps, start=1)),
            schema=question.schema_text,
            history=history,
            question=question.utterance,
        )

    def tool_schemas(self, tools: tuple[str, ...]) -> list[dict[str, Any]] | None:
        return [_tool_schema(tool) for tool in tools] or None

    def executed(self, now: Situation, sql: str, result: str) -> str:
        if not now.call_left:
            steps = [_text("full/next_last")]
        elif now.may_call(MEMORY_RETRIEVE):
            steps = [_text("full/next_execute"), _text("full/next_memory")]
        else:
            steps = [_text("full/next_execute"), _text("full/next_answer")]
        question = now.question.utterance
        return _text("full/executed", question=question, sql=sql, result=result, next="\n".join(steps))

    def recalled(
        self, now: Situation, sql: str, view: ClauseView | None, result: str, turns: Sequence[RememberedTurn]
    ) -> str:
        correct = "full/next_execute" if now.may_call(EXEC_SQL) else "full/next_correct_memory"
        steps = [_text(correct), _text("full/next_answer")] if now.call_left else [_text("full/next_last")]
        remembered = [
            _text(
                "full/remembered_turn",
                turn=turn.turn,
                question=turn.utterance,
                sql=turn.sql or NO_ANSWER,
                clauses=_clauses(turn.view),
                result=turn.result or "not available",
            )
            for turn in turns
        ]
        return _text(
            "full/recalled",
            question=now.question.utterance,
            sql=sql,
            clauses=_clauses(view),
            result=result,
            turns="\n".join(remembered) or "none",
            next="\n".join(steps),
        )

    def malformed(self, now: Situation, malformed: Malformed) -> str:
        if now.tools and now.call_left:
            step = _text("full/next_retry", tools=" or ".join(now.tools))
        else:
            step = _text("full/next_last" if now.tools else "full/next_retry_answer")
        return _text("full/malformed", message=malformed.message, next=step)


class CompactWording:
    def prompt(self, question: Question, tools: tuple[str, ...], horizon: str, max_tool_calls: int) -> str:
        history = "\n".join(f"q: {turn.utterance}\nsql: {turn.sql or NO_ANSWER}" for turn in question.history)
        text = _text(f"compact/{horizon}", schema=question.schema_text, history=history, question=question.utterance)
        return text if history else text.replace("\n\nq:", "\nq:", 1)

    def tool_schemas(self, tools: tuple[str, ...]) -> list[dict[str, Any]] | None:
        return None

    def executed(self, now: Situation, sql: str, result: str) -> str:
        return result + self._last(now)

    def recalled(
        self, now: Situation, sql: str, view: ClauseView | None, result: str, turns: Sequence[RememberedTurn]
    ) -> str:
        """A turn that the prompt shows comes as what narrows or sums it up; any other with question and SQL."""
        lines = []
        for turn in turns:
            if _in_prompt(turn, now.question) and (turn.view or not turn.sql):
                lines.append(f"turn {turn.turn}: {_constraints(turn.view) if turn.sql else NO_ANSWER}")
            else:
                lines += [f"q: {turn.utterance}", f"sql: {turn.sql or NO_ANSWER}", f"has: {_constraints(turn.view)}"]
        return "\n".join(lines or ["none"]) + self._last(now)

    def malformed(self, now: Situation, malformed: Malformed) -> str:
        return f"malformed: {malformed.message}" + self._last(now)

    def _last(self, now: Situation) -> str:
        return "" if now.call_left else "\nno call left"


NO_ANSWER = "(no answer)"
NO_VIEW = "not available (the SQL cannot be split into clauses)"


def _clauses(view: ClauseView | None) -> str:
    if view is None:
        return NO_VIEW
    parts = [f"{clause}: {', '.join(elements)}" for clause, elements in view.clauses.items()]
    lists = {"aggregates": view.aggregates, "columns": view.columns, "values": view.literals}
    parts += [f"{name}: {', '.join(values)}" for name, values in lists.items() if values]
    return "; ".join(parts)


def _in_prompt(turn: RememberedTurn, question: Question) -> bool:
    return PriorTurn(turn.utterance, turn.sql) in question.history[turn.turn - 1 : turn.turn]


def _constraints(view: ClauseView | None) -> str:
    """What narrows or sums up the answer, in a few words."""
    if view is None:
        return "not available"
    return ", ".join(dict.fromkeys((*view.aggregates, *view.constraints))) or "no constraint"


def _tool_schema(tool: str) -> dict[str, Any]:
    description, code = _DESCRIPTIONS[tool]
    parameters = {
        "type": "object",
        "properties": {"code": {"type": "string", "description": code}},
        "required": ["code"],
    }
    return {"type": "function", "function": {"name": tool, "description": description, "parameters": parameters}}


@lru_cache
def _template(name: str) -> Template:
    return Template((_PROMPTS / f"{name}.txt").read_text(encoding="utf-8").rstrip("\n"))


def _text(name: str, **values: Any) -> str:
    """A text of prompts/ with its places filled; the values are not searched for places themselves."""
    return _template(name).substitute(values)
