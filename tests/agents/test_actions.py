"""The reader of model messages: what counts as an action, and what the model is told when nothing does."""

import json
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.mtsql.actions import (
    EXEC_SQL,
    MEMORY_RETRIEVE,
    Answer,
    Call,
    Fault,
    Malformed,
    answer_text,
    call_text,
    e_verify_text,
    m_verify_text,
    parse_message,
)


def call(arguments: object, name: str = EXEC_SQL) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def fault(text: str, **options) -> str:
    action = parse_message(text, **options).action
    assert isinstance(action, Malformed), action
    return action.fault


def test_a_call_drafted_in_thinking_is_not_a_call():
    """
    Case mp-call-inside-thinking: only the call after the thinking counts, exactly once, and the thinking is kept as
    it was written.
    """
    draft = call({"code": "SELECT 1"})
    message = parse_message(f"<think>I could send {draft} first.</think>\n" + call({"code": "SELECT 2"}))

    assert message.action == Call(EXEC_SQL, "SELECT 2")
    assert message.thinking == f"I could send {draft} first."


def test_thinking_opened_by_the_prompt_ends_at_its_closing_tag():
    """Case mp-thinking-opened-by-prompt: no call, the answer after the closing tag counts."""
    text = f"maybe {call({'code': 'SELECT 1'})}?\n</think>\n<answer_sql>SELECT 2</answer_sql>"

    for in_thinking in (True, False):
        assert parse_message(text, in_thinking=in_thinking).action == Answer("SELECT 2")


def test_thinking_opened_by_the_prompt_and_never_closed_has_no_action():
    """Case mp-thinking-opened-by-prompt, cut off: the template opened the block, so nothing in it counts."""
    text = "maybe <answer_sql>SELECT 2</answer_sql> <exec_verify>pass</exec_verify>"
    message = parse_message(text, in_thinking=True)

    assert isinstance(message.action, Malformed)
    assert message.action.fault == "unclosed_thinking"
    assert message.e_verify is None


@pytest.mark.parametrize(
    "text",
    [
        "<think>then <answer_sql>SELECT 1</answer_sql>",
        "<answer_sql>SELECT 1</answer_sql><think>or not",
        "<think>a</think><answer_sql>SELECT 1</answer_sql><think>wait",
    ],
)
def test_thinking_that_never_closes_leaves_no_action(text):
    """Whatever stands before or inside it, a message with open thinking was not finished."""
    assert fault(text) == "unclosed_thinking"


def test_several_thinking_blocks_are_all_cut_away():
    """Each block is thinking; the text between and after them is not."""
    message = parse_message("<think>a</think><exec_verify>pass</exec_verify><think>b</think>" + answer_text("SELECT 1"))

    assert message.thinking == "ab"
    assert (message.e_verify, message.action) == ("pass", Answer("SELECT 1"))


def test_arguments_as_object_and_as_text_are_the_same_call():
    """Case mp-arguments-as-text: 1 and 2 are one call, and both render to the same text."""
    as_text = parse_message(call('{"code": "SELECT 1"}')).action
    as_object = parse_message(call({"code": "SELECT 1"})).action

    assert as_text == as_object == Call(EXEC_SQL, "SELECT 1")
    assert call_text(as_text.tool, as_text.code) == call_text(as_object.tool, as_object.code)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"sql": "SELECT 1"}, "sql"),
        ({"code": ["SELECT 1"]}, "a list"),
        ({"code": {"sql": "SELECT 1"}}, "an object"),
        ({"code": None}, "null"),
        ({"code": 7}, "a number"),
        ({"code": "  "}, "a blank text"),
        ({"code": "SELECT 1", "limit": 5}, "limit"),
        ({}, "none"),
        (["SELECT 1"], "none"),
        ("SELECT 1", "JSON object"),
        (None, "none"),
    ],
)
def test_wrong_arguments_get_a_message_that_names_what_is_expected(arguments, found):
    """Case mp-arguments-as-text, 3 and 4: the model is told the tool, the expected argument and what it sent."""
    action = parse_message(call(arguments)).action

    assert isinstance(action, Malformed)
    assert action.fault == "bad_arguments"
    assert action.message.startswith(EXEC_SQL)
    assert "code" in action.message
    assert found in action.message


