"""The stage that provides the base policy: a model by name, or one made from scratch and taught on part of train."""

import asyncio
import random
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

from agents.mtsql.actions import EXEC_SQL, MEMORY_RETRIEVE, answer_text, call_phrases
from agents.mtsql.agent import MtsqlAgent
from agents.mtsql.environment import Environment
from agents.mtsql.memory import HistoryMemory
from agents.mtsql.scripted import scripted_messages
from stages.context import StageContext
from stages.policies import Script, replay_all, rows_of, train
from stages.sampling import short_horizon, some_items
from text2sql.chat import ChatCodec
from text2sql.config import SFTSettings
from text2sql.dialogue import Item
from text2sql.executor import Executor
from text2sql.policy import resolve_policy
from text2sql.schema import read_schema
from text2sql.trajectory import write_trajectories
from trainers.rows import row_of_all_tokens
from trainers.scratch import make_scratch_policy


def make_base_policy(context: StageContext) -> dict[str, Any]:
    """
    A model by name is checked and referred to. A scratch model is made, learns to read dialogues (language modelling
    of whole ones) and then the protocol (masked SFT on scripted episodes); BootstrapSettings says how long.
    """
    settings = context.profile.model
    if settings.init == "pretrained":
        assert settings.name is not None
        resolve_policy(settings.name)
        context.write_json("reference.json", {"policy": settings.name, "reason": "pretrained"})
        return {"pretrained": settings.name}
    bootstrap = settings.bootstrap
    items = bootstrap_items(context)
    last = {item.dialogue_id: item for item in items}  # the last turn's prompt holds the whole dialogue
    dialogues: list[Script] = [(item, "short", [answer_text(item.gold)]) for item in last.values()]
    shown = some_items(items, bootstrap.items, context.profile.seed)
    scratch, reader = context.out / "scratch", context.out / "reader"
    with context.executor() as executor:
        episodes = [script for item in shown for script in scripts(item, context, executor)]
        if not scratch.is_dir():
            texts = asyncio.run(spoken_texts([*dialogues, *episodes], context, executor))
            phrases = call_phrases((EXEC_SQL, MEMORY_RETRIEVE))
            make_scratch_policy(texts, settings, context.profile.seed, scratch.with_name("scratch.making"), phrases)
            scratch.with_name("scratch.making").rename(scratch)
        codec, agent = ChatCodec.load(scratch), context.profile.agent
        agents = {
            "long": MtsqlAgent(codec, executor, context.database_root, agent),
            "short": MtsqlAgent(codec, executor, context.database_root, short_horizon(agent)),
        }
        read, long_dialogues = asyncio.run(replay_all(dialogues, agents))
        kept, long_episodes = asyncio.run(replay_all(episodes, agents))
    write_trajectories(kept, context.out / "episodes.jsonl")
    facts: dict[str, Any] = {
        "dialogues": len(read),
        "dialogues_too_long": long_dialogues,
        "scripted_items": len(shown),
        "scripted_episodes": len(kept),
        "episodes_too_long": long_episodes,
    }
    context.say(f"base_policy: {', '.join(f'{value} {key}' for key, value in facts.items())}")
    b, limit = bootstrap, settings.max_positions
    reading = _sft(b.dialogue_epochs, b.dialogue_learning_rate, b.dialogue_batch_size, limit)
    speaking = _sft(b.epochs, b.learning_rate, b.batch_size, limit)
    if not (reader / "policy.json").is_file():
        facts.update(train(context, [row_of_all_tokens(t) for t in read], str(scratch), reading, name="reader"))
    facts.update(train(context, rows_of(kept), str(reader), speaking))
    for folder in (scratch, reader):
        shutil.rmtree(folder)
    return facts


def bootstrap_items(context: StageContext) -> list[Item]:
    """The train items that the bootstrap may see: whole dialogues, drawn with the profile's seed."""
    share = context.profile.model.bootstrap.share_of_train
    items = context.items("train")
    dialogues = list(dict.fromkeys(item.dialogue_id for item in items))
    drawn = set(random.Random(context.profile.seed).sample(dialogues, max(1, round(share * len(dialogues)))))
    return [item for item in items if item.dialogue_id in drawn]


def scripts(item: Item, context: StageContext, executor: Executor) -> Iterator[Script]:
    """Scripted episodes of one item: long-horizon ones with mistakes that get corrected, and one short answer."""
    bootstrap, agent = context.profile.model.bootstrap, context.profile.agent
    database = context.database_root / item.db_id / f"{item.db_id}.sqlite"
    schema = read_schema(database)
    for number in range(bootstrap.episodes_per_item):
        rng = random.Random(f"{context.profile.seed}/{item.item_id}/{number}")
        mistakes = bootstrap.mistakes_per_episode
        messages = scripted_messages(item, rng, mistakes, agent, schema, lambda sql: executor.execute(sql, database))
        yield item, "long", messages
    yield item, "short", [answer_text(item.gold)]


async def spoken_texts(scripts: Sequence[Script], context: StageContext, executor: Executor) -> list[str]:
    """All that is said in the scripts, by anybody: what a scratch tokenizer is trained on."""
    texts: list[str] = []
    for item, horizon, messages in scripts:
        agent = context.profile.agent if horizon == "long" else short_horizon(context.profile.agent)
        database = context.database_root / item.db_id / f"{item.db_id}.sqlite"
        environment = Environment(item.question(), executor, database, HistoryMemory(executor, database), agent)
        texts.append(environment.prompt()[0])
        for message in messages:
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
