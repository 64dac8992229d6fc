"""
The environment: the only thing that answers a model's message, for sampling, training, evaluation and interactive use.

A state machine over texts, one per episode. Each message of the model goes into `step`; what it meant and what came of
it is appended to `events`, and the reply says what to show the model and whether the episode is over. No tokens, no
torch, and no gold SQL of the asked turn: the question does not hold it.

Where this departs from the authors' code (docs/rules.md has the whole protocol):

1. The budget is a number of executed tool calls, not of messages; messages have a limit of their own.
2. A message that cannot be acted on is answered, so that the model can mend it, and is recorded as `malformed`.
3. A verdict is recorded once: <exec_verify> for the last execution, <memory_verify> for the last memory reply unless an
   execution came after it. A missing verdict is no event; the authors count it as pass.
4. memory_retrieve is offered only where there are earlier turns.
5. Tools that are switched off, or not offered, are unknown to the environment.

As in the authors' code, the order of actions is asked for in words and not enforced.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.mtsql.actions import EXEC_SQL, MEMORY_RETRIEVE, Answer, Call, Malformed, Message, parse_message
from agents.mtsql.memory import DialogueMemory
from agents.mtsql.wording import CompactWording, FullWording, Situation, Wording
from evaluation.clauses import clause_view
from text2sql.config import AgentSettings
from text2sql.dialogue import Question
from text2sql.executor import Execution, Executor, render_result
from text2sql.trajectory import Event, StopReason

SNIPPET_ROWS = 3
NOT_RUN = "not available (no tool runs SQL here)"


@dataclass(frozen=True)
class Reply:
    """`text` for the model, None when the episode is over; then `stop_reason` says why."""

    text: str | None
    done: bool = False
    stop_reason: StopReason | None = None


class Environment:
    """One episode: `prompt()` first, then `step` for each message until a reply is `done`."""

    def __init__(
        self,
        question: Question,
        executor: Executor,
        database: Path,
        memory: DialogueMemory,
        settings: AgentSettings,
        in_thinking: bool = False,
    ) -> None:
        """`in_thinking` says that the chat template opens the thinking block of every message itself."""
        self.question = question
        self.executor = executor
        self.database = database
        self.memory = memory
        self.settings = settings
        self.in_thinking = in_thinking
        self.tools = offered_tools(question, settings)
        self.wording: Wording = FullWording() if settings.prompt == "full" else CompactWording()
        self.max_messages = settings.max_messages if settings.horizon == "long" else 1
        self.events: list[Event] = []
        self.messages = 0
        self.tool_calls = 0
        self.final_sql: str | None = None
        self.stop_reason: StopReason | None = None
        self._last_sql: str | None = None
        self._unjudged_execution = False
        self._unjudged_recall = False

    def prompt(self) -> tuple[str, list[dict[str, Any]] | None]:
        """The user message, and the tool schemas that the chat template is to show (None: none)."""
        settings = self.settings
        text = self.wording.prompt(self.question, self.tools, settings.horizon, settings.max_tool_calls)
        return text, self.wording.tool_schemas(self.tools)

    async def step(self, text: str) -> Reply:
        """
        Act on one message. Raises InfrastructureError or DatabaseError when the machine fails, never for what the
        message holds.
        """
        self._count_message()
        message = parse_message(text, self.tools, self.in_thinking)
        self._record_verdicts(message)
        action = message.action
        if isinstance(action, Answer):
            return self._finalize(action.sql)
        if isinstance(action, Malformed):
            self._record("malformed", fault=action.fault, message=action.message)
            return self._stop("max_messages") if self._no_message_left else self._answer_malformed(action)
        if self.tool_calls >= self.settings.max_tool_calls:
            return self._stop("max_tool_calls")
        if self._no_message_left:
            return self._stop("max_messages")  # nobody would read the result
        self._propose(action.code)
        self.tool_calls += 1
        return Reply(await (self._execute(action) if action.tool == EXEC_SQL else self._recall(action)))

    def cut_off(self, reason: StopReason) -> Reply:
        """A message ran into the token limit `reason` before it ended: nothing in it counts, the episode is over."""
        self._count_message()
        self._record("malformed", fault="cut_off", message=f"the message was cut off at a token limit ({reason})")
        return self._stop(reason)

    def stop(self, reason: StopReason) -> Reply:
        """End the episode from outside: a token limit leaves no room for the last reply, or for the prompt."""
        return self._stop(reason)

    def _count_message(self) -> None:
        if self.stop_reason is not None:
            raise RuntimeError(f"{self.question.item_id}: the episode is over ({self.stop_reason})")
        self.messages += 1

    @property
    def _no_message_left(self) -> bool:
        return self.messages >= self.max_messages

    def _situation(self) -> Situation:
        """After the current message. A call needs one more message to be read, so the last message is no place for one."""
        call_left = self.tool_calls < self.settings.max_tool_calls and self.messages < self.max_messages - 1
        return Situation(self.question, self.tools, call_left)

    def _record(self, kind: Any, **fields: Any) -> None:
        self.events.append(Event(kind, message_index=self.messages - 1, **fields))

    def _record_verdicts(self, message: Message) -> None:
        if message.e_verify and self._unjudged_execution:
            self._record("e_verify", verdict=message.e_verify)
            self._unjudged_execution = False
        if message.m_verify and self._unjudged_recall:
            self._record("m_verify", verdict=message.m_verify)
            self._unjudged_recall = False

    def _propose(self, sql: str) -> None:
        same = self._last_sql is not None and _bare(sql) == _bare(self._last_sql)
        if not same:
            self._record("propose" if self._last_sql is None else "self_correct", sql=sql)
        self._last_sql = sql

    async def _execute(self, call: Call) -> str:
        execution = await self.executor.aexecute(call.code, self.database)
        self._record(
            "execute",
            sql=call.code,
            status=execution.status,
            columns=execution.columns,
            rows=snippet(execution),
            row_count=len(execution.rows),
            seconds=execution.seconds,
            message=execution.message,
        )
        self._unjudged_execution, self._unjudged_recall = True, False
        result = render_result(execution, self.settings.result_characters)
        return self.wording.executed(self._situation(), call.code, result)

    async def _recall(self, call: Call) -> str:
        turns = await self.memory.recall(self.question, call.code)
        self._record("recall", sql=call.code)
        self._unjudged_recall = True
        result = NOT_RUN
        if self.settings.prompt == "full" and EXEC_SQL in self.tools:  # the compact reply does not show it
            execution = await self.executor.aexecute(call.code, self.database)
            result = render_result(execution, self.settings.result_characters)
        return self.wording.recalled(self._situation(), call.code, clause_view(call.code), result, turns)

    def _answer_malformed(self, malformed: Malformed) -> Reply:
        return Reply(self.wording.malformed(self._situation(), malformed))

    def _finalize(self, sql: str) -> Reply:
        self._propose(sql)
        self._record("finalize", sql=sql)
        self.final_sql = sql
        return self._stop("answered")

    def _stop(self, reason: StopReason) -> Reply:
        self.stop_reason = reason
        return Reply(None, done=True, stop_reason=reason)


def offered_tools(question: Question, settings: AgentSettings) -> tuple[str, ...]:
    """The tools of this episode: those of the settings, memory only where there is something to remember."""
    if settings.horizon == "short" or settings.max_tool_calls == 0:
        return ()
    execute = (EXEC_SQL,) if "execute" in settings.tools else ()
    memory = (MEMORY_RETRIEVE,) if "memory" in settings.tools and question.history else ()
    return execute + memory


def snippet(execution: Execution) -> tuple[tuple[Any, ...], ...]:
    """The first rows in a form that JSON can hold: blobs as hex, infinities as words, long texts cut."""
    return tuple(tuple(_cell(value) for value in row) for row in execution.rows[:SNIPPET_ROWS])


def _cell(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"x'{value[:20].hex()}'"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, int | float):
        return value
    text = str(value)
    return text if len(text) <= 100 else text[:100] + "..."


def _bare(sql: str) -> str:
    return sql.strip().rstrip(";").rstrip()