def test_an_unknown_tool_is_told_the_known_ones():
    """A name that may not be called now is unknown, whether or not such a tool exists."""
    action = parse_message(call({"code": "SELECT 1"}, MEMORY_RETRIEVE), tools=(EXEC_SQL,)).action

    assert action == Malformed("unknown_tool", "unknown tool memory_retrieve; available: exec_sql")


@pytest.mark.parametrize("name", [None, 3, ["exec_sql"], {"a": 1}, "x" * 500, "exec_sql "])
def test_a_strange_name_is_an_unknown_tool_and_is_shown_shortly(name):
    """The reply stays short whatever the model wrote as a name."""
    action = parse_message(
        f'<tool_call>{{"name": {json.dumps(name)}, "arguments": {{"code": "SELECT 1"}}}}</tool_call>'
    ).action

    assert isinstance(action, Malformed)
    assert action.fault == "unknown_tool"
    assert len(action.message) < 120


def test_without_tools_a_call_is_answered_with_the_way_out():
    """With every tool switched off the model is told to answer."""
    action = parse_message(call({"code": "SELECT 1"}), tools=()).action

    assert isinstance(action, Malformed)
    assert action.fault == "unknown_tool"
    assert "answer" in action.message


@pytest.mark.parametrize(
    "content",
    [
        '{"name": "exec_sql", "arguments": {"code": "SELECT 1}',
        "exec_sql(SELECT 1)",
        "",
        "[1]",
        '"exec_sql"',
        "[" * 100_000,
        "1" * 5000,
    ],
)
def test_a_call_that_is_no_json_object_is_bad_json(content):
    """Broken, nested without end, or no object: one fault, never an exception."""
    assert fault(f"<tool_call>{content}</tool_call>") == "bad_json"


def test_a_line_break_inside_the_sql_may_be_written_as_it_is():
    """Strict JSON wants it escaped, but there is only one thing that it can mean."""
    text = '<tool_call>{"name": "exec_sql", "arguments": {"code": "SELECT 1,\n 2"}}</tool_call>'

    assert parse_message(text).action == Call(EXEC_SQL, "SELECT 1,\n 2")


def test_of_several_calls_none_counts():
    """Two calls in one message: which one was meant is not guessed."""
    action = parse_message(call({"code": "SELECT 1"}) + call({"code": "SELECT 2"})).action

    assert isinstance(action, Malformed)
    assert action.fault == "several_calls"
    assert "2 calls" in action.message


def test_a_call_beside_an_answer_does_neither():
    """The model has to choose, else an answer could be given without the result it asked for."""
    assert fault(call({"code": "SELECT 1"}) + answer_text("SELECT 1")) == "call_and_answer"
    assert fault(answer_text("") + call({"code": "SELECT 1"})) == "call_and_answer"


def test_the_final_sql_is_the_last_answer_that_is_not_blank():
    """Case rw-form-without-content: one rule for several answer blocks."""
    blocks = answer_text("SELECT 1") + answer_text("SELECT 2") + answer_text(" right SQL\n")

    assert parse_message(blocks).action == Answer("right SQL")
    assert parse_message(blocks + answer_text(" ")).action == Answer("right SQL")


def test_empty_tags_are_no_answer_and_no_verdict():
    """Case rw-form-without-content: the form alone is nothing."""
    message = parse_message("<exec_verify></exec_verify><answer_sql></answer_sql>")

    assert message.e_verify is None
    assert isinstance(message.action, Malformed)
    assert message.action.fault == "blank_answer"


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" + json.dumps({"name": EXEC_SQL, "arguments": {"code": "SELECT 1"}}),
        json.dumps({"name": EXEC_SQL, "arguments": {"code": "SELECT 1"}}) + "</tool_call>",
        json.dumps({"name": EXEC_SQL, "arguments": {"code": "SELECT 1"}}),
        "<answer_sql>SELECT 1",
        "SELECT 1</answer_sql>",
        "<tool_call>" + call({"code": "SELECT 1"}),
    ],
)
def test_a_tag_without_its_partner_is_missing_tags(text):
    """The model is told which tags are missing instead of the episode ending in silence."""
    assert fault(text) == "missing_tags"


