"""
The actions of the MDP as a model writes them: the only reader of model text in the project.

    <think>...</think>                                                                      PROPOSE, SELF-CORRECT: reasoning
    <tool_call>{"name": "exec_sql", "arguments": {"code": SQL}}</tool_call>                 EXECUTE
    <exec_verify>pass</exec_verify>                                                         E-VERIFY (or no_pass)
    <tool_call>{"name": "memory_retrieve", "arguments": {"code": SQL}}</tool_call>          first half of M-VERIFY
    <memory_verify>pass</memory_verify>                                                     M-VERIFY (or no_pass)
    <answer_sql>SQL</answer_sql>                                                            FINALIZE

The rules, all of them (docs/rules.md says the same in prose):

1. Thinking is cut away first, and nothing inside it counts. A closing tag without an opening one ends thinking that
   the prompt opened: all text before it is thinking. Thinking that never closes: the message has no action at all.
2. The final SQL is the content of the last complete <answer_sql> block that is not blank.
3. A message acts once: one call, or an answer. Several calls, or a call beside an answer: nothing is done.
4. A call has a known name and exactly one argument, `code`, a text that is not blank; `arguments` may be an object or
   the same object as a JSON string.
5. A verdict is the last block of its tag that holds `pass` or `no_pass`; other contents are no verdict.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from text2sql.trajectory import Verdict

EXEC_SQL = "exec_sql"
MEMORY_RETRIEVE = "memory_retrieve"
CALL_END = '"}}\n</tool_call>'

Fault = Literal[
    "unclosed_thinking",  # <think> without </think>
    "no_action",  # neither a call nor an answer
    "missing_tags",  # a call or an answer with one of its two tags missing, or a bare call without tags
    "several_calls",
    "call_and_answer",
    "blank_answer",
    "bad_json",  # what stands between the call's tags is no JSON object
    "unknown_tool",
    "bad_arguments",  # missing, wrong or further arguments, or `code` is no text
    "cut_off",  # the message ran into a token limit; nothing in it counts
]


@dataclass(frozen=True)
class Call:
    tool: str
    code: str


@dataclass(frozen=True)
class Answer:
    sql: str


@dataclass(frozen=True)
class Malformed:
    """`message` tells the model what was found and what is expected, in a few words."""

    fault: Fault
    message: str


@dataclass(frozen=True)
class Message:
    """One message of the model, read. `thinking` is its reasoning, without tags."""

    thinking: str
    e_verify: Verdict | None
    m_verify: Verdict | None
    action: Call | Answer | Malformed


def parse_message(text: str, tools: Sequence[str] = (EXEC_SQL, MEMORY_RETRIEVE), in_thinking: bool = False) -> Message:
    """
    Read one message. `tools` are the names that may be called now; `in_thinking` says that the prompt already opened
    the thinking block. Never raises, whatever `text` holds.
    """
    text = text.encode("utf-8", "replace").decode()  # lone surrogates cannot be stored or executed
    thinking, visible, closed = _cut_thinking(text, in_thinking)
    if not closed:
        fault = Malformed("unclosed_thinking", "the thinking has no end tag; end it, then act")
        return Message(thinking, None, None, fault)
    e_verify, m_verify = _verdict(visible, "exec_verify"), _verdict(visible, "memory_verify")
    return Message(thinking, e_verify, m_verify, _action(visible, tools))


def call_text(tool: str, code: str) -> str:
    """A call exactly as Qwen3's chat template renders one."""
    return f'<tool_call>\n{{"name": "{tool}", "arguments": {json.dumps({"code": code}, ensure_ascii=False)}}}\n</tool_call>'


def call_phrases(tools: Iterable[str]) -> list[str]:
    """The fixed text before and after the code of a call, as `call_text` writes it."""
    return [*(call_text(tool, "").removesuffix(CALL_END) for tool in tools), CALL_END]


def answer_text(sql: str) -> str:
    return f"<answer_sql>{sql}</answer_sql>"


def e_verify_text(verdict: Verdict) -> str:
    return f"<exec_verify>{verdict}</exec_verify>"


def m_verify_text(verdict: Verdict) -> str:
    return f"<memory_verify>{verdict}</memory_verify>"


def _cut_thinking(text: str, in_thinking: bool) -> tuple[str, str, bool]:
    """The thinking, the rest, and whether thinking ended."""
    thinking: list[str] = []
    visible: list[str] = []
    inside = in_thinking
    for part in re.split(r"(</?think>)", text):
        if part == "<think>":
            inside = True
        elif part == "</think>":
            if not inside:  # opened by the prompt
                thinking, visible = thinking + visible, []
            inside = False
        else:
            (thinking if inside else visible).append(part)
    return "".join(thinking).strip(), "".join(visible), not inside


