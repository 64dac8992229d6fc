"""The MDP: what the environment does with each message, what it records, and when an episode ends."""

import asyncio
import json
from dataclasses import replace

import pytest

from agents.mtsql.actions import EXEC_SQL, MEMORY_RETRIEVE, answer_text, call_text, e_verify_text, m_verify_text
from agents.mtsql.environment import Environment, Reply
from agents.mtsql.memory import HistoryMemory
from text2sql.config import AgentSettings
from text2sql.dialogue import PriorTurn, Question
from text2sql.errors import DatabaseError
from text2sql.trajectory import Event

COUNT = "SELECT count(*) FROM staff"
GRAZ = "SELECT count(*) FROM staff WHERE city = 'Graz'"


@pytest.fixture
def environment(executor, database_root):
    """Makes the environment of a question, with settings given as keywords."""

    def make(question: Question, **settings) -> Environment:
        database = database_root / question.db_id / f"{question.db_id}.sqlite"
        characters = 0 if settings.get("prompt") == "compact" else 200
        memory = HistoryMemory(executor, database, characters)
        return Environment(question, executor, database, memory, AgentSettings(**settings))

    return make


def play(environment: Environment, *messages: str) -> list[Reply]:
    async def steps() -> list[Reply]:
        return [await environment.step(message) for message in messages]

    return asyncio.run(steps())


def kinds(environment: Environment) -> list[str]:
    return [event.kind for event in environment.events]


def execute(sql: str) -> str:
    return call_text(EXEC_SQL, sql)


def recall(sql: str) -> str:
    return call_text(MEMORY_RETRIEVE, sql)


BAD_CALL = '<tool_call>{"name":"exec_sql","arguments":{"query":"SELECT 1"}}</tool_call>'


def test_a_whole_episode_gives_one_event_per_action(environment, later_question):
    """Propose, execute, judge, correct, execute, judge, recall, judge, finalize: each is a record of its own."""
    episode = environment(later_question)
    replies = play(
        episode,
        execute("SELECT count(*) FROM staf"),
        e_verify_text("no_pass") + execute(GRAZ),
        e_verify_text("pass") + recall(GRAZ),
        m_verify_text("pass") + answer_text(GRAZ),
    )

    assert kinds(episode) == [
        *("propose", "execute", "e_verify", "self_correct", "execute"),
        *("e_verify", "recall", "m_verify", "finalize"),
    ]
    assert [event.message_index for event in episode.events] == [0, 0, 1, 1, 1, 2, 2, 3, 3]
    assert [event.verdict for event in episode.events if event.verdict] == ["no_pass", "pass", "pass"]
    assert [event.status for event in episode.events if event.kind == "execute"] == ["error", "ok"]
    assert replies[-1] == Reply(None, done=True, stop_reason="answered")
    assert episode.final_sql == GRAZ


def test_an_execution_is_recorded_with_what_came_of_it(environment, first_question):
    """Status, columns, the first rows, the number of all rows, and the database's own words for a failure."""
    episode = environment(first_question)
    play(episode, execute("SELECT id, name FROM staff UNION ALL SELECT 4, X'00FF'"), execute("SELECT nope FROM staff"))
    good, bad = [event for event in episode.events if event.kind == "execute"]

    assert (good.status, good.columns, good.row_count) == ("ok", ("id", "name"), 4)
    assert good.rows == ((1, "Ana"), (2, "Bo"), (3, "Cy"))
    assert (bad.status, bad.message, bad.rows) == ("error", "no such column: nope", ())


def test_every_kind_of_cell_can_be_stored(environment, first_question):
    """Blobs, infinities, NULL and long texts become JSON."""
    episode = environment(first_question)
    play(episode, execute("SELECT X'00FF', 1e400, NULL, 1.5, hex(zeroblob(500))"))
    (row,) = episode.events[-1].rows

    assert row[:4] == ("x'00ff'", "inf", None, 1.5)
    assert len(row[4]) < 110
    assert json.dumps(row, allow_nan=False)


def test_on_the_first_turn_the_model_is_told_to_answer_after_a_pass(environment, first_question):
    """First turns skip memory: it is neither described nor mentioned, and a call to it is unknown."""
    episode = environment(first_question)
    prompt, tools = episode.prompt()
    reply, refused = play(episode, execute(COUNT), recall(COUNT))

    assert [tool["function"]["name"] for tool in tools] == [EXEC_SQL]
    assert "memory" not in prompt + reply.text
    assert "<answer_sql>" in reply.text
    assert "unknown tool memory_retrieve" in refused.text


