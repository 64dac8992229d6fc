"""
Does the executor stay well under load? Descriptors, processes and memory over time with 500 executions in flight.

    python benchmarks/soak.py [--seconds 60] [--workers 4] [--in-flight 500]

The mix: statements that run, fail, return too much, repeat, sort more than they may, and (one in 200) never end; now and
then a worker is killed from outside. Prints a line at the start (pool warm), after each quarter and after closing. The cache is
small, so that it is full within the first quarter and what grows after that is a leak. Exit status 1, with the reasons, if
descriptors, processes or (this process: from the first quarter on) memory grew, here or in a worker, if an answer was not what
it should be, or if far more ran out of time than should.
"""

import argparse
import asyncio
import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from text2sql.executor import Executor, Limits

CACHE_BYTES = 8 * 2**20
SLACK_BYTES = 16 * 2**20  # what the allocator may do as it likes
SLACK_DESCRIPTORS = 2  # of a worker: what it has open while it opens a database or sorts
MOST_TIMEOUTS = 0.05  # of all answers; the mix has 0.4 %, and on a machine under load any statement may be late
LIMITS = Limits(timeout_seconds=1.0, max_rows=1000, memory_bytes=128 * 2**20)
ENDLESS = "WITH RECURSIVE r(n) AS (SELECT {seed} UNION ALL SELECT n+1 FROM r) SELECT max(n) FROM r"
HUNGRY = (
    "WITH RECURSIVE r(n, x) AS (SELECT {seed}, zeroblob(1000000) UNION ALL SELECT n+1, zeroblob(1000000) FROM r LIMIT 400)"
    " SELECT n FROM r ORDER BY x"
)
# statement, status, share
MIX = (
    ("SELECT count(*) FROM item WHERE price > {seed} % 97", "ok", 100),
    ("SELECT * FROM item WHERE id = 1 + {seed} % 500", "ok", 60),
    ("SELECT name FROM item WHERE id = -{seed}", "empty", 20),
    ("SELECT nothing_{seed} FROM item", "error", 20),
    ("DELETE FROM item WHERE id = {seed}", "error", 10),
    ("SELECT a.id FROM item a, item b WHERE a.id <> {seed}", "too_large", 10),
    ("SELECT 1", "ok", 20),
    (ENDLESS, "timeout", 1),
    (HUNGRY, "too_large", 1),
)


@dataclass
class Sample:
    """Of this process and its workers, at one moment. `worker_*`: of the worker that has most."""

    label: str
    descriptors: int
    workers: int
    worker_descriptors: int
    resident: int
    worker_resident: int

    def __str__(self) -> str:
        return (
            f"{self.label:>12}: {self.descriptors} descriptors, {self.resident / 2**20:.0f} MiB;"
            f" {self.workers} workers with at most {self.worker_descriptors} descriptors,"
            f" {self.worker_resident / 2**20:.0f} MiB"
        )


@dataclass
class Tally:
    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    kills: int = 0


def sample(label: str) -> Sample:
    me = psutil.Process()
    numbers = []
    for child in me.children():
        try:
            numbers.append((child.num_fds(), child.memory_info().rss))
        except psutil.Error:  # it ended just now
            continue
    return Sample(
        label,
        me.num_fds(),
        len(numbers),
        max((descriptors for descriptors, _ in numbers), default=0),
        me.memory_info().rss,
        max((resident for _, resident in numbers), default=0),
    )


async def client(executor: Executor, database: Path, tally: Tally, rng: random.Random, until: float) -> None:
    """One after the other, as an episode does."""
    weights = [share for _, _, share in MIX]
    while time.monotonic() < until:
        statement, expected, _ = rng.choices(MIX, weights)[0]
        execution = await executor.aexecute(statement.format(seed=rng.randrange(10**6)), database)
        tally.answers[execution.status] += 1
        # on a machine under load any statement may be late
        if execution.status not in (expected, "timeout"):
            tally.wrong.append(f"{statement}: {execution.status} ({execution.message}), expected {expected}")


async def killer(tally: Tally, rng: random.Random, until: float) -> None:
    while time.monotonic() < until - 2:
        await asyncio.sleep(5)
        with suppress(psutil.Error, IndexError):  # it ended by itself, or there is none just now
            rng.choice(psutil.Process().children()).kill()
            tally.kills += 1


async def soak(executor: Executor, database: Path, seconds: float, in_flight: int) -> tuple[Tally, list[Sample]]:
    rng, tally = random.Random(0), Tally()
    await asyncio.gather(*(executor.aexecute(f"SELECT {n}", database) for n in range(in_flight)))
    samples = [sample("start")]
    until = time.monotonic() + seconds
    clients = [client(executor, database, tally, random.Random(rng.random()), until) for _ in range(in_flight)]
    running = asyncio.gather(*clients, killer(tally, rng, until))
    for quarter in (1, 2, 3):
        await asyncio.sleep(seconds / 4)
        samples.append(sample(f"{quarter} of 4"))
    await running
    samples.append(sample("end"))
    return tally, samples


def problems(tally: Tally, samples: list[Sample], workers: int) -> list[str]:
    """What leaked or was answered wrongly; `samples` are those of the start, three quarters, the end and after closing."""
    start, quarter, *_, end, closed = samples
    most = max(one.worker_descriptors for one in samples)
    timeouts, total = tally.answers["timeout"], sum(tally.answers.values())
    found = {
        f"descriptors grew from {start.descriptors} to {end.descriptors}": end.descriptors > start.descriptors,
        f"{end.workers} workers at the end, {workers} asked for": end.workers > workers,
        f"{closed.workers} workers left after closing": closed.workers > 0,
        "memory grew after the first quarter": end.resident > quarter.resident + SLACK_BYTES,
        f"descriptors of a worker grew from {start.worker_descriptors} to {most}": (
            most > start.worker_descriptors + SLACK_DESCRIPTORS
        ),
        # at the end all are idle: before, a statement may take what its limit allows
        "memory of a worker grew": end.worker_resident > start.worker_resident + SLACK_BYTES,
        f"{timeouts:,} of {total:,} answers are time-outs": timeouts > MOST_TIMEOUTS * total,
    }
    return [problem for problem, is_so in found.items() if is_so] + [f"wrong: {text}" for text in tally.wrong[:5]]


def write_database(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(
        """CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, price REAL);
           INSERT INTO item WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM r WHERE n < 500)
           SELECT n, 'item ' || n, n * 1.5 FROM r"""
    )
    connection.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="Many executions at once for a while; what leaks shows.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--in-flight", type=int, default=500)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "shop.sqlite"
        write_database(database)
        with Executor(LIMITS, workers=arguments.workers, cache_bytes=CACHE_BYTES) as executor:
            tally, samples = asyncio.run(soak(executor, database, arguments.seconds, arguments.in_flight))
        samples.append(sample("closed"))
        left = [path.name for path in Path(folder).iterdir()]
    for one in samples:
        print(one)
    total = sum(tally.answers.values())
    print(
        f"{total:,} answers in {arguments.seconds:g} s, {tally.kills} workers killed from outside: {dict(tally.answers)}"
    )
    found = problems(tally, samples, arguments.workers)
    if left != ["shop.sqlite"]:
        found.append(f"beside the database lie {sorted(left)}")
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
