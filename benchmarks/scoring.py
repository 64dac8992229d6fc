"""
How fast pairs are scored, beside a straightforward loop on the same pairs in the same run, and how that grows over two cores.

    python benchmarks/scoring.py [--shared ../shared] [--pairs N] [--trajectories-times 20]

The loop does for each pair what the official program does and keeps nothing from one pair to the next. EM: read the
schema, parse both queries, compare. EX: split both texts with sqlparse, open the database and run each query, try the
orders of columns. Rewards: the authors' score with those two. It reads SQL with this project's own quick reader where
the official one uses NLTK, so for EM it flatters the baseline.

Rewards, "each once": so many rounds of the trajectories, the model's text respelt in each round (another number of blanks
after SELECT), so that no solution comes twice and nothing that was kept of one helps another. Golds stay as they are: in
every use a gold belongs to an item, comes with each sample of it, and is kept. "Each so many times": samples that say the
same, as GRPO groups have them. `paper` takes stored events, as GRPO does; its loop is the authors' score too.

Left out on both sides: pairs with one query that multiplies two tables (483 million rows, some ten seconds); there the
deadline decides, not the program.

`wall` counts seconds on the clock, `cpu` those of all processes together, which is what to look at on a busy machine.

Two cores: one scoring process (and the worker it starts) pinned to a core, against two, each pinned to its own, with
half of the items each. The control does nothing but count, arranged alike in the same minute: what it gains is what the
machine has to give. `cpu an item`: what the second process costs by being there, whatever else the machine does.
"""

import argparse
import gc
import gzip
import itertools
import json
import multiprocessing
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import psutil
import sqlparse

from agents.mtsql.authors_code import authors_score, final_sql, split_ground_truth
from agents.mtsql.authors_text import read_messages, rebuild_events
from agents.mtsql.rewards import reward
from evaluation.exact_match import exact_match
from evaluation.schema_index import EvaluatorSchema, load_schema
from evaluation.verdicts import Scorer
from text2sql.config import RewardSettings
from text2sql.datasets import read_tables
from text2sql.executor import Executor
from text2sql.trajectory import Trajectory

ENDLESS_PRODUCT = "SELECT count ( * ) FROM routes AS T1 JOIN airports AS T2"
BATCH = 32

Pair = dict[str, Any]
Rows = list[tuple[Any, ...]]


@dataclass
class Speed:
    count: int
    wall: float
    cpu: float


class Data:
    """Pairs, trajectories and databases of the shared folder."""

    def __init__(self, shared: Path, pairs: int | None) -> None:
        self.root, self.tables_json = shared / "data" / "database", shared / "data" / "tables.json"
        self.entries = read_tables(self.tables_json)
        with gzip.open(shared / "peer" / "official_verdicts.jsonl.gz", "rt", encoding="utf-8") as file:
            found = [json.loads(line) for line in file]
        self.pairs = [pair for pair in found if ENDLESS_PRODUCT not in (pair["gold"], pair["pred"]) and pair["pred"]]
        self.pairs = self.pairs[: pairs or len(self.pairs)]
        lines = (shared / "peer" / "reward_trajectories.jsonl").read_text(encoding="utf-8").splitlines()
        self.trajectories = [json.loads(line) for line in lines]

    def respelt(self, times: int) -> list[Pair]:
        """The trajectories so many times, no solution twice; golds as they are."""
        return [
            {**row, "solution": _respelt(row["solution"], number)}
            for number in range(times)
            for row in self.trajectories
        ]

    def path(self, db_id: str) -> Path:
        return self.root / db_id / f"{db_id}.sqlite"


def _respelt(text: str, number: int) -> str:
    return re.sub("select ", lambda match: match[0] + " " * number, text, flags=re.IGNORECASE)


# --- the straightforward loop -------------------------------------------------------------------------------------------


def naive_em(data: Data, pairs: Sequence[Pair]) -> None:
    for pair in pairs:
        schema = load_schema(data.path(pair["db_id"]), data.entries.get(pair["db_id"]))
        exact_match(pair["gold"], pair["pred"], schema)