def test_on_later_turns_the_model_is_told_to_ask_the_memory_after_a_pass(environment, later_question):
    """With history the reply to an execution names memory_retrieve as the next step."""
    episode = environment(later_question)
    _, tools = episode.prompt()
    (reply,) = play(episode, execute(GRAZ))

    assert [tool["function"]["name"] for tool in tools] == [EXEC_SQL, MEMORY_RETRIEVE]
    assert "On pass, call memory_retrieve" in reply.text


def test_the_reply_to_an_execution_recaps_question_query_and_result(environment, later_question):
    """The result is the executor's short text, cut to the setting."""
    episode = environment(later_question, result_characters=30)
    (reply,) = play(episode, execute("SELECT name, city FROM staff"))
    result = next(line for line in reply.text.splitlines() if line.startswith("Its result: "))

    assert later_question.utterance in reply.text
    assert "SELECT name, city FROM staff" in reply.text
    assert len(result) <= len("Its result: ") + 30


@pytest.mark.parametrize("style", ["full", "compact"])
def test_tool_calls_are_counted_when_they_are_executed(environment, later_question, style):
    """The last allowed call says that none is left; one more ends the episode and is not run."""
    episode = environment(later_question, prompt=style, max_tool_calls=2, max_messages=9)
    first, malformed, second, third = play(episode, execute(COUNT), BAD_CALL, recall(GRAZ), execute(GRAZ))

    assert "call left" not in first.text.lower() + malformed.text.lower()
    assert "no tool call is left" in second.text.lower() or "no call left" in second.text
    assert third == Reply(None, done=True, stop_reason="max_tool_calls")
    assert [e.sql for e in episode.events if e.kind in ("execute", "recall")] == [COUNT, GRAZ]
    assert episode.final_sql is None


def test_after_the_last_call_an_answer_is_still_possible(environment, later_question):
    """A budget of 3 calls allows the paper's longest path: exec, exec, memory, answer."""
    episode = environment(later_question, max_tool_calls=3)
    replies = play(episode, execute(COUNT), execute(GRAZ), recall(GRAZ), answer_text(GRAZ))

    assert replies[-1].stop_reason == "answered"


@pytest.mark.parametrize("style", ["full", "compact"])
def test_the_same_bad_call_again_ends_without_an_answer(environment, first_question, style):
    """Case mp-same-bad-call-again: each counts, the episode stops at max_messages, the refused calls can be counted."""
    episode = environment(first_question, prompt=style, max_messages=4)
    replies = play(episode, *[BAD_CALL] * 4)

    assert replies[-1] == Reply(None, done=True, stop_reason="max_messages")
    assert [reply.done for reply in replies] == [False, False, False, True]
    assert all("code" in reply.text and "query" in reply.text for reply in replies[:3])
    assert kinds(episode) == ["malformed"] * 4
    assert {event.fault for event in episode.events} == {"bad_arguments"}
    assert episode.final_sql is None


def test_a_call_in_the_last_message_is_not_run(environment, first_question):
    """Nobody would read its result; the model is told beforehand that no call is left."""
    episode = environment(first_question, max_messages=2)
    first, last = play(episode, BAD_CALL, execute(COUNT))

    assert "No tool call is left" in first.text
    assert last.stop_reason == "max_messages"
    assert kinds(episode) == ["malformed"]


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("<tool_call>{broken}</tool_call>", "bad_json"),
        (BAD_CALL, "bad_arguments"),
        (execute(COUNT) + execute(COUNT), "several_calls"),
        (call_text("run_sql", COUNT), "unknown_tool"),
        ('{"name": "exec_sql", "arguments": {"code": "SELECT 1"}}', "missing_tags"),
        ("<answer_sql></answer_sql>", "blank_answer"),
        (execute(COUNT) + answer_text(COUNT), "call_and_answer"),
        ("I think it is 3.", "no_action"),
        ("<think>hm", "unclosed_thinking"),
    ],
)
def test_a_malformed_message_is_answered_and_counted_and_costs_no_call(environment, first_question, message, fault):
    """The environment says what is wrong, and the next message can still be right."""
    episode = environment(first_question, max_tool_calls=1)
    reply, ran, answered = play(episode, message, execute(COUNT), answer_text(COUNT))
    event = episode.events[0]

    assert (event.kind, event.fault) == ("malformed", fault)
    assert event.message
    assert event.message in reply.text
    assert "3" in ran.text
    assert answered.stop_reason == "answered"


