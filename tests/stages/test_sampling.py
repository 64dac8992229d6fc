"""Sampling in shards: what is kept, what is made again, and what the machine lost."""

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agents.mtsql.actions import EXEC_SQL, answer_text, call_text
from agents.mtsql.agent import MtsqlAgent
from stages.sampling import Draw, Shard, agent_in_use, make_predictions, make_validation_attempts, roll_out_shards
from text2sql.chat import ChatCodec
from text2sql.config import AgentSettings, Profile
from text2sql.dialogue import Item
from text2sql.engines.scripted import ScriptedEngine
from text2sql.errors import InfrastructureError
from text2sql.executor import Executor
from text2sql.trajectory import read_trajectories

GOLD = "SELECT name FROM staff"
DRAW = Draw(samples=2, temperature=1.0, seed=0)
SHORT = {"prompt": "compact", "max_prompt_tokens": 400, "max_episode_tokens": 60, "max_message_tokens": 8}


@pytest.fixture(scope="module")
def codec(policy: Path) -> ChatCodec:
    return ChatCodec.load(policy / "policy")


@pytest.fixture
def executor() -> Iterator[Executor]:
    with Executor(workers=1) as pool:
        yield pool


@pytest.fixture
def play(make_context, codec: ChatCodec, executor: Executor, shop: Path) -> Callable[..., Path]:
    """
    `play({shard name: items}, before)`: sample these shards with the real agent and environment, the model running GOLD
    and answering with it. `before` is called with the prompt of each message. Returns the stage's folder.
    """

    def run(shards: dict[str, list[Item]], before: Callable[[str], None] = lambda prompt: None) -> Path:
        def reply(prompt_ids: list[int]) -> str:
            prompt = codec.decode(prompt_ids)
            before(prompt)
            return answer_text(GOLD) if "<tool_response>" in prompt else call_text(EXEC_SQL, GOLD)

        context = make_context("round_1/trajectories", [item for part in shards.values() for item in part])
        (context.out / "shards").mkdir(exist_ok=True)
        agent = MtsqlAgent(codec, executor, shop / "database", AgentSettings(prompt="compact"))
        waiting = [Shard(1, context.out / "shards" / name, part) for name, part in shards.items()]
        asyncio.run(roll_out_shards(context, agent, ScriptedEngine(reply, codec), waiting, 1, DRAW))
        return context.out

    return run


def drawn(out: Path) -> list[tuple[str, int]]:
    return [(one.item_id, one.sample) for one in read_trajectories(out / "shards")]


def test_a_sample_that_the_machine_lost_is_recorded_and_left_out(play, dialogue, shop):
    """
    Case rw-infrastructure-is-not-zero: one item's database cannot be read. Its samples are no trajectories, so nobody
    can score them as wrong; which they were and why is in failures/. The others are all there.
    """
    broken = dialogue("t/2", "train", GOLD, db_id="broken")
    (shop / "database" / "broken").mkdir()
    (shop / "database" / "broken" / "broken.sqlite").write_bytes(b"no database" * 100)
    out = play({"00000-00002.jsonl": [*dialogue("t/0", "train", GOLD, GOLD), *broken]})
    failures = [json.loads(line) for line in (out / "failures" / "00000-00002.jsonl").open(encoding="utf-8")]

    assert [("t/0/1", 0), ("t/0/1", 1), ("t/0/2", 0), ("t/0/2", 1)] == drawn(out)
    assert [("t/2/1", 0), ("t/2/1", 1)] == [(one["item_id"], one["sample"]) for one in failures]
    assert all("broken.sqlite" in one["message"] for one in failures)


def test_a_second_run_draws_what_the_machine_lost_and_nothing_else(play, dialogue, shop):
    """
    Case cl-run-twice-into-one-folder: the database that could not be read is put right. Of the finished shard exactly
    the lost samples are drawn; the others stay as they are, each sample is there once, and no failure is left.
    """
    items = dialogue("t/0", "train", GOLD, GOLD) + dialogue("t/2", "train", GOLD, db_id="broken")
    (shop / "database" / "broken").mkdir()
    (shop / "database" / "broken" / "broken.sqlite").write_bytes(b"no database" * 100)
    out = play({"00000-00002.jsonl": items})
    before = list(read_trajectories(out / "shards"))
    shutil.copy(shop / "database" / "shop" / "shop.sqlite", shop / "database" / "broken" / "broken.sqlite")
    prompts: list[str] = []

    play({"00000-00002.jsonl": items}, prompts.append)

    assert [("t/0/1", 0), ("t/0/1", 1), ("t/0/2", 0), ("t/0/2", 1), ("t/2/1", 0), ("t/2/1", 1)] == drawn(out)
    assert before == list(read_trajectories(out / "shards"))[:4]
    assert 2 == sum("<tool_response>" not in prompt for prompt in prompts)
    assert not (out / "failures" / "00000-00002.jsonl").exists()