def naive_ex(data: Data, pairs: Sequence[Pair]) -> None:
    for pair in pairs:
        naive_execution_match(data.path(pair["db_id"]), pair["gold"], pair["pred"].replace("value", "1"))


def naive_execution_match(database: Path, gold: str, pred: str) -> bool:
    gold, pred = naive_text(gold), naive_text(pred)
    expected, found = naive_rows(database, gold), naive_rows(database, pred)
    if expected is None or found is None:
        return False
    return naive_equal(expected, found, "order by" in gold.lower())


def naive_text(sql: str) -> str:
    for sign in "><!":
        sql = sql.replace(f"{sign} =", f"{sign}=")
    tokens = [token.value for token in sqlparse.parse(sql)[0].flatten()]
    return "".join(token for token in tokens if token.lower() != "distinct")


def naive_rows(database: Path, sql: str) -> Rows | None:
    connection = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)
    connection.text_factory = lambda raw: raw.decode(errors="ignore")
    try:
        return connection.execute(sql).fetchall()
    except (sqlite3.Error, sqlite3.Warning):
        return None
    finally:
        connection.close()


def naive_equal(gold: Rows, pred: Rows, ordered: bool) -> bool:
    if not gold or len(gold) != len(pred) or len(gold[0]) != len(pred[0]):
        return len(gold) == len(pred) == 0
    by_text = [
        [tuple(sorted(row, key=lambda cell: str(cell) + str(type(cell)))) for row in rows] for rows in (gold, pred)
    ]
    if (by_text[0] != by_text[1]) if ordered else (set(by_text[0]) != set(by_text[1])):
        return False
    columns = [set(column) for column in zip(*gold, strict=True)]
    candidates = [
        [number for number, column in enumerate(zip(*pred, strict=True)) if set(column[:20]) <= wanted]
        for wanted in columns
    ]
    for order in itertools.product(*candidates):
        if len(set(order)) == len(order):
            permuted = [tuple(row[number] for number in order) for row in pred]
            if permuted == gold or (not ordered and Counter(permuted) == Counter(gold)):
                return True
    return False


class NaiveJudge:
    """What the authors' score asks for, without keeping anything."""

    def __init__(self, data: Data) -> None:
        self.data = data

    def schema(self, db_id: str) -> EvaluatorSchema:
        return load_schema(self.data.path(db_id), self.data.entries.get(db_id))

    def plain_execution_match(self, db_id: str, gold: str, pred: str) -> bool:
        return naive_execution_match(self.data.path(db_id), gold, pred)


def naive_rewards(data: Data, trajectories: Sequence[Pair]) -> None:
    judge = NaiveJudge(data)
    for row in trajectories:
        authors_score(row["solution"], *split_ground_truth(row["ground_truth"]), judge)


# --- ours ---------------------------------------------------------------------------------------------------------------


def our_em(data: Data, pairs: Sequence[Pair]) -> None:
    for pair in pairs:
        exact_match(pair["gold"], pair["pred"], our_schema(data, pair["db_id"]))


@cache
def our_schema(data: Data, db_id: str) -> EvaluatorSchema:
    return load_schema(data.path(db_id), data.entries.get(db_id))


def our_ex(scorer: Scorer, pairs: Sequence[Pair]) -> None:
    def batch(some: Sequence[Pair]) -> None:
        queries = [query for pair in some for query in scorer.queries(pair["db_id"], pair["gold"], pair["pred"])]
        scorer.executor.start_many(queries).finish()
        for pair in some:
            scorer.execution_match(pair["db_id"], pair["gold"], pair["pred"])

    in_threads(batch, pairs, scorer.executor.workers + 1)


def our_rewards(scorer: Scorer, trajectories: Sequence[Pair]) -> None:
    split = [(row["solution"], *split_ground_truth(row["ground_truth"])) for row in trajectories]
    ahead = scorer.ahead(split, lambda one: (one[2], one[1], final_sql(one[0])), replace_value=False)
    for text, gold, db_id in ahead:
        authors_score(text, gold, db_id, scorer)


