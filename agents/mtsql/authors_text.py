"""
Episodes in the authors' text format, as events: what the model wrote is read by `agents.mtsql.actions`, what the
database did is found out by running its SQL again.

The format is a decoded response: the model's messages, and between them a line `user`, the tool's reply between
<tool_response> tags, and a line `assistant`. A text cannot say for sure who wrote what; here a reply starts only at a
line `user` followed by its tag and ends at its closing tag followed by a line `assistant`. Our own trajectories keep
authors apart as token ids and need none of this.
"""

import re
from collections.abc import Callable, Sequence

from agents.mtsql.actions import EXEC_SQL, Answer, Call, Malformed, Message, parse_message
from text2sql.executor import Execution
from text2sql.trajectory import Event

_REPLY = re.compile(r"\s*^user\n<tool_response>.*?(?:</tool_response>\s*^assistant$\n?|\Z)", re.DOTALL | re.MULTILINE)


def read_messages(solution: str) -> list[Message]:
    """The model's messages, read, up to its answer."""
    messages = []
    for text in _REPLY.split(solution):
        messages.append(parse_message(text))
        if isinstance(messages[-1].action, Answer):
            break
    return messages


def rebuild_events(messages: Sequence[Message], execute: Callable[[str], Execution]) -> tuple[Event, ...]:
    """
    The events of an episode in the order in which the environment records them. `execute` runs one SQL on the
    episode's database; every well-formed exec_sql call is run, the authors' budget having been spent already.
    """
    events: list[Event] = []
    last_sql: str | None = None
    for index, message in enumerate(messages):
        if message.e_verify:
            events.append(Event("e_verify", index, verdict=message.e_verify))
        if message.m_verify:
            events.append(Event("m_verify", index, verdict=message.m_verify))
        if isinstance(message.action, Malformed):
            events.append(Event("malformed", index, fault=message.action.fault, message=message.action.message))
            continue
        sql = message.action.sql if isinstance(message.action, Answer) else message.action.code
        if last_sql is None or sql.rstrip("; \n") != last_sql.rstrip("; \n"):
            events.append(Event("propose" if last_sql is None else "self_correct", index, sql=sql))
            last_sql = sql
        events.append(_act(message.action, index, execute))
    return tuple(events)


def _act(action: Call | Answer, index: int, execute: Callable[[str], Execution]) -> Event:
    if isinstance(action, Answer):
        return Event("finalize", index, sql=action.sql)
    if action.tool != EXEC_SQL:
        return Event("recall", index, sql=action.code)
    run = execute(action.code)
    return Event(
        "execute",
        index,
        sql=action.code,
        status=run.status,
        columns=run.columns,
        row_count=len(run.rows),
        seconds=run.seconds,
        message=run.message,
    )
