"""What the memory shows of earlier turns, and what it never shows."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.mtsql.actions import MEMORY_RETRIEVE, call_text
from agents.mtsql.environment import Environment
from agents.mtsql.memory import HistoryMemory, RememberedTurn
from text2sql.config import AgentSettings
from text2sql.dialogue import Item, PriorTurn

UNREADABLE = "SELECT city, OVER FROM (staff WHERE"
WINDOW = "WITH x AS (SELECT city, row_number() OVER (ORDER BY id) AS r FROM staff) SELECT city FROM x WHERE r = 1"


@pytest.fixture
def recalled(executor, database_root):
    """The reply to a memory call of a question, in a style, with a memory of choice."""

    def reply(question, style="full", sql="SELECT 1", memory=None) -> str:
        database = database_root / "shop" / "shop.sqlite"
        memory = memory or HistoryMemory(executor, database, 200 if style == "full" else 0)
        environment = Environment(question, executor, database, memory, AgentSettings(prompt=style))
        return asyncio.run(environment.step(call_text(MEMORY_RETRIEVE, sql))).text

    return reply


def with_history(question, *sqls):
    return replace(question, history=tuple(PriorTurn(f"question {i}", sql) for i, sql in enumerate(sqls, start=1)))


def test_the_full_reply_shows_each_turn_with_clauses_and_result_and_the_query_with_its_result(recalled, later_question):
    """Question, SQL, parsed elements and a result snippet per earlier turn; the proposed query is run again."""
    question = with_history(later_question, "SELECT name FROM staff WHERE city = 'Graz' ORDER BY id DESC LIMIT 2")
    reply = recalled(question, sql="SELECT count(*) FROM staff WHERE city = 'Rome'")

    for part in ("question 1", "'Graz'", "LIMIT 2", "'Cy'", "'Rome'", "1 row (count(*)): (1)", question.utterance):
        assert part in reply


def test_the_compact_reply_shows_what_narrows_or_sums_up_each_turn_of_the_prompt(recalled, later_question):
    """A short line per turn: question and SQL stand in the prompt already."""
    question = with_history(
        later_question, "SELECT name FROM staff WHERE city = 'Graz' LIMIT 2", "SELECT id FROM staff"
    )

    assert recalled(question, "compact") == "turn 1: staff.city = 'Graz', LIMIT 2\nturn 2: no constraint"


@pytest.mark.parametrize("style", ["full", "compact"])
def test_an_unreadable_earlier_query_shows_its_text_and_says_so(recalled, later_question, style):
    """Case mp-memory-of-unreadable-sql: no empty view, as if nothing had been asked, and the check goes on."""
    question = with_history(later_question, UNREADABLE, "SELECT count(*) FROM staff")
    reply = recalled(question, style)

    assert UNREADABLE in reply
    assert "not available" in reply
    assert "COUNT(*)" in reply


@pytest.mark.parametrize("style", ["full", "compact"])
@pytest.mark.parametrize(
    "sql", ["SELECT count(*) FROM staff", "SELECT city, COUNT(*) FROM staff GROUP BY city", WINDOW]
)
def test_aggregates_are_never_lost_from_a_view(recalled, later_question, style, sql):
    """Case mp-memory-of-unreadable-sql: COUNT(*) is visible in the view itself, and a window query does no harm."""
    view = recalled(with_history(later_question, sql), style).replace(sql, "")

    assert ("COUNT(*)" in view) == ("count" in sql.lower())


@pytest.mark.parametrize("style", ["full", "compact"])
def test_a_turn_without_an_answer_says_so(recalled, later_question, style):
    """With predicted history the agent may have failed to answer an earlier turn."""
    assert "(no answer)" in recalled(with_history(later_question, ""), style)


@pytest.mark.parametrize("style", ["full", "compact"])
def test_memory_shows_gold_or_the_agents_own_answers_and_never_the_asked_gold(recalled, executor, database_root, style):
    """
    Case mp-memory-shows-own-answer: mode gold shows g1 and g2, mode predicted p1 and p2; g3 is nowhere in prompt or
    reply.
    """
    gold = ("SELECT id AS g1 FROM staff", "SELECT id AS g2 FROM staff")
    own = ("SELECT id AS p1 FROM staff", "SELECT id AS p2 FROM staff")
    history = tuple(PriorTurn(f"u{i}", sql) for i, sql in enumerate(gold, start=1))
    item = Item("i", "dev", "d", 3, 3, "shop", "u3", "SELECT id AS g3 FROM staff", history, "staff(id)", None)

    for question, shown, hidden in [(item.question(), gold, own), (item.question(own), own, gold)]:
        database = database_root / "shop" / "shop.sqlite"
        memory = HistoryMemory(executor, database, 200)
        prompt, _ = Environment(question, executor, database, memory, AgentSettings(prompt=style)).prompt()
        reply = recalled(question, style)
        assert all(sql in prompt + reply for sql in shown)
        assert not any(sql in prompt + reply for sql in hidden)
        assert "g3" not in prompt + reply


def test_another_backend_needs_only_recall(recalled, later_question):
    """The environment shows whatever a memory returns, here a turn of another dialogue."""

    class Elsewhere:
        async def recall(self, question, sql):
            return [RememberedTurn(7, f"like {question.utterance}", sql, None)]

    reply = recalled(later_question, "compact", sql="SELECT 5", memory=Elsewhere())

    assert reply == "q: like Only those in Graz.\nsql: SELECT 5\nhas: not available"


def test_a_failing_earlier_query_is_shown_with_its_error(recalled, later_question):
    """The agent's own earlier SQL may not run; that is a result like any other."""
    reply = recalled(with_history(later_question, "SELECT nope FROM staff"))

    assert "error: no such column: nope" in reply


PIECES = [
    *(
        "SELECT",
        "FROM",
        "staff",
        "note",
        "WHERE",
        "(",
        ")",
        ",",
        "*",
        "count(",
        "city",
        "T1.",
        '"x"',
        "'",
        "=",
        "IN",
        "NOT",
    ),
    *(
        "OR",
        "GROUP BY",
        "ORDER BY",
        "LIMIT",
        "1",
        "UNION",
        "JOIN",
        "AS",
        "WITH",
        "CASE",
        ";",
        "--",
        "/*",
        "é",
        "\ud800",
    ),
    *("SELECT city FROM staff", UNREADABLE, WINDOW, "\x00", "PRAGMA", "</tool_response>", "DROP TABLE staff"),
]
BROKEN_SQL = st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join) | st.text(max_size=60)


@given(earlier=st.lists(BROKEN_SQL, max_size=3), asked=BROKEN_SQL, style=st.sampled_from(["full", "compact"]))
def test_whatever_the_earlier_turns_said_a_memory_call_is_answered(recalled, later_question, earlier, asked, style):
    """No SQL in the history or in the call, broken or hostile, raises: the model gets a text."""
    assert recalled(with_history(later_question, *earlier), style, asked or "SELECT 1")
