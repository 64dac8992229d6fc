"""
Rollout: any agent over many items, many episodes at once.

With prior `gold` all episodes are independent. With prior `predicted` the turns of one dialogue are played in order,
per sample, each seeing the agent's own SQL of the turns before it. Seeds are derived from (seed, item, sample) alone, so
a trajectory does not depend on which other items are run, nor on the order in which they end.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

from text2sql.dialogue import Item, Prior, Question
from text2sql.engines.base import Engine, SamplingParams
from text2sql.errors import DatabaseError, DataError, InfrastructureError
from text2sql.trajectory import Trajectory


class Agent(Protocol):
    async def episode(self, engine: Engine, question: Question, sample: int, params: SamplingParams) -> Trajectory: ...


@dataclass(frozen=True)
class Failure:
    """An episode that the machine kept from ending, or that could not start because such a one came before it."""

    item_id: str
    sample: int
    message: str


async def rollout(
    agent: Agent,
    engine: Engine,
    items: Sequence[Item],
    *,
    samples: int,
    temperature: float,
    top_p: float = 1.0,
    max_tokens: int = 2**20,
    concurrency: int,
    seed: int,
    prior: Prior,
    first_sample: int = 0,
    on_progress: Callable[[Trajectory, int, int], None] | None = None,
    on_failure: Callable[[Failure], None] | None = None,
) -> list[Trajectory]:
    """
    `samples` trajectories per item, numbered from `first_sample`, in the order of the items. `max_tokens` bounds one
    message in addition to the agent's own budgets. `on_progress` gets each trajectory as it ends, how many have
    ended, and how many there will be.

    A machine that fails (InfrastructureError, DatabaseError) stops the rollout, unless `on_failure` is given: then the
    episode is handed to it and left out. EngineError always stops. With prior `predicted` all earlier turns of each
    item must be among the items; DataError otherwise.
    """
    chains = _dialogues(items) if prior == "predicted" else [[item] for item in items]
    results: dict[tuple[str, int], Trajectory] = {}
    total = len(items) * samples

    async def play(chain: list[Item], sample: int) -> None:
        answers: list[str | None] = []
        for position, item in enumerate(chain):
            question = item.question(tuple(answers)) if prior == "predicted" else item.question()
            params = SamplingParams(max_tokens, temperature, top_p, seed=derived_seed(seed, item.item_id, sample))
            try:
                trajectory = await agent.episode(engine, question, sample, params)
            except (InfrastructureError, DatabaseError) as error:
                if on_failure is None:
                    raise
                for lost in chain[position:]:
                    on_failure(Failure(lost.item_id, sample, f"{item.item_id}: {error}"))
                return
            answers.append(trajectory.final_sql)
            results[item.item_id, sample] = replace(trajectory, prior=prior)
            if on_progress is not None:
                on_progress(results[item.item_id, sample], len(results), total)

    numbers = range(first_sample, first_sample + samples)
    await _all(play, iter([(chain, sample) for chain in chains for sample in numbers]), concurrency)
    keys = [(item.item_id, sample) for item in items for sample in numbers]
    return [results[key] for key in keys if key in results]


def derived_seed(seed: int, item_id: str, sample: int) -> int:
    """31 bits that depend on nothing but the three."""
    digest = hashlib.sha256(f"{seed}\n{item_id}\n{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


async def _all(
    play: Callable[[list[Item], int], Awaitable[None]], jobs: Iterator[tuple[list[Item], int]], concurrency: int
) -> None:
    """Play all jobs, `concurrency` at once; the first error cancels the others and is raised as it is."""

    async def worker() -> None:
        for chain, sample in jobs:
            await play(chain, sample)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(max(1, concurrency)):
                group.create_task(worker())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _dialogues(items: Sequence[Item]) -> list[list[Item]]:
    """The items by dialogue, each in the order of its turns."""
    order = {dialogue_id: place for place, dialogue_id in enumerate(dict.fromkeys(item.dialogue_id for item in items))}
    ordered = sorted(items, key=lambda item: (order[item.dialogue_id], item.turn))
    chains = [list(group) for _, group in groupby(ordered, key=lambda item: item.dialogue_id)]
    for chain in chains:
        turns = [item.turn for item in chain]
        if turns != list(range(1, len(chain) + 1)):
            raise DataError(
                f"Dialogue {chain[0].dialogue_id}: prior `predicted` needs every turn from 1 on, found turns {turns}. "
                "Give the rollout whole dialogues, turns that are set aside included."
            )
    return chains