def test_a_machine_that_loses_most_of_a_shard_stops_the_stage_with_the_reason(play, dialogue, executor, tmp_path):
    """
    Case cl-success-that-was-none: the pool is gone after the first shard. The stage ends with how many samples were
    lost and why; the finished shard is kept, the other one has no file and is made anew by the next run.
    """

    def close_at_second_dialogue(prompt: str) -> None:
        if "second" in prompt:
            executor.close()

    first = dialogue("t/0", "train", GOLD, GOLD)
    second = [replace(item, utterance="second") for item in dialogue("t/1", "train", GOLD, GOLD)]

    with pytest.raises(InfrastructureError, match=r"(?s)shard 00002-00003: .* lost 3 of 4 samples.*executor is closed"):
        play({"00000-00001.jsonl": first, "00002-00003.jsonl": second}, close_at_second_dialogue)
    assert ["00000-00001.jsonl"] == [path.name for path in (tmp_path / "out" / "shards").iterdir()]


def test_nothing_is_recorded_where_nothing_was_lost(play, dialogue):
    """No empty files beside the shards."""
    out = play({"00000-00001.jsonl": dialogue("t/0", "train", GOLD, GOLD)})

    assert 4 == len(drawn(out))
    assert not (out / "failures").exists()


def attempts(make_context, policy: Path, items: list[Item], shard_items: int):
    profile = {
        "agent": SHORT,
        "sampling": {"shard_items": shard_items},
        "reward_search": {"samples": 2, "max_items": 4},
    }
    context = make_context("reward_search/attempts", items, profile, policy=policy)
    return context.out, make_validation_attempts(context)


def test_reward_search_samples_validation_alone(make_context, dialogue, policy):
    """At most `max_items` of its gradable items, each `samples` times; train and dev are never touched."""
    items = [
        one
        for split, name in (("train", "t/0"), ("validation", "t/1"), ("validation", "t/2"), ("dev", "d/0"))
        for one in dialogue(name, split, GOLD, GOLD, GOLD)
    ]
    out, metrics = attempts(make_context, policy, items, shard_items=2)

    assert {2} == set(Counter(item_id for item_id, _ in drawn(out)).values())
    assert {"t/1", "t/2"} == {item_id.rpartition("/")[0] for item_id, _ in drawn(out)}
    assert (4, 8, 0) == (metrics["items"], metrics["trajectories"], metrics["infrastructure"])


def test_shards_of_another_size_are_not_taken_for_these(make_context, dialogue, policy):
    """A run that goes on with shards of another size still has every sample once."""
    items = [one for number in range(4) for one in dialogue(f"t/{number}", "validation", GOLD)]
    items += dialogue("d/0", "dev", GOLD)
    out, _ = attempts(make_context, policy, items, shard_items=1)
    before = drawn(out)
    (out / "shards" / "00003-00003.jsonl").unlink()
    (out / "shards" / "00002-00002.jsonl.partial").write_text("half", encoding="utf-8")

    attempts(make_context, policy, items, shard_items=2)

    assert before == drawn(out)
    assert ["00000-00001.jsonl", "00002-00003.jsonl"] == sorted(path.name for path in (out / "shards").iterdir())


def test_finished_shards_stay_as_they_are(make_context, dialogue, policy):
    """A run that was stopped makes only what is missing, and draws there what it would have drawn at once."""
    items = [one for number in range(4) for one in dialogue(f"t/{number}", "validation", GOLD)]
    out, _ = attempts(make_context, policy, items, shard_items=2)
    kept, lost = out / "shards" / "00000-00001.jsonl", out / "shards" / "00002-00003.jsonl"
    time, tokens = kept.stat().st_mtime_ns, [one.token_ids for one in read_trajectories(lost)]
    lost.unlink()

    attempts(make_context, policy, items, shard_items=2)

    assert time == kept.stat().st_mtime_ns
    assert all(one.completion_tokens for one in read_trajectories(lost))
    assert tokens == [one.token_ids for one in read_trajectories(lost)]


@pytest.mark.parametrize("left", ["exec_sql", "memory_retrieve"])
def test_a_tool_switched_off_at_evaluation_is_not_in_the_prompt(make_context, dialogue, policy, codec, left):
    """As with `agent.tools`: the agent is not told of it. The first turn has nothing to remember anyway."""
    tool = {"exec_sql": "execute", "memory_retrieve": "memory"}[left]
    profile = {"agent": {"prompt": "full", "max_prompt_tokens": 16}, "evaluation": {"tools": (tool,)}}
    items = dialogue("d/0", "dev", GOLD, GOLD)
    context = make_context("evaluation/base/predictions", items, profile, policy=policy)
    make_predictions(context)
    second = codec.decode(list(read_trajectories(context.out / "shards"))[1].prompt_ids)

    assert {left} == {name for name in ("exec_sql", "memory_retrieve") if name in second}


def test_a_smaller_budget_at_evaluation_ends_episodes_earlier(make_context, dialogue, policy):
    """The agent's own budget is 60 tokens after the prompt, the evaluation allows 20."""
    profile = {"agent": {**SHORT, "max_message_tokens": 50}, "evaluation": {"max_episode_tokens": 20}}
    context = make_context("evaluation/base/predictions", dialogue("d/0", "dev", GOLD), profile, policy=policy)
    make_predictions(context)

    assert all(one.completion_tokens <= 20 for one in read_trajectories(context.out / "shards"))


def test_a_short_horizon_policy_has_no_tools_whatever_the_evaluation_says():
    """Its horizon is its own."""
    values = {"name": "x", "model": {"init": "scratch"}, "evaluation": {"tools": ("execute",)}}
    agent = agent_in_use(Profile.model_validate(values), "short_horizon_sft")

    assert ("short", ()) == (agent.horizon, agent.tools)
