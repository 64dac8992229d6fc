"""What a stage function is given: its profile, its inputs, a folder to write to and a place for its metrics."""

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from evaluation.execution_match import GOLD_LIMITS
from evaluation.items import read_items
from evaluation.suite import Suite
from evaluation.verdicts import Scorer
from text2sql.artifacts import WORK, Artifact
from text2sql.config import Profile, Settings
from text2sql.dialogue import Item, Split
from text2sql.executor import Executor, Limits
from text2sql.policy import check_policy, resolve_policy
from text2sql.trajectory import Trajectory


@dataclass(frozen=True)
class StageContext:
    """
    `inputs` are complete artifacts by role. `out` becomes the artifact when the stage returns; what an earlier
    attempt left there is kept, so a stage looks before it works. `log(values, step)` sends metrics as they come;
    `say(text)` tells the user what is going on.
    """

    profile: Profile
    key: str
    inputs: Mapping[str, Artifact]
    out: Path
    settings: Settings
    log: Callable[[Mapping[str, float], int], None]
    say: Callable[[str], None]

    @property
    def work(self) -> Path:
        """For what an interrupted stage goes on from: lies in `out` until the stage is complete, and is no part of it."""
        return self.out / WORK

    def path(self, role: str, name: str = "") -> Path:
        return self.inputs[role].path / name

    def json(self, role: str, name: str) -> Any:
        return json.loads(self.path(role, name).read_text(encoding="utf-8"))

    def write_json(self, name: str, value: Any) -> None:
        text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
        (self.out / name).write_text(text + "\n", encoding="utf-8")

    def policy(self, role: str = "policy") -> str:
        """Folder of an input policy (a model by name: its local copy), checked against its own record if it has one."""
        path = resolve_policy(policy_of(self.inputs[role].path))
        if (Path(path) / "policy.json").is_file():
            check_policy(Path(path))
        return path

    def _benchmark_path(self, name: str) -> Path:
        """A path from benchmark.json; generated data are named relative to the artifact that holds them."""
        return self.inputs["benchmark"].path / str(self.json("benchmark", "benchmark.json")[name])

    @property
    def benchmark_root(self) -> Path:
        """The folder with dialogues, tables.json and databases: the user's own, or the one the demo generated."""
        return self._benchmark_path("root")

    @property
    def database_root(self) -> Path:
        return self._benchmark_path("database_root")

    def database(self, db_id: str) -> Path:
        return self.database_root / db_id / f"{db_id}.sqlite"

    @property
    def tables_json(self) -> Path:
        return self._benchmark_path("tables_json")

    def items(self, split: Split, *, gradable_only: bool = True) -> list[Item]:
        """Items of a split in the order of the file; those that the audit set aside only on request."""
        items = read_items(self.path("turns", "turns.parquet"), split)
        return [item for item in items if item.gradable] if gradable_only else items

    @contextmanager
    def scorer(self) -> Iterator[Scorer]:
        """The one judge, on a fresh executor that is closed at the end."""
        with self.executor() as executor:
            yield Scorer(self.database_root, self.tables_json, executor, gold_limits=self.gold_limits)

    @contextmanager
    def suite(self, executor: Executor) -> Iterator[Suite | None]:
        """The judge of suite EX, if the profile asks for it; its neighbours are deleted at the end."""
        count = self.profile.evaluation.suite_neighbours
        if not count:
            yield None
            return
        with tempfile.TemporaryDirectory(prefix="neighbours-") as folder:
            yield Suite(executor, Path(folder), count=count, gold_limits=self.gold_limits)

    @contextmanager
    def executor(self) -> Iterator[Executor]:
        settings = self.profile.executor
        limits = Limits(timeout_seconds=settings.timeout_seconds, max_rows=settings.max_rows)
        executor = Executor(limits, workers=settings.workers)
        try:
            yield executor
        finally:
            executor.close()

    @property
    def gold_limits(self) -> Limits:
        """Gold gets limits of its own: a slow or large gold is a fault of the benchmark, not of a prediction."""
        return replace(GOLD_LIMITS, timeout_seconds=self.profile.executor.gold_timeout_seconds)


def evaluation_name(policy: str, split: Split) -> str:
    """What a policy's evaluation on a split is called, in stage keys and in the report; dev goes without saying."""
    return policy if split == "dev" else f"{policy}/{split}"


def policy_and_split(key: str) -> tuple[str, Split]:
    """Whose evaluation a stage is part of: `evaluation/<evaluation_name>/<predictions or scores>` read backwards."""
    _, policy, *other, _ = key.split("/")
    split: Any = other[0] if other else "dev"
    return policy, split


def run_ahead(scorer: Scorer, trajectories: Iterable[Trajectory], golds: Mapping[str, str]) -> Iterator[Trajectory]:
    """Trajectories in their order, for a judge of their final SQL: what it will run has run. `golds` are by item id."""
    return scorer.ahead(trajectories, lambda one: (one.db_id, golds[one.item_id], one.final_sql))


def has_policy(folder: Path) -> bool:
    return (folder / "policy").is_dir() or (folder / "reference.json").is_file()


def policy_of(folder: Path) -> str:
    """
    Where the policy of an artifact can be loaded from: its own `policy` folder, or what its `reference.json` names (a
    Hugging Face name, or the folder of the policy that was carried over, relative to the artifact's own).
    """
    reference = folder / "reference.json"
    if not reference.is_file():
        return str(folder / "policy")
    name = str(json.loads(reference.read_text(encoding="utf-8"))["policy"])
    return str((folder / name).resolve()) if name.startswith("..") else name


def write_table(frame: pl.DataFrame, path: Path) -> None:
    """A Parquet file that appears whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    frame.write_parquet(partial)
    partial.replace(path)
