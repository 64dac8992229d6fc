"""Scripted episodes: honest verdicts, kept budgets, and an end that is gold, replayed through the real environment."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agents.mtsql.environment import Environment
from agents.mtsql.memory import HistoryMemory
from agents.mtsql.scripted import ScriptedEpisode, scripted_episode
from text2sql.config import AgentSettings, BenchmarkSettings
from text2sql.datasets import Benchmark, load_benchmark
from text2sql.demo import generate_demo
from text2sql.dialogue import Item, PriorTurn
from text2sql.executor import Executor
from text2sql.schema import read_schema


@dataclass(frozen=True)
class Place:
    """A benchmark with its items and what runs their SQL."""

    benchmark: Benchmark
    items: list[Item]
    executor: Executor

    def script(self, item: Item, seed: Any = 0, mistakes: float = 1.0, **settings: Any) -> ScriptedEpisode:
        database = self.benchmark.database(item.db_id)
        run = lambda sql: self.executor.execute(sql, database)  # noqa: E731
        rng = random.Random(f"{seed}/{item.item_id}")
        return scripted_episode(item, rng, mistakes, AgentSettings(**settings), read_schema(database), run)

    def replay(self, item: Item, episode: ScriptedEpisode, **settings: Any) -> Environment:
        """The environment after all messages; every reply but the last leaves the episode open."""
        database = self.benchmark.database(item.db_id)
        memory = HistoryMemory(self.executor, database)
        environment = Environment(item.question(), self.executor, database, memory, AgentSettings(**settings))
        for position, message in enumerate(episode.messages, start=1):
            reply = asyncio.run(environment.step(message))
            assert reply.done == (position == len(episode.messages))
        return environment


def items_of(benchmark: Benchmark, split: str) -> Iterator[Item]:
    for dialogue in benchmark.dialogues(split):
        if benchmark.database(dialogue.db_id).is_file():
            for turn, asked in enumerate(dialogue.turns, start=1):
                history = tuple(PriorTurn(earlier.utterance, earlier.gold) for earlier in dialogue.turns[: turn - 1])
                name, size = dialogue.dialogue_id, len(dialogue.turns)
                yield Item(
                    f"{name}/{turn}",
                    "train",
                    name,
                    turn,
                    size,
                    dialogue.db_id,
                    asked.utterance,
                    asked.gold,
                    history,
                    "",
                    None,
                )


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, executor: Executor) -> Place:
    out = tmp_path_factory.mktemp("demo")
    generate_demo(out, seed=3, train=96, dev=12)
    benchmark = load_benchmark(BenchmarkSettings(name="demo"), out)
    return Place(benchmark, list(items_of(benchmark, "train")), executor)


@pytest.fixture(scope="module")
def release(shared: Path, executor: Executor) -> Place:
    benchmark = load_benchmark(BenchmarkSettings(name="cosql"), shared / "data")
    return Place(benchmark, random.Random(0).sample(list(items_of(benchmark, "dev")), 150), executor)


def assert_honest(item: Item, environment: Environment) -> None:
    """Each verdict says what was to be seen, and the episode ends with gold."""
    gold = item.gold.strip()
    executed = recalled = None
    for event in environment.events:
        if event.kind == "execute":
            executed = event
        elif event.kind == "recall":
            recalled = event
        elif event.kind == "e_verify":
            assert executed is not None
            failed = executed.status == "error" or (executed.status == "empty" and executed.sql != gold)
            assert (event.verdict == "no_pass") == failed
        elif event.kind == "m_verify":
            assert recalled is not None
            assert (event.verdict == "no_pass") == (recalled.sql != gold)
    assert environment.stop_reason == "answered"
    assert environment.final_sql == gold
    assert not [event for event in environment.events if event.kind == "malformed"]


@pytest.mark.parametrize("mistakes", [0.0, 1.0, 2.0])
def test_verdicts_are_honest_on_the_demo(demo: Place, mistakes: float) -> None:
    """Executed on the real databases: no_pass after what fails or finds nothing or forgets, pass after gold."""
    for item in demo.items:
        assert_honest(item, demo.replay(item, demo.script(item, mistakes=mistakes)))


def test_verdicts_are_honest_on_a_release(release: Place) -> None:
    """The same for golds that others wrote, with their spelling, empty results and missing keys."""
    for item in release.items:
        assert_honest(item, release.replay(item, release.script(item)))


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5])
def test_the_budget_of_calls_is_kept(demo: Place, budget: int) -> None:
    """With any budget the episode ends with an answer, and each call is one that the environment runs."""
    settings = {"max_tool_calls": budget, "max_messages": 8}
    for item in demo.items[:80]:
        episode = demo.script(item, mistakes=2.0, **settings)
        environment = demo.replay(item, episode, **settings)

        assert environment.tool_calls == len(episode.messages) - 1 <= budget
        assert_honest(item, environment)


def test_the_limit_on_messages_is_kept(demo: Place) -> None:
    """A call needs a message after it that reads its reply."""
    for item in demo.items[:80]:
        episode = demo.script(item, mistakes=2.0, max_messages=3)

        assert len(episode.messages) <= 3
        assert_honest(item, demo.replay(item, episode, max_messages=3))


@pytest.mark.parametrize("tools", [("execute",), ("memory",), ()])
def test_tools_that_are_off_are_not_called(demo: Place, tools: tuple[str, ...]) -> None:
    """An ablation's episodes use what it leaves; with nothing left the answer comes at once."""
    for item in demo.items[:80]:
        episode = demo.script(item, tools=tools)
        text = "".join(episode.messages)

        assert ("exec_sql" in text) == ("execute" in tools)
        assert ("memory_retrieve" in text) == ("memory" in tools and bool(item.history))
        assert_honest(item, demo.replay(item, episode, tools=tools))