def our_paper_rewards(scorer: Scorer, episodes: Sequence[tuple[Trajectory, str]]) -> None:
    settings = RewardSettings()
    for trajectory, gold in scorer.ahead(episodes, lambda one: (one[0].db_id, one[1], one[0].final_sql)):
        reward(trajectory, gold, scorer, settings)


def stored(data: Data, trajectories: Sequence[Pair]) -> list[tuple[Trajectory, str]]:
    """The trajectories with their events, as sampling stores them, and their golds."""
    episodes = []
    with Executor() as executor:
        for row in trajectories:
            gold, db_id = split_ground_truth(row["ground_truth"])
            run = partial(executor.execute, database=data.path(db_id))
            events = rebuild_events(read_messages(row["solution"]), run)
            final = next((event.sql for event in events if event.kind == "finalize"), None)
            episodes.append((Trajectory("", "", 0, db_id, 0, "gold", (), events, final, "answered"), gold))
    return episodes


def in_threads(batch: Callable[[Sequence[Pair]], None], items: Sequence[Pair], count: int) -> None:
    with ThreadPoolExecutor(count) as threads:
        list(threads.map(batch, [items[start : start + BATCH] for start in range(0, len(items), BATCH)]))


# --- measuring ----------------------------------------------------------------------------------------------------------


def measure(work: Callable[[], object], count: int) -> Speed:
    gc.collect()
    gc.freeze()  # the pairs that the benchmark itself holds are no load of what it measures
    before, started = cpu_seconds(), time.perf_counter()
    work()
    return Speed(count, time.perf_counter() - started, cpu_seconds() - before)


def measure_ours(work: Callable[[Scorer, Any], None], data: Data, items: Sequence[Any], workers: int = 1) -> Speed:
    """Work with a fresh scorer, whose workers have started but know nothing yet."""
    with Executor(workers=workers) as executor:
        scorer = started_scorer(data, executor)
        return measure(lambda: work(scorer, items), len(items))


def started_scorer(data: Data, executor: Executor) -> Scorer:
    scorer = Scorer(data.root, data.tables_json, executor)
    scorer.schema("world_1")
    with ThreadPoolExecutor(executor.workers) as threads:
        list(threads.map(lambda _: executor.execute_many([("SELECT 1", data.path("world_1"))] * 50), range(8)))
    return scorer


def cpu_seconds() -> float:
    """Of this process and all that it started, running or not."""
    me = psutil.Process()
    times = [me.cpu_times(), *(child.cpu_times() for child in me.children(recursive=True))]
    ended = times[0].children_user + times[0].children_system
    return float(sum(one.user + one.system for one in times) + ended)


def beside_the_loop(data: Data, times: int) -> list[str]:
    lines = ["| one process | loop /s | ours /s | ratio, wall | ratio, cpu |", "| --- | ---: | ---: | ---: | ---: |"]

    def add(name: str, loop: Speed, ours: Speed) -> None:
        speeds = (loop.count / loop.wall, ours.count / ours.wall)
        by_cpu = (loop.cpu / loop.count) / (ours.cpu / ours.count)
        lines.append(f"| {name} | {speeds[0]:,.0f} | {speeds[1]:,.0f} | {speeds[1] / speeds[0]:.1f} | {by_cpu:.1f} |")

    pairs, count = data.pairs, len(data.pairs)
    add("EM", measure(lambda: naive_em(data, pairs), count), measure(lambda: our_em(data, pairs), count))
    add("EX", measure(lambda: naive_ex(data, pairs), count), measure_ours(our_ex, data, pairs))
    add("EX, two workers", measure(lambda: naive_ex(data, pairs), count), measure_ours(our_ex, data, pairs, 2))
    loop = measure(lambda: naive_rewards(data, data.trajectories), len(data.trajectories))
    once = data.respelt(times)
    add("rewards, each once", loop, measure_ours(our_rewards, data, once))
    add(f"rewards, each {times} times", loop, measure_ours(our_rewards, data, data.trajectories * times))
    add("rewards `paper`, each once", loop, measure_ours(our_paper_rewards, data, stored(data, once)))
    often = stored(data, data.trajectories) * times
    add(f"rewards `paper`, each {times} times", loop, measure_ours(our_paper_rewards, data, often))
    return lines


