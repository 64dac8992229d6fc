"""
The stages that sample: a round's trajectories, attempts for the curriculum and the reward search, predictions.

All are one job: roll the agent out over a list of items in shards. A finished shard is a file that is never made
again, so a run that was killed goes on where it stopped; the seed of a sample depends on its item and number only, not
on the shard or on what else was running.

A sample that the machine lost (a worker that died three times, a database that cannot be read) is set aside: it is no
trajectory, nobody scores it, and failures/ says which it was and why. When more than half of a shard is lost it is the
machine that has to be looked at: the stage stops with the reason, and the shard is made anew by the next run. A finished shard that lacks samples gets them, and nothing else of it
is made again, when the stage goes on from it (`python -m stages EXPERIMENT STAGE --lost-again`).
"""

import asyncio
import json
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from agents.mtsql.agent import MtsqlAgent
from stages.context import StageContext, policy_and_split
from stages.pools import practice_items
from stages.processes import cores, share_out
from text2sql.chat import ChatCodec
from text2sql.config import AgentSettings, EngineSettings, Profile
from text2sql.dialogue import Item, Prior
from text2sql.engines import Engine, open_engine
from text2sql.errors import InfrastructureError
from text2sql.rollout import Agent, Failure, rollout
from text2sql.textfiles import json_line
from text2sql.trajectory import Trajectory, read_trajectories, write_trajectories

MOST = 0.5  # of a shard's samples; a machine that loses more than that is broken


class Shard(NamedTuple):
    """One file of trajectories: its number among those to be made, its path, its items."""

    number: int
    path: Path
    items: list[Item]


@dataclass(frozen=True)
class Draw:
    """How an item is sampled. `prior`: whose SQL of earlier turns the agent sees."""

    samples: int
    temperature: float
    seed: int
    top_p: float = 1.0
    prior: Prior = "gold"


def make_trajectories(context: StageContext) -> dict[str, Any]:
    """A round of the warm start: samples on every train item that no earlier round has solved (Algorithm 1, S1)."""
    settings = context.profile.sampling
    solved = set(context.json("previous", "solved.json")) if "previous" in context.inputs else set()
    items = [item for item in practice_items(context) if item.item_id not in solved]
    items = some_items(items, settings.max_items, context.profile.seed)
    number = int(context.key.split("/")[0].removeprefix("round_"))
    draw = Draw(settings.samples, settings.temperature, context.profile.seed * 1000 + number, settings.top_p)
    return {"solved_before": len(solved), **sample(context, items, draw)}


def make_attempts(context: StageContext) -> dict[str, Any]:
    """Attempts of the warm-started policy on the items to practise on; successes among them make the curriculum."""
    settings = context.profile.curriculum
    items = some_items(practice_items(context), settings.max_items, context.profile.seed)
    return sample(context, items, Draw(settings.samples, settings.temperature, context.profile.seed * 1000 + 100))


def make_validation_attempts(context: StageContext) -> dict[str, Any]:
    """Attempts of the warm-started policy on validation, sampled as GRPO will sample: reward weights are judged by them."""
    settings = context.profile.reward_search
    items = some_items(context.items("validation"), settings.max_items, context.profile.seed)
    return sample(context, items, Draw(settings.samples, settings.temperature, context.profile.seed * 1000 + 300))


def make_predictions(context: StageContext) -> dict[str, Any]:
    """One trajectory per item of the split. Items that the audit set aside are answered too, to be listed apart."""
    settings = context.profile.evaluation
    policy_name, split = policy_and_split(context.key)
    items = context.items(split, gradable_only=False)
    items = [item for item in items if context.database(item.db_id).is_file()]
    if settings.max_dialogues is not None:
        wanted = list(dict.fromkeys(item.dialogue_id for item in items))[: settings.max_dialogues]
        items = [item for item in items if item.dialogue_id in set(wanted)]
    draw = Draw(1, settings.temperature, context.profile.seed * 1000 + 200, prior=settings.prior)
    return sample(context, items, draw, agent_in_use(context.profile, policy_name))


def agent_in_use(profile: Profile, policy_name: str) -> AgentSettings:
    """The agent as this policy is evaluated: at its own horizon, with the tools and tokens that are left to it."""
    settings = profile.evaluation
    limits = {"tools": settings.tools, "max_episode_tokens": settings.max_episode_tokens}
    agent = profile.agent.model_copy(update={key: value for key, value in limits.items() if value is not None})
    return short_horizon(agent) if policy_name.startswith("short_horizon") else agent


