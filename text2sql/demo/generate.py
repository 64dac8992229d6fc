"""
The demo benchmark: a seeded generator of databases and dialogues in the official layout.

    OUT/train.json  dev.json  dev_phrasing.json  tables.json  database/<db>/<db>.sqlite

`dev_phrasing.json` holds the dialogues of `dev.json` in other words: every utterance joins a frame and a style that
training never joins. No (database, gold SQL) pair of dev occurs in train: dev is drawn first, and a turn whose pair it
holds is not drawn for train.
"""

import json
import random
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from text2sql.demo.databases import DOMAINS, tables_entry, write_database
from text2sql.demo.domain import Domain
from text2sql.demo.draw import Draw, Step
from text2sql.demo.followups import FOLLOWUPS
from text2sql.demo.openers import OPENERS
from text2sql.demo.query import Query, to_sql
from text2sql.demo.sound import is_sound
from text2sql.demo.wording import Wording
from text2sql.errors import DataError

TRAIN_DIALOGUES = 720
DEV_DIALOGUES = 168
DEPTHS = {1: 0.08, 2: 0.18, 3: 0.27, 4: 0.23, 5: 0.14, 6: 0.10}
CHANGE_OF_SUBJECT = 0.07
# What most dialogues are made of; a small model learns these from a few thousand dialogues.
COMMON = {
    *("filtered", "filtered_twice", "columns", "counting", "lookup", "top", "grouped", "top_group", "with_children"),
    *("refine", "replace_condition", "exclude", "count_them", "which", "sort", "reverse", "top_of", "opposite"),
    *("fact_of_top", "add_column", "aggregate_of", "group_them", "other_fact", "other_row"),
}
ATTEMPTS = 150

Pair = tuple[str, str]
Intents = Literal["all", "common"]
Makes = TypeVar("Makes", bound=Callable[..., Step | None])


@dataclass(frozen=True)
class Plan:
    """A dialogue before it is put into words."""

    domain: Domain
    steps: tuple[Step, ...]

    def golds(self) -> list[str]:
        return [to_sql(step.query, self.domain) for step in self.steps]


def generate_demo(
    out: Path,
    seed: int,
    train: int = TRAIN_DIALOGUES,
    dev: int = DEV_DIALOGUES,
    databases: Sequence[str] | None = None,
    intents: Intents = "all",
) -> None:
    """
    Write the benchmark to `out`, replacing what is there: `train` and `dev` dialogues, as many for each of `databases`
    (all when left out), whose turns ask all there is to ask or only what is `common`. The same arguments give the same
    bytes on every machine. Raises DataError for an unknown database.
    """
    domains = _domains(databases)
    connections = {}
    for domain in domains:
        path = out / "database" / domain.name / f"{domain.name}.sqlite"
        write_database(domain, seed, path)
        connections[domain.name] = sqlite3.connect(path.absolute().as_uri() + "?mode=ro", uri=True)
    dev_plans = plan_dialogues(dev, random.Random(f"{seed}/dev"), connections, frozenset(), domains, intents)
    taken = frozenset((plan.domain.name, gold) for plan in dev_plans for gold in plan.golds())
    train_plans = plan_dialogues(train, random.Random(f"{seed}/train"), connections, taken, domains, intents)
    for connection in connections.values():
        connection.close()
    _write(out / "train.json", train_plans, random.Random(f"{seed}/train words"))
    _write(out / "dev.json", dev_plans, random.Random(f"{seed}/dev words"))
    _write(out / "dev_phrasing.json", dev_plans, random.Random(f"{seed}/phrasing words"), only_held_out=True)
    tables = [tables_entry(domain) for domain in domains]
    (out / "tables.json").write_text(json.dumps(tables, indent=1) + "\n", encoding="utf-8")