@pytest.mark.parametrize("text", ["", "   ", "The answer is 42.", "SELECT 1", "<exec_verify>pass</exec_verify>"])
def test_a_message_without_call_and_answer_is_no_action(text):
    """A bare SQL text or a verdict alone does nothing."""
    assert fault(text) == "no_action"


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (e_verify_text("pass"), "pass"),
        ("<exec_verify> No_Pass\n</exec_verify>", "no_pass"),
        ("<exec_verify>pass</exec_verify><exec_verify>no_pass</exec_verify>", "no_pass"),
        ("<exec_verify>pass</exec_verify><exec_verify>perhaps</exec_verify>", "pass"),
        ("<exec_verify>passed</exec_verify>", None),
        ("<exec_verify>pass", None),
        ("<think><exec_verify>pass</exec_verify></think>", None),
        ("<memory_verify>pass</memory_verify>", None),
    ],
)
def test_the_verdict_is_the_last_well_formed_one_outside_thinking(text, verdict):
    """Other contents than pass and no_pass are no verdict; the tag of the memory's verdict is another one."""
    assert parse_message(text).e_verify == verdict


def test_each_verdict_has_its_own_tag():
    """E-VERIFY and M-VERIFY are read apart (the authors' code reads the first tag for both)."""
    message = parse_message(e_verify_text("pass") + m_verify_text("no_pass") + answer_text("SELECT 1"))

    assert (message.e_verify, message.m_verify) == ("pass", "no_pass")


def test_what_is_written_for_the_model_reads_back():
    """Writers and reader agree, for SQL with quotes, line breaks and other scripts."""
    for sql in ["SELECT 1", "SELECT \"a\" FROM t WHERE b = 'it''s'\n AND c = '大阪'", "SELECT '\\', '{\"x\"}'"]:
        assert parse_message(call_text(EXEC_SQL, sql)).action == Call(EXEC_SQL, sql)
        assert parse_message(answer_text(sql)).action == Answer(sql)


def test_half_a_surrogate_pair_never_gets_through():
    """JSON can spell text that no file or database can hold; it is refused, not passed on."""
    assert (
        fault('<tool_call>{"name": "exec_sql", "arguments": {"code": "SELECT \'\\ud800\'"}}</tool_call>')
        == "bad_arguments"
    )
    assert parse_message("<answer_sql>SELECT '\ud800'</answer_sql>").action == Answer("SELECT '?'")


def test_every_fault_is_explained_in_the_rules():
    """docs/rules.md has a row for each class of malformed message."""
    rules = (Path(__file__).resolve().parents[2] / "docs" / "rules.md").read_text(encoding="utf-8")

    assert [fault for fault in get_args(Fault) if f"| `{fault}` |" not in rules] == []


FRAGMENTS = st.sampled_from(
    [
        *("<think>", "</think>", "<tool_call>", "</tool_call>", "<answer_sql>", "</answer_sql>", "<exec_verify>"),
        *("</exec_verify>", "<memory_verify>", "</memory_verify>", "pass", "no_pass", "SELECT 1", "<|im_end|>"),
        *(
            '{"name": "exec_sql", "arguments": ',
            '{"code": "SELECT 1"}',
            "}",
            '"code"',
            "\\ud800",
            "\x00",
            "[",
            "{",
            "NaN",
        ),
        call({"code": "SELECT 1"}),
        call('{"code": "SELECT 1"}'),
    ]
)


@given(st.lists(FRAGMENTS | st.text(max_size=8), max_size=12).map("".join), st.booleans())
def test_no_text_raises_and_every_action_is_whole(text, in_thinking):
    """Any sequence of tags and characters is read: to SQL that can be stored, or to a fault with a message."""
    message = parse_message(text, in_thinking=in_thinking)

    action = message.action
    if isinstance(action, Malformed):
        assert action.message
        assert len(action.message) < 200
    else:
        sql = action.sql if isinstance(action, Answer) else action.code
        assert sql.strip() == sql != ""
        assert sql.encode("utf-8")
    assert parse_message(text, in_thinking=in_thinking) == message


@given(st.text(alphabet=st.characters(codec="utf-8")), st.integers(0, 2**60))
def test_random_json_in_a_call_never_raises(text, number):
    """Arbitrary values in every place of a call."""
    for value in (text, number, [text], {"code": text}, {text: number}):
        parse_message(f"<tool_call>{json.dumps(value)}</tool_call>")
        parse_message(call(value))
        parse_message(call({"code": "SELECT 1"}, name=text))
