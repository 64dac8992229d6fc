"""
How fast pairs are scored, beside a straightforward loop on the same pairs in the same run.

    python benchmarks/scoring.py [--shared ../shared] [--pairs N] [--trajectories-times 20]

The loop does for each pair what the official program does and keeps nothing from one pair to the next. EM: read the
schema, parse both queries, compare. EX: split both texts with sqlparse, open the database and run each query, try the
orders of columns. Rewards: the authors' score with those two. It reads SQL with this project's own quick reader where
the official one uses NLTK, so for EM it flatters the baseline.

Left out on both sides: pairs with one query that multiplies two tables (483 million rows, some ten seconds); there the
deadline decides, not the program.

`wall` counts seconds on the clock, `cpu` those of all processes together, which is what to look at on a busy machine.
"""

import argparse
import gzip
import itertools
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import psutil
import sqlparse

from agents.mtsql.authors_code import authors_score, final_sql, split_ground_truth
from evaluation.exact_match import exact_match
from evaluation.schema_index import EvaluatorSchema, load_schema
from evaluation.verdicts import Scorer
from text2sql.datasets import read_tables
from text2sql.executor import Executor

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

    def path(self, db_id: str) -> Path:
        return self.root / db_id / f"{db_id}.sqlite"


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
        scorer.run_ahead((pair["db_id"], pair["gold"], pair["pred"]) for pair in some)
        for pair in some:
            scorer.execution_match(pair["db_id"], pair["gold"], pair["pred"])

    in_threads(batch, pairs, scorer.executor.workers + 1)


def our_rewards(scorer: Scorer, trajectories: Sequence[Pair]) -> None:
    def batch(some: Sequence[Pair]) -> None:
        split = [(row["solution"], *split_ground_truth(row["ground_truth"])) for row in some]
        scorer.run_ahead(((db_id, gold, final_sql(text)) for text, gold, db_id in split), replace_value=False)
        for text, gold, db_id in split:
            authors_score(text, gold, db_id, scorer)

    in_threads(batch, trajectories, scorer.executor.workers + 1)


def in_threads(batch: Callable[[Sequence[Pair]], None], items: Sequence[Pair], count: int) -> None:
    with ThreadPoolExecutor(count) as threads:
        list(threads.map(batch, [items[start : start + BATCH] for start in range(0, len(items), BATCH)]))


# --- measuring ----------------------------------------------------------------------------------------------------------


def measure(work: Callable[[Data, Sequence[Pair]], None], data: Data, items: Sequence[Pair], processes: int) -> Speed:
    """Work without processes of its own, the items shared among as many as are asked for."""
    before, started = cpu_seconds(), time.perf_counter()
    if processes == 1:
        work(data, items)
    else:
        with ProcessPoolExecutor(processes) as pool:
            list(pool.map(partial(work, data), [items[number::processes] for number in range(processes)]))
    return Speed(len(items), time.perf_counter() - started, cpu_seconds() - before)


def measure_ours(
    work: Callable[[Scorer, Sequence[Pair]], None], data: Data, items: Sequence[Pair], workers: int
) -> Speed:
    """Work with a fresh scorer, whose workers have started but know nothing yet."""
    with Executor(workers=workers) as executor:
        scorer = Scorer(data.root, data.tables_json, executor)
        scorer.schema(items[0]["db_id"])
        in_threads(
            lambda _: executor.execute_many([("SELECT 1", data.path("world_1"))] * 50), items[: 4 * BATCH], workers
        )
        before, started = cpu_seconds(), time.perf_counter()
        work(scorer, items)
        return Speed(len(items), time.perf_counter() - started, cpu_seconds() - before)


def cpu_seconds() -> float:
    """Of this process and all that it started, running or not."""
    me = psutil.Process()
    times = [me.cpu_times(), *(child.cpu_times() for child in me.children(recursive=True))]
    ended = times[0].children_user + times[0].children_system
    return float(sum(one.user + one.system for one in times) + ended)


def table(rows: Sequence[tuple[str, int, Speed, Speed]]) -> str:
    lines = [
        "| measure | processes | loop /s | ours /s | ratio, wall | ratio, cpu |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, processes, loop, ours in rows:
        speeds = (loop.count / loop.wall, ours.count / ours.wall)
        by_cpu = (loop.cpu / loop.count) / (ours.cpu / ours.count)
        lines.append(
            f"| {name} | {processes} | {speeds[0]:,.0f} | {speeds[1]:,.0f} | {speeds[1] / speeds[0]:.1f} | {by_cpu:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of EM, EX and rewards beside a straightforward loop.")
    parser.add_argument("--shared", type=Path, default=Path(__file__).resolve().parents[2] / "shared")
    parser.add_argument("--pairs", type=int, help="only the first N pairs")
    parser.add_argument("--trajectories-times", type=int, default=20, help="samples made of each trajectory (for ours)")
    arguments = parser.parse_args()
    data = Data(arguments.shared, arguments.pairs)
    times = arguments.trajectories_times
    rows = []
    for processes in (1, 2):
        loop = measure(naive_em, data, data.pairs, processes)
        our_schema.cache_clear()
        rows.append(("EM", processes, loop, measure(our_em, data, data.pairs, processes)))
        loop = measure(naive_ex, data, data.pairs, processes)
        rows.append(("EX", processes, loop, measure_ours(our_ex, data, data.pairs, processes)))
        loop = measure(naive_rewards, data, data.trajectories, processes)
        once = measure_ours(our_rewards, data, data.trajectories, processes)
        rows.append(("rewards, each trajectory once", processes, loop, once))
        often = measure_ours(our_rewards, data, data.trajectories * times, processes)
        rows.append((f"rewards, each trajectory {times} times", processes, loop, often))
    print(f"{len(data.pairs):,} pairs, {len(data.trajectories)} trajectories\n\n{table(rows)}")


if __name__ == "__main__":
    main()