def _domains(databases: Sequence[str] | None) -> tuple[Domain, ...]:
    known = {domain.name: domain for domain in DOMAINS}
    unknown = sorted(set(databases or ()) - set(known))
    if unknown:
        raise DataError(f"The demo has no database {', '.join(unknown)}. It has: {', '.join(sorted(known))}.")
    return tuple(known[name] for name in dict.fromkeys(databases)) if databases else DOMAINS


def plan_dialogues(
    count: int,
    rng: random.Random,
    connections: dict[str, sqlite3.Connection],
    taken: frozenset[Pair],
    domains: Sequence[Domain] = DOMAINS,
    intents: Intents = "all",
) -> list[Plan]:
    """`count` dialogues, as many for each database and for each depth as DEPTHS says; none uses a pair in `taken`."""
    plans: list[Plan] = []
    seen: set[tuple[str, ...]] = set()
    for position, depth in enumerate(_depths(count, rng)):
        domain = domains[position % len(domains)]
        draw = Draw(domain, connections[domain.name], rng)
        while len(plans) == position:
            plan = Plan(domain, tuple(_plan_steps(draw, depth, taken, intents)))
            said = (domain.name, *plan.golds())
            if len(plan.steps) == depth and said not in seen:
                seen.add(said)
                plans.append(plan)
    rng.shuffle(plans)
    return plans


def _depths(count: int, rng: random.Random) -> list[int]:
    """`count` depths in their shares; what rounding leaves over goes to the commonest depth."""
    depths = [depth for depth, share in DEPTHS.items() for _ in range(int(share * count))]
    depths += [max(DEPTHS, key=lambda depth: DEPTHS[depth])] * (count - len(depths))
    rng.shuffle(depths)
    return depths


def _plan_steps(draw: Draw, depth: int, taken: frozenset[Pair], intents: Intents) -> list[Step]:
    """Up to `depth` steps; fewer when nothing more fits."""
    steps: list[Step] = []
    golds: set[str] = set()
    while len(steps) < depth:
        step = _next_step(draw, steps, golds, taken, intents)
        if step is None:
            break
        steps.append(step)
        golds.add(to_sql(step.query, draw.domain))
    return steps


def _next_step(
    draw: Draw, steps: Sequence[Step], golds: set[str], taken: frozenset[Pair], intents: Intents
) -> Step | None:
    earlier: list[Query] = [step.query for step in steps]
    change = not steps or draw.rng.random() < CHANGE_OF_SUBJECT
    for attempt in range(ATTEMPTS):
        if change or attempt > 0.8 * ATTEMPTS:  # nothing to add to the last turn
            step = _drawn(draw.rng, OPENERS, intents)(draw)
        else:
            step = _drawn(draw.rng, FOLLOWUPS, intents)(draw, earlier[-1], earlier)
        if step is None:
            continue
        gold = to_sql(step.query, draw.domain)
        if gold not in golds and (draw.domain.name, gold) not in taken and is_sound(draw, step):
            return step
    return None


def _drawn(rng: random.Random, kinds: Sequence[tuple[Makes, float]], intents: Intents) -> Makes:
    offered = [(kind, weight) for kind, weight in kinds if intents == "all" or kind.__name__ in COMMON]
    return rng.choices([kind for kind, _ in offered], [weight for _, weight in offered])[0]


def _write(path: Path, plans: Sequence[Plan], rng: random.Random, only_held_out: bool = False) -> None:
    dialogues: list[dict[str, Any]] = []
    for plan in plans:
        wording = Wording(plan.domain, rng, only_held_out)
        turns = [
            {"utterance": wording.say(step, position), "query": gold}
            for position, (step, gold) in enumerate(zip(plan.steps, plan.golds(), strict=True))
        ]
        dialogues.append({"database_id": plan.domain.name, "interaction": turns, "final": turns[-1]})
    text = ",\n".join(json.dumps(dialogue, ensure_ascii=False) for dialogue in dialogues)
    path.write_text(f"[\n{text}\n]\n", encoding="utf-8")