# --- two cores ----------------------------------------------------------------------------------------------------------


def count_up(steps: Sequence[int]) -> None:
    for _ in steps:
        sum(range(20_000))


def on_cores(name: str, shared: Path, pairs: int | None, times: int, cores: Sequence[int]) -> Speed:
    """The measure `name` in one new process a core, the items shared out; from the first start to the last end."""
    spawn = multiprocessing.get_context("spawn")
    ready, answers = spawn.Barrier(len(cores)), spawn.SimpleQueue()
    arguments = [(name, shared, pairs, times, core, number, len(cores)) for number, core in enumerate(cores)]
    processes = [spawn.Process(target=_on_core, args=(ready, answers, *rest)) for rest in arguments]
    for process in processes:
        process.start()
    found = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    count, started, ended, cpu = zip(*found, strict=True)
    return Speed(sum(count), max(ended) - min(started), sum(cpu))


def _on_core(
    ready: Any, answers: Any, name: str, shared: Path, pairs: int | None, times: int, core: int, number: int, of: int
) -> None:
    psutil.Process().cpu_affinity([core])
    data = Data(shared, pairs)
    items: Sequence[Any] = {"EM": data.pairs, "EX": data.pairs, "control": range(4000)}.get(name, data.respelt(times))
    items = items[number::of]
    with Executor(workers=1) as executor:
        scorer = started_scorer(data, executor)
        for db_id in {pair["db_id"] for pair in data.pairs}:
            our_schema(data, db_id)
        work: Callable[[], object] = {
            "EM": lambda: our_em(data, items),
            "EX": lambda: our_ex(scorer, items),
            "rewards": lambda: our_rewards(scorer, items),
            "control": lambda: count_up(items),
        }[name]
        gc.freeze()
        ready.wait()
        before, started = cpu_seconds(), time.perf_counter()
        work()
        answers.put((len(items), started, time.perf_counter(), cpu_seconds() - before))


def over_two_cores(shared: Path, pairs: int | None, times: int) -> list[str]:
    lines = [
        "| each process on a core of its own | one /s | two /s | gain | of the control's gain | cpu an item |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    cores = (psutil.Process().cpu_affinity() or [0, 1])[:2]
    for name in ("EM", "EX", "rewards"):
        speeds = {}
        for what in ("control", name):
            one, two = (on_cores(what, shared, pairs, times, some) for some in (cores[:1], cores))
            speeds[what] = (one.count / one.wall, two.count / two.wall, two.cpu / two.count / (one.cpu / one.count))
        control = speeds["control"][1] / speeds["control"][0]
        for what, (one_speed, two_speed, cpu) in speeds.items():
            gain = two_speed / one_speed
            of_control = "" if what == "control" else f"{gain / control:.0%}"
            label = f"control beside {name}" if what == "control" else name
            lines.append(f"| {label} | {one_speed:,.0f} | {two_speed:,.0f} | {gain:.2f} | {of_control} | {cpu:.2f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of EM, EX and rewards beside a straightforward loop.")
    parser.add_argument("--shared", type=Path, default=Path(__file__).resolve().parents[2] / "shared")
    parser.add_argument("--pairs", type=int, help="only the first N pairs")
    parser.add_argument("--trajectories-times", type=int, default=20, help="rounds of the trajectories (for ours)")
    arguments = parser.parse_args()
    times = arguments.trajectories_times
    data = Data(arguments.shared, arguments.pairs)
    print(f"{len(data.pairs):,} pairs, {len(data.trajectories)} trajectories\n")
    print("\n".join(beside_the_loop(data, times)), flush=True)
    if (psutil.cpu_count() or 1) > 1:
        print("\n" + "\n".join(over_two_cores(arguments.shared, arguments.pairs, times)))


if __name__ == "__main__":
    main()