def short_horizon(agent: AgentSettings) -> AgentSettings:
    """The same agent, asked for its SQL at once and without tools."""
    return agent.model_copy(update={"horizon": "short", "tools": (), "max_tool_calls": 0})


def some_items(items: list[Item], limit: int | None, seed: int) -> list[Item]:
    """All items, or `limit` of them drawn with `seed`, in their first order."""
    if limit is None or limit >= len(items):
        return items
    drawn = set(random.Random(seed).sample(range(len(items)), limit))
    return [item for index, item in enumerate(items) if index in drawn]


def sample(
    context: StageContext, items: Sequence[Item], draw: Draw, agent: AgentSettings | None = None
) -> dict[str, Any]:
    """Roll out over `items` into shards/*.jsonl, leaving finished shards as they are. Returns counts."""
    folder = context.out / "shards"
    folder.mkdir(exist_ok=True)
    shards = {folder / name: part for name, part in _shards(items, context.profile.sampling.shard_items)}
    names = {path.name for path in shards}
    for path in [*folder.iterdir(), *(context.out / "failures").glob("*")]:
        if path.name not in names:  # left by a run with shards of another size, or half written
            path.unlink()
    lossy = {path.name for path in (context.out / "failures").glob("*")}
    waiting = {path: part for path, part in shards.items() if not path.is_file() or path.name in lossy}
    if len(waiting) < len(shards):
        context.say(f"{context.key}: {len(shards) - len(waiting)} of {len(shards)} shards were there already")
    if waiting:
        numbered = [Shard(number, *shard) for number, shard in enumerate(waiting.items(), start=1)]
        processes = min(_processes(context.profile.engine), len(numbered))
        work = partial(_sample_shards, of=len(numbered), draw=draw, agent_settings=agent or context.profile.agent)
        if processes > 1:
            share_out(context, work, numbered, processes)
        else:
            work(context, iter(numbered))
    return _counts(context.out, len(items), draw.samples)


def _shards(items: Sequence[Item], size: int) -> list[tuple[str, list[Item]]]:
    """
    Whole dialogues stay together where that is possible in the size, so that predicted priors find their turns. A name
    says which items are in the file, by their places, so that shards of another size are never taken for these.
    """
    shards: list[list[Item]] = []
    for item in items:
        same_dialogue = shards and shards[-1][-1].dialogue_id == item.dialogue_id
        if not shards or (len(shards[-1]) >= size and not same_dialogue):
            shards.append([])
        shards[-1].append(item)
    named = []
    start = 0
    for part in shards:
        named.append((f"{start:05d}-{start + len(part) - 1:05d}.jsonl", part))
        start += len(part)
    return named


def _processes(settings: EngineSettings) -> int:
    """As many as there are cores, where this process would compute on CPUs; a GPU or a server has batches enough."""
    if settings.kind != "transformers":
        return 1
    import torch

    return 1 if torch.cuda.is_available() else settings.processes or cores()


def _sample_shards(
    context: StageContext, shards: Iterator[Shard], of: int, draw: Draw, agent_settings: AgentSettings
) -> None:
    asyncio.run(_with_engine(context, shards, of, draw, agent_settings))


async def _with_engine(
    context: StageContext, shards: Iterator[Shard], of: int, draw: Draw, agent_settings: AgentSettings
) -> None:
    policy = context.policy()
    codec = ChatCodec.load(policy)
    with context.executor() as executor:
        agent = MtsqlAgent(codec, executor, context.database_root, agent_settings)
        async with open_engine(policy, context.profile.engine, context.out) as engine:
            await roll_out_shards(context, agent, engine, shards, of, draw)


