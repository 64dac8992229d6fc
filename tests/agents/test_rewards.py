"""Rewards over events, by the paper."""

import json
import math
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from agents.mtsql.rewards import PARTS, Reward, final_sql, reward, total
from evaluation.verdicts import Scorer
from text2sql.config import RewardSettings
from text2sql.errors import DatabaseError, InfrastructureError, TrainingError
from text2sql.executor import Executor
from text2sql.trajectory import Event, Segment, Trajectory

PAPER = RewardSettings()
GOLD = "SELECT name FROM st WHERE age > 20"
EMPTY_GOLD = "SELECT name FROM st WHERE age > 200"
WRONG = "SELECT name FROM st WHERE age > 2"  # select and join as gold, where not: F = 2/3


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scorer]:
    root = tmp_path_factory.mktemp("rewards")
    (root / "school").mkdir()
    with sqlite3.connect(root / "school" / "school.sqlite") as connection:
        connection.execute("CREATE TABLE st(id INTEGER, name TEXT, age INTEGER)")
        connection.executemany("INSERT INTO st VALUES (?, ?, ?)", [(1, "Ana", 19), (2, "Bo", 30)])
    entry = {
        "db_id": "school",
        "table_names_original": ["st"],
        "column_names_original": [[-1, "*"], [0, "id"], [0, "name"], [0, "age"]],
        "column_types": ["text", "number", "text", "number"],
        "primary_keys": [],
        "foreign_keys": [],
    }
    (root / "tables.json").write_text(json.dumps([entry]), encoding="utf-8")
    with Executor(workers=1) as executor:
        yield Scorer(root, root / "tables.json", executor)


def episode(*events: Event, segments: tuple[Segment, ...] = ()) -> Trajectory:
    answer = final_sql(events)
    return Trajectory("i/1", "d/0", 1, "school", 3, "gold", segments, events, answer, "answered")


def execute(sql: str, status: str = "ok", message: int = 0) -> Event:
    return Event("execute", message, sql=sql, status=status)


def recall(sql: str, message: int = 0) -> Event:
    return Event("recall", message, sql=sql)


def e_verify(verdict: str) -> Event:
    return Event("e_verify", 1, verdict=verdict)


def m_verify(verdict: str) -> Event:
    return Event("m_verify", 1, verdict=verdict)


def answer(sql: str) -> Event:
    return Event("finalize", 2, sql=sql)


def test_a_perfect_episode_earns_every_part(scorer: Scorer):
    """Right SQL, executed, passed, recalled, passed: 1 + 1 + 0.8 + 0.1 + 0.1."""
    done = episode(execute(GOLD), e_verify("pass"), recall(GOLD), m_verify("pass"), answer(GOLD))
    paid = reward(done, GOLD, scorer, PAPER)

    assert paid.parts == dict.fromkeys(PARTS, 1.0)
    assert paid.total == pytest.approx(3.0)
    assert paid.status == "ok"


def test_the_weights_are_the_settings(scorer: Scorer):
    """Total = sum of weight x part, with the profile's weights."""
    settings = RewardSettings(execution_match=2.0, exact_match=0.0, propose=0.5, e_verify=0.0, m_verify=0.0)

    assert reward(episode(execute(GOLD), answer(GOLD)), GOLD, scorer, settings).total == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("gold", "sql", "status", "verdict", "expected"),
    [
        (GOLD, GOLD, "ok", "pass", 1.0),
        (GOLD, GOLD, "ok", "no_pass", 0.0),
        (GOLD, "SELECT nmae FROM st", "error", "pass", 0.0),
        (GOLD, "SELECT nmae FROM st", "error", "no_pass", 1.0),
        (GOLD, GOLD, "timeout", "pass", 0.0),
        (GOLD, GOLD, "timeout", "no_pass", 1.0),
        (GOLD, GOLD, "too_large", "no_pass", 1.0),
        (GOLD, EMPTY_GOLD, "empty", "pass", 0.0),
        (GOLD, EMPTY_GOLD, "empty", "no_pass", 0.1),
        (EMPTY_GOLD, EMPTY_GOLD, "empty", "pass", 1.0),
        (EMPTY_GOLD, EMPTY_GOLD, "empty", "no_pass", 0.0),
    ],
)
def test_e_verify_follows_status_and_gold(
    scorer: Scorer, gold: str, sql: str, status: str, verdict: str, expected: float
):
    """The verdict is judged by the executor's status, an empty result by whether gold's is empty too."""
    paid = reward(episode(execute(sql, status), e_verify(verdict), answer(gold)), gold, scorer, PAPER)

    assert paid.parts["e_verify"] == pytest.approx(expected)