def test_a_verdict_counts_once_and_only_for_what_was_seen(environment, later_question):
    """A verdict before any execution, a second one on the same result, and one on no memory reply are no events."""
    episode = environment(later_question, max_messages=9)
    play(
        episode,
        e_verify_text("pass") + m_verify_text("pass") + execute(COUNT),
        e_verify_text("no_pass"),
        e_verify_text("pass") + execute(GRAZ),
        answer_text(GRAZ),
    )

    assert [(e.kind, e.message_index, e.verdict) for e in episode.events if e.verdict] == [("e_verify", 1, "no_pass")]


def test_the_memory_verdict_is_not_the_execution_verdict(environment, later_question):
    """After a memory reply <exec_verify> judges the execution that is still open, <memory_verify> the memory."""
    episode = environment(later_question)
    play(episode, execute(GRAZ), recall(GRAZ), e_verify_text("pass") + m_verify_text("no_pass") + answer_text(GRAZ))

    assert [(e.kind, e.verdict) for e in episode.events if e.verdict] == [("e_verify", "pass"), ("m_verify", "no_pass")]


def test_a_memory_verdict_after_a_new_execution_is_too_late(environment, later_question):
    """The memory reply was about other SQL by then; rewards would not know which one is meant."""
    episode = environment(later_question, max_messages=9)
    play(episode, recall(COUNT), execute(GRAZ), e_verify_text("pass") + m_verify_text("pass") + answer_text(GRAZ))

    assert [event.kind for event in episode.events if event.verdict] == ["e_verify"]


def test_sending_the_same_sql_again_is_no_correction(environment, later_question):
    """Only SQL that differs from the one before is a self_correct event; a closing semicolon is no difference."""
    episode = environment(later_question)
    play(episode, execute(COUNT), recall(f"{COUNT} ;"), answer_text(GRAZ))

    assert [(e.kind, e.sql) for e in episode.events if e.kind in ("propose", "self_correct")] == [
        ("propose", COUNT),
        ("self_correct", GRAZ),
    ]


def test_an_answer_without_any_call_is_a_proposal_too(environment, first_question):
    """The model may answer at once; its SQL is then both proposed and final."""
    episode = environment(first_question)
    (reply,) = play(episode, answer_text(COUNT))

    assert reply.stop_reason == "answered"
    assert kinds(episode) == ["propose", "finalize"]


@pytest.mark.parametrize("style", ["full", "compact"])
def test_without_the_memory_tool_memory_is_never_mentioned(environment, later_question, style):
    """Ablation: prompt, tool schemas and every reply of an episode are silent about memory."""
    episode = environment(later_question, tools=("execute",), prompt=style)
    prompt, tools = episode.prompt()
    replies = play(episode, execute(COUNT), "nothing", recall(GRAZ), execute(GRAZ))
    said = prompt + json.dumps(tools) + "".join(reply.text for reply in (replies[0], replies[1], replies[3]))

    assert "memory" not in said.lower()
    assert "unknown tool memory_retrieve" in replies[2].text


@pytest.mark.parametrize("style", ["full", "compact"])
def test_without_the_execute_tool_execution_is_never_mentioned(environment, later_question, style):
    """Ablation: the same for exec_sql and its verdict."""
    episode = environment(later_question, tools=("memory",), prompt=style)
    prompt, tools = episode.prompt()
    replies = play(episode, recall(COUNT), "nothing", execute(GRAZ), recall(GRAZ))
    said = prompt + json.dumps(tools) + "".join(reply.text for reply in (replies[0], replies[1], replies[3]))

    assert "exec_" not in said.lower()
    assert "unknown tool exec_sql" in replies[2].text


@pytest.mark.parametrize(("tools", "shown"), [(("execute", "memory"), True), (("memory",), False)])
def test_without_the_execute_tool_memory_runs_nothing_either(environment, later_question, tools, shown):
    """Ablation: the reply of the memory tool shows what the checked SQL gives only to an agent that may execute."""
    (reply,) = play(environment(later_question, tools=tools, prompt="full"), recall("SELECT 'mark' || 'er'"))

    assert shown is ("marker" in reply.text)


