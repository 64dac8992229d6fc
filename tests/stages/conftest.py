"""What stage functions are given in tests: a small shop, turns over it, and artifacts made by hand."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from evaluation.items import ITEM_SCHEMA
from stages.context import StageContext
from text2sql.artifacts import Artifact
from text2sql.config import ModelSettings, Profile, Settings
from text2sql.dialogue import Item, PriorTurn
from text2sql.trajectory import Event, Segment, Trajectory

STAFF = (
    "CREATE TABLE staff(id INTEGER, name TEXT, city TEXT);"
    "INSERT INTO staff VALUES (1, 'Ana', 'Graz'), (2, 'Bo', 'Rome'), (3, 'Cy', 'Graz')"
)
TINY = ModelSettings(init="scratch", vocabulary=400, layers=1, width=32, heads=2, key_value_heads=1, max_positions=512)
SCHEMA = "staff(id, name, city)"


@pytest.fixture
def shop(make_release: Callable[..., Path]) -> Path:
    """A release with one database, `shop`."""
    return make_release(databases={"shop": STAFF})


@pytest.fixture
def make_context(tmp_path: Path, shop: Path) -> Callable[..., StageContext]:
    """
    `make_context(key, items, profile, **inputs)`: the context of stage `key` over the shop. An input is a folder that
    holds what the stage reads of it.
    """

    def make(key: str, items: Sequence[Item], profile: Mapping[str, Any] | None = None, **inputs: Path) -> StageContext:
        benchmark, turns, out = (tmp_path / name for name in ("benchmark", "turns", "out"))
        for folder in (benchmark, turns, out):
            folder.mkdir(exist_ok=True)
        places = {"root": shop, "database_root": shop / "database", "tables_json": shop / "tables.json"}
        (benchmark / "benchmark.json").write_text(json.dumps({name: str(path) for name, path in places.items()}))
        pl.DataFrame([asdict(item) for item in items], schema=ITEM_SCHEMA).write_parquet(turns / "turns.parquet")
        folders = {"benchmark": benchmark, "turns": turns, **inputs}
        settings = Settings.from_environment().model_copy(update={"artifacts": tmp_path / "artifacts"})
        values = {"name": "staged", "model": {"init": "scratch"}, "executor": {"workers": 1}, **(profile or {})}
        return StageContext(
            Profile.model_validate(values),
            key,
            {role: Artifact(role, "0" * 16, path, {"metrics": {}}) for role, path in folders.items()},
            out,
            settings,
            log=lambda values, step: None,
            say=lambda text: None,
        )

    return make


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an artifact that holds a policy small enough to train in seconds."""
    from trainers.scratch import make_scratch_policy

    folder = tmp_path_factory.mktemp("policy")
    texts = ["SELECT name FROM staff", "question: Show the names of all staff."] * 20
    make_scratch_policy(texts, TINY, 0, folder / "policy")
    return folder


@pytest.fixture
def dialogue() -> Callable[..., list[Item]]:
    """`dialogue(name, split, *golds)`: one item per gold, as turns of one dialogue over the shop."""

    def make(name: str, split: str, *golds: str, db_id: str = "shop", hardness: str = "easy") -> list[Item]:
        history: tuple[PriorTurn, ...] = ()
        items = []
        for turn, gold in enumerate(golds, start=1):
            place = (f"{name}/{turn}", split, name, turn, len(golds), db_id)
            items.append(Item(*place, f"question {turn}", gold, history, SCHEMA, hardness))
            history = (*history, PriorTurn(f"question {turn}", gold))
        return items

    return make


@pytest.fixture
def episode() -> Callable[..., Trajectory]:
    """
    `episode(item, sample, answer, executed)`: the model runs `executed`, takes every result for good, and answers (or
    does not, for None).
    """

    def make(item: Item, sample: int, answer: str | None, executed: Sequence[str] = ()) -> Trajectory:
        events = []
        for sql in executed:
            events += [Event("execute", 0, sql=sql, status="ok"), Event("e_verify", 1, verdict="pass")]
        if answer is not None:
            events.append(Event("finalize", 2, sql=answer))
        return Trajectory(
            *(item.item_id, item.dialogue_id, item.turn, item.db_id, sample, "gold"),
            segments=(Segment("prompt", (1,)), Segment("model", (2, 3), (0.0, 0.0), text=f"{executed} {answer}")),
            events=tuple(events),
            final_sql=answer,
            stop_reason="max_messages" if answer is None else "answered",
        )

    return make