def _blocks(text: str, tag: str) -> tuple[list[str], bool]:
    """Contents of the complete blocks of a tag, innermost where nested, and whether a tag lacks its partner."""
    opened = text.split(f"<{tag}>")
    contents = [part.partition(f"</{tag}>")[0].strip() for part in opened[1:] if f"</{tag}>" in part]
    return contents, not len(contents) == len(opened) - 1 == text.count(f"</{tag}>")


def _verdict(visible: str, tag: str) -> Verdict | None:
    verdicts: list[Verdict] = []
    for content in _blocks(visible, tag)[0]:
        if content.lower() == "pass":
            verdicts.append("pass")
        elif content.lower() == "no_pass":
            verdicts.append("no_pass")
    return verdicts[-1] if verdicts else None


def _action(visible: str, tools: Sequence[str]) -> Call | Answer | Malformed:
    calls, call_incomplete = _blocks(visible, "tool_call")
    answers, answer_incomplete = _blocks(visible, "answer_sql")
    if call_incomplete:
        return Malformed("missing_tags", "a call stands between two tool_call tags; one of them is missing")
    if len(calls) > 1:
        return Malformed("several_calls", f"found {len(calls)} calls, none was run; send one call per message")
    filled = [answer for answer in answers if answer]
    if calls and (answers or answer_incomplete):
        return Malformed("call_and_answer", "found a call and an answer, nothing was done; send one or the other")
    if calls:
        return _call(calls[0], tools)
    if filled:
        return Answer(filled[-1])
    if answer_incomplete:
        return Malformed("missing_tags", "an answer stands between two answer_sql tags; one of them is missing")
    if answers:
        return Malformed("blank_answer", "the answer is blank; put the SQL between the answer_sql tags")
    if tools and any(f'"{tool}"' in visible for tool in tools):
        return Malformed("missing_tags", "a call stands between two tool_call tags; they are missing")
    expected = "send a call or an answer" if tools else "send an answer in answer_sql tags"
    return Malformed("no_action", f"found neither a call nor an answer; {expected}")


def _call(content: str, tools: Sequence[str]) -> Call | Malformed:
    try:
        call = json.loads(content, strict=False)  # a line break inside a text means just that
    except (ValueError, RecursionError):
        return Malformed("bad_json", 'the call is no valid JSON; expected {"name": ..., "arguments": {"code": ...}}')
    if not isinstance(call, dict):
        return Malformed("bad_json", 'the call is no JSON object; expected {"name": ..., "arguments": {"code": ...}}')
    name = call.get("name")
    if name not in tools:
        known = f"available: {', '.join(tools)}" if tools else "no tool is available, send an answer"
        return Malformed("unknown_tool", f"unknown tool {_short(name)}; {known}")
    code = _code(call.get("arguments"))
    if isinstance(code, Malformed):
        return Malformed(code.fault, f"{name} {code.message}")
    return Call(str(name), code)


def _code(arguments: Any) -> str | Malformed:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, strict=False)
        except (ValueError, RecursionError):
            return Malformed("bad_arguments", "expects arguments as a JSON object with code")
    if not isinstance(arguments, dict) or "code" not in arguments:
        found = _names(arguments) if isinstance(arguments, dict) and arguments else "none"
        return Malformed("bad_arguments", f"expects the argument code; found {found}")
    code = arguments["code"]
    if len(arguments) > 1:
        others = [key for key in arguments if key != "code"]
        return Malformed("bad_arguments", f"expects only the argument code; found also {_names(others)}")
    if not isinstance(code, str) or not code.strip():
        return Malformed("bad_arguments", f"expects code as a text with SQL; found {_kind(code)}")
    if any("\ud800" <= character <= "\udfff" for character in code):
        return Malformed("bad_arguments", "expects code as valid Unicode text; found half a surrogate pair")
    return code.strip()


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "a blank text"
    return {dict: "an object", list: "a list", bool: "a boolean", type(None): "null"}.get(type(value), "a number")


def _names(keys: Iterable[str]) -> str:
    return ", ".join(_short(key) for key in islice(keys, 3))


def _short(value: Any) -> str:
    """A few characters of something that the model wrote, safe to show and to store."""
    text = value if isinstance(value, str) else _kind(value)
    text = " ".join(text.encode("utf-8", "replace").decode().split())
    return text if len(text) <= 30 else text[:30] + "..."
