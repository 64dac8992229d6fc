"""The stage that provides the base policy: a model by name, or one made from scratch and taught on part of train."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from agents.mtsql.actions import EXEC_SQL, MEMORY_RETRIEVE, call_phrases
from agents.mtsql.agent import MtsqlAgent
from agents.mtsql.environment import Environment
from agents.mtsql.memory import HistoryMemory
from agents.mtsql.scripted import scripted_episode
from stages.context import StageContext
from stages.policies import BOOTSTRAP_ROWS, Script, replay_all, short_answer, train
from stages.pools import bootstrap_items
from stages.sampling import short_horizon, some_items
from text2sql.chat import ChatCodec
from text2sql.config import SFTSettings
from text2sql.dialogue import Item
from text2sql.executor import Executor
from text2sql.policy import resolve_policy
from text2sql.schema import read_schema, text_values
from text2sql.trajectory import Trajectory, write_trajectories
from trainers.rows import TrainingRow, row_for_reading, row_from_trajectory, write_rows
from trainers.scratch import make_scratch_policy, value_words


def make_base_policy(context: StageContext) -> dict[str, Any]:
    """
    A model by name is checked and referred to. A scratch model is made, learns to read dialogues (language modelling
    of whole ones) and then the protocol (masked SFT on scripted episodes, reading on meanwhile, or it would forget);
    BootstrapSettings says how long. What it was taught is kept for `sft.replay` and for the control of the warm start.
    """
    settings = context.profile.model
    if settings.init == "pretrained":
        assert settings.name is not None
        resolve_policy(settings.name)
        folder = Path(settings.name).expanduser()
        policy = str(folder.resolve()) if folder.is_dir() else settings.name
        context.write_json("reference.json", {"policy": policy, "reason": "pretrained"})
        return {"pretrained": settings.name}
    bootstrap = settings.bootstrap
    items = bootstrap_items(context)
    last = {item.dialogue_id: item for item in items}  # the last turn's prompt holds the whole dialogue
    shown = some_items(items, bootstrap.items, context.profile.seed)
    scratch, reader = context.work / "scratch", context.work / "reader"
    with context.executor() as executor:
        dialogues = [whole_dialogue(item, number, context, executor) for number, item in enumerate(last.values())]
        episodes = [script for item in shown for script in scripts(item, context, executor)]
        if not scratch.is_dir():
            texts = asyncio.run(spoken_texts([*dialogues, *episodes], context, executor))
            making = scratch.with_name("scratch.making")
            phrases = call_phrases((EXEC_SQL, MEMORY_RETRIEVE))
            words = spoken_values(texts, items, context) if settings.value_words else []
            make_scratch_policy(texts, settings, context.profile.seed, making, phrases, words)
            making.rename(scratch)
        codec, agent = ChatCodec.load(scratch), context.profile.agent
        agents = {
            "long": MtsqlAgent(codec, executor, context.database_root, agent),
            "short": MtsqlAgent(codec, executor, context.database_root, short_horizon(agent)),
        }
        read = asyncio.run(replay_all(dialogues, agents))
        kept = asyncio.run(replay_all(episodes, agents))
    write_trajectories((described(*one) for one in kept), context.out / "episodes.jsonl")
    facts: dict[str, Any] = {
        "dialogues": len(read),
        "dialogues_too_long": len(dialogues) - len(read),
        "scripted_items": len(shown),
        "scripted_episodes": len(kept),
        "episodes_too_long": len(episodes) - len(kept),
    }
    context.say(f"base_policy: {', '.join(f'{value} {key}' for key, value in facts.items())}")
    b, limit = bootstrap, settings.max_positions
    reading = [reading_row(script, trajectory, codec, b.other_tokens) for script, trajectory in read]
    phase = _sft(b.dialogue_epochs, b.dialogue_learning_rate, b.dialogue_batch_size, limit)
    facts.update(train(context, reading, str(scratch), phase, name="reader"))
    speaking = [row_from_trajectory(trajectory, script.mistaken) for script, trajectory in kept]
    rows = [*named("dialogue", reading), *named("episode", speaking)]
    facts.update(train(context, rows, str(reader), _sft(b.epochs, b.learning_rate, b.batch_size, limit)))
    write_rows(rows, context.out / BOOTSTRAP_ROWS)
    return facts


def named(kind: str, rows: Sequence[TrainingRow]) -> list[TrainingRow]:
    """The rows under names that no other kind has: an item is read, and answered at both horizons."""
    return [replace(row, row_id=f"{kind} {number}: {row.row_id}") for number, row in enumerate(rows)]


def spoken_values(texts: Sequence[str], items: Sequence[Item], context: StageContext) -> list[str]:
    """Values of the items' databases, and numbers, that are to be words of the tokenizer."""
    values = {value for db_id in {item.db_id for item in items} for value in text_values(context.database(db_id))}
    return value_words(texts, values, context.profile.model.value_words)


def described(script: Script, trajectory: Trajectory) -> Trajectory:
    """With what whoever trains on it again has to know: its horizon, and the messages that are not to be learnt."""
    return replace(trajectory, details={"horizon": script.horizon, "mistaken": sorted(script.mistaken)})


def whole_dialogue(last: Item, number: int, context: StageContext, executor: Executor) -> Script:
    """A dialogue up to its last turn, which is answered by an episode in the share that the settings say, or at once."""
    bootstrap = context.profile.model.bootstrap
    share = bootstrap.episode_share
    if int((number + 1) * share) == int(number * share):
        return short_answer(last)
    return scripted(last, bootstrap.mistakes_per_episode, number, context, executor)


def reading_row(script: Script, trajectory: Trajectory, codec: ChatCodec, share: float) -> TrainingRow:
    answers = [codec.encode_model(f" {turn.sql}") for turn in script.item.history]
    return row_for_reading(trajectory, script.mistaken, answers, share)


def scripts(item: Item, context: StageContext, executor: Executor) -> Iterator[Script]:
    """Scripted episodes of one item: long-horizon ones with mistakes that get corrected, and one short answer."""
    bootstrap = context.profile.model.bootstrap
    for number in range(bootstrap.episodes_per_item):
        yield scripted(item, bootstrap.mistakes_per_episode, number, context, executor)
    yield short_answer(item)


def scripted(item: Item, mistakes: float, number: int, context: StageContext, executor: Executor) -> Script:
    database = context.database(item.db_id)
    rng = random.Random(f"{context.profile.seed}/{item.item_id}/{number}")
    execute = partial(executor.execute, database=database)
    episode = scripted_episode(item, rng, mistakes, context.profile.agent, read_schema(database), execute)
    return Script(item, "long", episode.messages, episode.mistaken)


async def spoken_texts(scripts: Sequence[Script], context: StageContext, executor: Executor) -> list[str]:
    """All that is said in the scripts, by anybody: what a scratch tokenizer is trained on."""
    texts: list[str] = []
    for script in scripts:
        agent = context.profile.agent if script.horizon == "long" else short_horizon(context.profile.agent)
        database = context.database(script.item.db_id)
        environment = Environment(script.item.question(), executor, database, HistoryMemory(executor, database), agent)
        texts.append(environment.prompt()[0])
        for message in script.messages:
            reply = await environment.step(message)
            texts += [message, reply.text or ""]
    return texts


def _sft(epochs: float, learning_rate: float, batch_size: int, max_tokens: int) -> SFTSettings:
    return SFTSettings(
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=batch_size,
        gradient_accumulation=1,
        max_tokens=max_tokens,
    )