@pytest.mark.parametrize("style", ["full", "compact"])
def test_the_short_horizon_asks_for_the_sql_at_once(environment, later_question, style):
    """No tools are offered, and the one message decides."""
    answered = environment(later_question, horizon="short", prompt=style)
    prompt, tools = answered.prompt()
    (good,) = play(answered, answer_text(GRAZ))
    (bad,) = play(environment(later_question, horizon="short", prompt=style), execute(GRAZ))

    assert tools is None
    assert "exec_sql" not in prompt
    assert "answer" in prompt
    assert good.stop_reason == "answered"
    assert bad.stop_reason == "max_messages"


def test_a_budget_of_no_calls_offers_no_tool(environment, later_question):
    """What cannot be used is not described."""
    prompt, tools = environment(later_question, max_tool_calls=0).prompt()

    assert tools is None
    assert "exec_sql" not in prompt


@pytest.mark.parametrize("style", ["full", "compact"])
def test_the_prompt_holds_schema_history_and_question(environment, later_question, style):
    """In this order; an earlier turn without an answer says so."""
    unanswered = PriorTurn("And in Rome?", "")
    question = replace(later_question, history=(*later_question.history, unanswered))
    prompt, _ = environment(question, prompt=style).prompt()
    places = [
        prompt.index(text)
        for text in (question.schema_text, COUNT, "And in Rome?", "(no answer)", "Only those in Graz.")
    ]

    assert places == sorted(places)


def test_the_compact_prompt_is_schema_history_and_question_alone(environment, first_question, later_question):
    """No instruction, no tool schema: a small model learns the protocol from episodes."""
    first, tools = environment(first_question, prompt="compact").prompt()
    later, _ = environment(later_question, prompt="compact").prompt()

    assert tools is None
    assert first == f"{first_question.schema_text}\nq: How many staff are there?"
    assert later == f"{first_question.schema_text}\nq: How many staff are there?\nsql: {COUNT}\nq: Only those in Graz."


def test_places_in_foreign_text_are_left_alone(environment, later_question):
    """A dollar sign in a question or a schema is not a place to be filled."""
    question = replace(later_question, utterance="Costs $schema or ${question}?", schema_text="a($next, $)")

    for style in ("full", "compact"):
        prompt, _ = environment(question, prompt=style).prompt()
        assert "Costs $schema or ${question}?" in prompt
        assert "a($next, $)" in prompt


def test_markup_in_a_database_cell_is_neither_call_nor_answer(environment, first_question):
    """Case ro-tool-reply-with-special-text: only what the model writes is read."""
    episode = environment(first_question)
    (reply,) = play(episode, execute("SELECT substr(t, 32) FROM note"))

    assert "<answer_sql>SELECT 9</answer_sql>" in reply.text
    assert not reply.done
    assert episode.final_sql is None


def test_an_answer_tag_in_a_reply_is_not_the_models_answer(environment, first_question):
    """
    Case rw-answer-tag-in-tool-reply: the instructions of a reply show the answer tag; a model that gives up has no
    answer. An answer that the model itself wrote ends the episode before there is a reply.
    """
    episode = environment(first_question, max_messages=2)
    reply, end = play(episode, execute(COUNT), "I give up.")

    assert "<answer_sql>" in reply.text
    assert end.stop_reason == "max_messages"
    assert episode.final_sql is None
    assert "finalize" not in kinds(episode)


def test_a_query_that_fails_is_data_and_a_missing_database_is_not(environment, first_question):
    """The machine's failure is raised, never shown to the model as if its SQL were wrong."""
    with pytest.raises(DatabaseError):
        play(environment(replace(first_question, db_id="nowhere")), execute(COUNT))


def test_a_finished_episode_takes_no_further_message(environment, first_question):
    """Calling on is a mistake of the program."""
    episode = environment(first_question)

    with pytest.raises(RuntimeError, match="the episode is over"):
        play(episode, answer_text(COUNT), answer_text(COUNT))


def test_a_message_that_was_cut_off_counts_for_nothing(environment, first_question):
    """It is recorded as malformed, with the limit it ran into."""
    episode = environment(first_question)
    reply = episode.cut_off("max_message_tokens")

    assert reply == Reply(None, done=True, stop_reason="max_message_tokens")
    assert episode.events == [
        Event(
            "malformed",
            0,
            fault="cut_off",
            message="the message was cut off at a token limit (max_message_tokens)",
        )
    ]