def test_a_missing_verdict_earns_nothing(scorer: Scorer):
    """The authors' code takes it for pass; here neither e_verify nor m_verify is paid."""
    paid = reward(episode(execute(GOLD), recall(GOLD), answer(GOLD)), GOLD, scorer, PAPER)

    assert (paid.parts["e_verify"], paid.parts["m_verify"]) == (0.0, 0.0)


def test_e_verify_is_a_mean_over_executions_with_the_first_verdict_of_each(scorer: Scorer):
    """One judged and one unjudged execution give a half; a second verdict on the same execution changes nothing."""
    done = episode(execute(WRONG), e_verify("pass"), e_verify("no_pass"), execute(GOLD), answer(GOLD))

    assert reward(done, GOLD, scorer, PAPER).parts["e_verify"] == pytest.approx(0.5)


@pytest.mark.parametrize(("sql", "verdict", "expected"), [(GOLD, "pass", 1.0), (GOLD, "no_pass", 0.0), (WRONG, "pass", 2 / 3), (WRONG, "no_pass", 1 / 3)])  # fmt: skip
def test_m_verify_reads_the_memory_verdict(scorer: Scorer, sql: str, verdict: str, expected: float):
    """F for pass, 1 - F for no_pass, F the clause F1 of the recalled SQL; an e_verify verdict plays no part."""
    paid = reward(episode(recall(sql), e_verify("pass"), m_verify(verdict), answer(GOLD)), GOLD, scorer, PAPER)

    assert paid.parts["m_verify"] == pytest.approx(expected)


def test_a_memory_verdict_after_the_next_call_is_not_about_the_recalled_sql(scorer: Scorer):
    """A coherence verdict counts only before the next call of either tool."""
    done = episode(recall(WRONG), execute(GOLD), m_verify("pass"), answer(GOLD))

    assert reward(done, GOLD, scorer, PAPER).parts["m_verify"] == 0.0


def test_each_distinct_executed_sql_counts_once(scorer: Scorer):
    """
    Case rw-same-call-many-times: repeating a good call, respelling it, recalling it or asking for calls that never
    ran changes nothing.
    """
    respelt = "select T1.name from ST as T1 where 20 < T1.age;"
    refused = Event("malformed", 1, fault="several_calls", message="found 2 calls")
    once = episode(execute(WRONG), execute(GOLD), answer(GOLD))
    often = episode(execute(WRONG), execute(GOLD), execute(GOLD), execute(respelt), recall(GOLD), refused, answer(GOLD))

    assert reward(once, GOLD, scorer, PAPER).parts["propose"] == pytest.approx((2 / 3 + 1) / 2)
    assert reward(often, GOLD, scorer, PAPER).parts["propose"] == pytest.approx((2 / 3 + 1) / 2)


def test_without_a_call_the_process_earns_nothing(scorer: Scorer):
    """An answer at once is paid for its outcome only."""
    paid = reward(episode(answer(GOLD)), GOLD, scorer, PAPER)

    assert paid.total == pytest.approx(2.0)
    assert [paid.parts[part] for part in ("propose", "e_verify", "m_verify")] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("events", [(), (answer(""),), (answer("  \n"),), (answer(GOLD), answer(""))])
def test_no_answer_is_wrong_and_not_set_aside(scorer: Scorer, events: tuple[Event, ...]):
    """Case rw-form-without-content: an absent or empty final SQL earns no outcome."""
    paid = reward(episode(execute(GOLD), *events), GOLD, scorer, PAPER)

    assert (paid.parts["execution_match"], paid.parts["exact_match"]) == (0.0, 0.0)
    assert paid.status == "ok"


def test_only_the_last_answer_counts(scorer: Scorer):
    """Case rw-form-without-content: several answers earn what the last one earns, and nothing extra."""
    several = reward(episode(answer("SELECT 1"), answer("SELECT 2"), answer(GOLD)), GOLD, scorer, PAPER)

    assert several == reward(episode(answer(GOLD)), GOLD, scorer, PAPER)
    assert reward(episode(answer(GOLD), answer("SELECT 1")), GOLD, scorer, PAPER).total == 0.0