async def roll_out_shards(
    context: StageContext, agent: Agent, engine: Engine, shards: Iterable[Shard], of: int, draw: Draw
) -> None:
    """
    Make `shards`; `of` is how many there are to be made in all, here and in other processes. What the machine lost of a
    shard is written to failures/, beside it; of a shard that is there already, only what it lacks is made. Raises
    InfrastructureError when that is most of a shard, and EngineError.
    """
    for number, path, part in shards:
        started = time.monotonic()
        losses = Losses(f"{context.key}, shard {path.stem}", len(part) * draw.samples)
        concurrency = context.profile.engine.concurrency
        failures = context.out / "failures" / path.name
        if path.is_file():
            kept = list(read_trajectories(path))
            trajectories = await _what_lacks(agent, engine, part, draw, concurrency, kept, losses)
            write_trajectories(_in_order([*kept, *trajectories], part), path)
            losses.write(failures)  # after the shard: should this be the end, the next attempt finds nothing lacking
        else:
            trajectories = await rollout(
                agent, engine, part, concurrency=concurrency, on_failure=losses.add, **vars(draw)
            )
            losses.write(failures)  # before the shard, whose file says that all is done
            write_trajectories(trajectories, path)
        seconds = time.monotonic() - started
        speed = len(trajectories) / seconds
        first_item = int(path.stem.partition("-")[0])
        context.log({"trajectories_per_second": speed, "shard_seconds": seconds}, first_item)
        said = f"; the machine lost {losses.said}" if losses.failures else ""
        context.say(f"{context.key}: shard {number} of {of}, {speed:.1f} trajectories/s{said}")


async def _what_lacks(
    agent: Agent,
    engine: Engine,
    part: Sequence[Item],
    draw: Draw,
    concurrency: int,
    kept: Sequence[Trajectory],
    losses: "Losses",
) -> list[Trajectory]:
    """The trajectories of `part` that are not among `kept`. With predicted priors their dialogues are played from turn 1."""
    there = {(one.item_id, one.sample) for one in kept}

    def add(failure: Failure) -> None:
        if (failure.item_id, failure.sample) not in there:
            losses.add(failure)

    made = []
    for number in range(draw.samples):
        again = [item for item in part if (item.item_id, number) not in there]
        if draw.prior == "predicted":
            dialogues = {item.dialogue_id for item in again}
            again = [item for item in part if item.dialogue_id in dialogues]
        one = vars(replace(draw, samples=1))
        made += await rollout(agent, engine, again, concurrency=concurrency, on_failure=add, first_sample=number, **one)
    return [one for one in made if (one.item_id, one.sample) not in there]


def _in_order(trajectories: Sequence[Trajectory], part: Sequence[Item]) -> list[Trajectory]:
    places = {item.item_id: place for place, item in enumerate(part)}
    return sorted(trajectories, key=lambda one: (places[one.item_id], one.sample))


class Losses:
    """What the machine lost of the `samples` of one shard, and the point at which that is too much."""

    def __init__(self, where: str, samples: int) -> None:
        self.where = where
        self.samples = samples
        self.failures: list[Failure] = []

    @property
    def said(self) -> str:
        return f"{len(self.failures)} of {self.samples} samples, the last one by {self.failures[-1].message}"

    def add(self, failure: Failure) -> None:
        self.failures.append(failure)
        if len(self.failures) > MOST * self.samples:
            raise InfrastructureError(
                f"{self.where}: the machine lost {self.said}. Put that right and run the same command again; finished "
                "shards are kept."
            )

    def write(self, path: Path) -> None:
        """One JSON line a failure; no file where there is none, whatever an attempt that died has left."""
        if not self.failures:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"".join(json_line(asdict(failure)) for failure in self.failures))


def _counts(out: Path, items: int, samples: int) -> dict[str, Any]:
    trajectories = 0
    calls = 0
    tokens = 0
    malformed = 0
    stops: dict[str, int] = {}
    for trajectory in read_trajectories(out / "shards"):
        trajectories += 1
        calls += trajectory.tool_calls
        tokens += trajectory.completion_tokens
        malformed += len(trajectory.events_of("malformed"))
        stops[trajectory.stop_reason] = stops.get(trajectory.stop_reason, 0) + 1
    count = max(trajectories, 1)
    return {
        "items": items,
        "samples": samples,
        "trajectories": trajectories,
        "infrastructure": len(_failures(out)),
        "answered_share": stops.get("answered", 0) / count,
        "tool_calls_mean": calls / count,
        "completion_tokens_mean": tokens / count,
        "malformed_messages": malformed,
        "stop_reasons": stops,
    }


def sampled(context: StageContext, role: str) -> list[Trajectory]:
    return list(read_trajectories(context.path(role, "shards")))


def lost(context: StageContext, role: str) -> list[Failure]:
    """The samples of an input that the machine lost."""
    return _failures(context.path(role))


def _failures(folder: Path) -> list[Failure]:
    lines = [line for path in sorted((folder / "failures").glob("*.jsonl")) for line in path.open(encoding="utf-8")]
    return [Failure(**json.loads(line)) for line in lines]