def test_short_horizon_is_the_answer_alone(demo: Place) -> None:
    """No call, no verdict, no thinking."""
    item = demo.items[0]

    assert demo.script(item, horizon="short").messages == (f"<answer_sql>{item.gold}</answer_sql>",)


def test_first_turns_skip_the_memory_and_later_ones_use_it(demo: Place) -> None:
    """A first turn goes from execution to answer; a later one without mistakes calls the memory once in between."""
    for item in demo.items:
        events = [event.kind for event in demo.replay(item, demo.script(item, mistakes=0.0)).events]
        first = ["propose", "execute", "e_verify", "finalize"]

        assert events == (
            ["propose", "execute", "e_verify", "recall", "m_verify", "finalize"] if item.history else first
        )


def test_mistakes_come_at_the_stated_rate_and_of_both_classes(demo: Place) -> None:
    """About half of the episodes at 0.5; among later turns both execution and coherence mistakes."""
    episodes = [(item, demo.script(item, seed=seed, mistakes=0.5)) for seed in range(2) for item in demo.items]
    share = sum(bool(episode.mistaken) for _, episode in episodes) / len(episodes)
    classes = {len(episode.mistaken) for item, episode in episodes if item.history}

    assert 0.42 < share < 0.55
    assert classes == {0, 1, 2}  # 2: the mistaken SQL is executed and then checked with the memory


def test_mistaken_messages_are_named(demo: Place) -> None:
    """`mistaken` points at the messages whose SQL is not gold, and at no other."""
    for item in demo.items:
        episode = demo.script(item)
        events = demo.replay(item, episode).events
        wrong = {e.message_index for e in events if e.kind in ("execute", "recall") and e.sql != item.gold}

        assert episode.mistaken == wrong


def test_the_same_generator_state_gives_the_same_episode(demo: Place) -> None:
    """Asked again, it says the same; another state may say something else."""
    item = demo.items[5]

    assert demo.script(item) == demo.script(item)