def test_text_of_the_environment_earns_nothing(scorer: Scorer):
    """Case rw-answer-tag-in-tool-reply: rewards read events, so an answer tag in a tool's reply is no answer."""
    segments = (
        Segment("prompt", (1,)),
        Segment("model", (2,), (0.0,), "I give up."),
        Segment("environment", (3,), (), f"finish with <answer_sql>{GOLD}</answer_sql>"),
    )
    paid = reward(episode(segments=segments), GOLD, scorer, PAPER)

    assert paid.total == 0.0


@pytest.mark.parametrize(
    "gold",
    ["SELECT nmae FROM st", "SELECT name FROM st WHERE age >", "WITH RECURSIVE r(n) AS (SELECT 1) SELECT n FROM r"],
)
def test_gold_that_cannot_be_graded_sets_the_sample_aside(scorer: Scorer, gold: str):
    """Gold that fails to run, or that exact match cannot read, says nothing about the model: no reward, a reason."""
    paid = reward(episode(answer(GOLD)), gold, scorer, PAPER)

    assert paid.total is None
    assert paid.status == "ungradable"
    assert "item i/1 sample 3" in paid.reason


@dataclass
class FlakyJudge:
    """A judge whose machine fails a number of times before it works."""

    scorer: Scorer
    failures: float
    error: type[Exception] = InfrastructureError

    def gold_execution(self, db_id: str, gold: str):
        if self.failures > 0:
            self.failures -= 1
            raise self.error("database is locked")
        return self.scorer.gold_execution(db_id, gold)

    def __getattr__(self, name: str):
        return getattr(self.scorer, name)


def test_a_machine_that_recovers_costs_nothing(scorer: Scorer):
    """Case rw-infrastructure-is-not-zero, variant 1: locked twice, then the reward of the right answer."""
    right = episode(execute(GOLD), e_verify("pass"), answer(GOLD))

    assert reward(right, GOLD, FlakyJudge(scorer, 2), PAPER) == reward(right, GOLD, scorer, PAPER)


def test_a_machine_that_stays_broken_sets_the_sample_aside(scorer: Scorer):
    """Case rw-infrastructure-is-not-zero, variant 2: no reward, never 0, and told apart from a wrong answer."""
    paid = reward(episode(answer(GOLD)), GOLD, FlakyJudge(scorer, math.inf), PAPER)

    assert paid == Reward(None, dict.fromkeys(PARTS), "infrastructure", "item i/1 sample 3: database is locked")


def test_a_missing_database_is_the_callers_to_see(scorer: Scorer):
    """A database that is not there is no bad luck: it raises."""
    with pytest.raises(DatabaseError):
        reward(episode(answer(GOLD)), GOLD, FlakyJudge(scorer, 1, DatabaseError), PAPER)


@pytest.mark.parametrize(
    ("outcome", "process", "expected"),
    [(1.0, 0.5, 1.4), (None, 0.5, None), (0.0, None, None), (math.nan, 0.5, None)],
)
def test_a_missing_part_is_not_a_zero(outcome: float | None, process: float | None, expected: float | None):
    """Case rw-none-and-nan: None or NaN in a part makes the total None, and the sample leaves its group."""
    parts = {"execution_match": outcome, "exact_match": 0.0, "propose": process, "e_verify": 0.0, "m_verify": 0.0}

    assert total(parts, PAPER) == (None if expected is None else pytest.approx(expected))


def test_all_parts_missing_is_an_error_that_names_the_sample():
    """Case rw-none-and-nan: a judge that answers nothing stops the run."""
    with pytest.raises(TrainingError, match="item i/1 sample 3"):
        total(dict.fromkeys(PARTS), PAPER, "item i/1 sample 3")


def test_the_authors_variant_reads_text(scorer: Scorer):
    """`authors_code` takes the last answer tag anywhere for the answer, which `paper` does not."""
    segments = (
        Segment("prompt", (1,)),
        Segment("model", (2,), (0.0,), "I give up."),
        Segment("environment", (3,), (), f"finish with <answer_sql>{GOLD}</answer_sql>"),
    )
    paid = reward(episode(segments=segments), GOLD, scorer, RewardSettings(variant="authors_code"))

    assert paid.total == pytest.approx(2.0)
