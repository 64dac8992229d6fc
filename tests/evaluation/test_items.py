"""Items: one row per turn, histories and numbers intact, splits that share nothing."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import polars as pl
import pytest

from evaluation.audit import audit
from evaluation.items import ITEM_SCHEMA, build_items, read_items, shared_between_splits
from text2sql.config import BenchmarkSettings
from text2sql.datasets import load_benchmark
from text2sql.dialogue import Item, PriorTurn
from text2sql.errors import DataError
from text2sql.executor import Executor

MakeRelease = Callable[..., Path]
SHOP = (
    "CREATE TABLE staff(id INTEGER PRIMARY KEY, name TEXT, city TEXT); "
    "INSERT INTO staff VALUES (1,'Ana','Graz'),(2,'Bo','Linz');"
)
BY_DATABASE = BenchmarkSettings(name="demo", validation_share=0.3)
BY_DIALOGUE = BenchmarkSettings(name="demo", validation_share=0.3, split_by="dialogue")


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor(workers=1) as pool:
        yield pool


def build(root: Path, executor: Executor, settings: BenchmarkSettings = BY_DATABASE, seed: int = 0) -> pl.DataFrame:
    benchmark = load_benchmark(settings, root)
    return build_items(benchmark, audit(benchmark, executor), settings, schema_style="compact", seed=seed)


@pytest.fixture
def many(make_release: MakeRelease) -> Path:
    """Ten databases with two train dialogues each, and a dev set on an eleventh."""
    train = [
        (f"db{number}", [(f"{number} {half}", "SELECT 1"), ("and?", "SELECT 2")])
        for number in range(10)
        for half in "ab"
    ]
    databases = {f"db{number}": SHOP for number in range(11)}
    return make_release(train=train, dev=[("db10", [("q", "SELECT 1")])], databases=databases)


def split_of(items: pl.DataFrame, column: str) -> dict[str, set[str]]:
    return {split: set(part[column]) for (split,), part in items.group_by("split")}


def test_columns_are_the_fields_of_an_item() -> None:
    """One definition: the stored columns are the dataclass's fields, in its order."""
    assert [field.name for field in fields(Item)] == list(ITEM_SCHEMA)


def test_set_aside_turn_keeps_its_place_and_stands_in_later_histories(
    make_release: MakeRelease, executor: Executor
) -> None:
    """Case data-empty-select-list: turn 2 has its fault and no one else's number changes; its gold stays as released."""
    broken = "SELECT  FROM staff AS T1"
    turns = [("all", "SELECT * FROM staff"), ("only", broken), ("how many", "SELECT count(*) FROM staff")]
    root = make_release(dev=[("shop", turns)], databases={"shop": SHOP})

    items = build(root, executor)
    last = items.row(2, named=True)

    assert [(1, ""), (2, "gold_invalid"), (3, "")] == items.select("turn", "fault").rows()
    assert ("dev/0/3", 3, 3) == (last["item_id"], last["turn"], last["turns_in_dialogue"])
    assert [("all", "SELECT * FROM staff"), ("only", broken)] == [tuple(turn.values()) for turn in last["history"]]


def test_items_survive_the_file(many: Path, executor: Executor, tmp_path: Path) -> None:
    """Written and read again, every field is the same; nested histories and non-ASCII text included."""
    items = build(many, executor).with_columns(utterance=pl.lit("Où est l'hôtel de 大阪?"))
    items.write_parquet(tmp_path / "items.parquet")

    read = read_items(tmp_path / "items.parquet")

    assert items.height == len(read)
    second = read[1]
    assert "Où est l'hôtel de 大阪?" == second.utterance
    assert (PriorTurn("0 a", "SELECT 1"),) == second.history
    assert "staff(id, name, city)" == second.schema_text
    assert second.hardness is None  # the official parser reads no constant
    assert second.gradable


def test_one_split_can_be_read_alone(many: Path, executor: Executor, tmp_path: Path) -> None:
    """Each split in file order; together they are all items."""
    items = build(many, executor)
    items.write_parquet(tmp_path / "items.parquet")

    parts = {split: read_items(tmp_path / "items.parquet", split) for split in ("train", "validation", "dev")}

    assert items.height == sum(len(part) for part in parts.values())
    assert all(item.split == split for split, part in parts.items() for item in part)
    numbers = [int(item.dialogue_id.split("/")[1]) for item in parts["train"]]
    assert sorted(numbers) == numbers


def test_validation_by_database_holds_out_whole_databases(many: Path, executor: Executor) -> None:
    """The share is reached with whole databases; no two splits share one."""
    items = build(many, executor)

    databases = split_of(items, "db_id")
    assert {"train": 7, "validation": 3, "dev": 1} == {split: len(names) for split, names in databases.items()}
    assert {} == shared_between_splits(items, "db_id")
    assert {} == shared_between_splits(items, "dialogue_id")


def test_validation_is_drawn_by_the_seed(many: Path, executor: Executor) -> None:
    """The same seed gives the same split, another seed another one."""
    first, again, other = (split_of(build(many, executor, seed=seed), "db_id")["validation"] for seed in (1, 1, 2))

    assert first == again
    assert first != other


def test_validation_by_dialogue_shares_databases_but_no_dialogue(many: Path, executor: Executor) -> None:
    """For the demo: six of twenty dialogues are held out, their databases stay in train."""
    items = build(many, executor, BY_DIALOGUE)

    assert 6 == len(split_of(items, "dialogue_id")["validation"])
    assert {} == shared_between_splits(items, "dialogue_id")
    assert shared_between_splits(items, "db_id")


def test_repeated_dialogues_stay_on_one_side(make_release: MakeRelease, executor: Executor) -> None:
    """Dialogues that say the same are held out together, so that no conversation of train is asked in validation."""
    train = [("shop", [(f"question {number % 3}", "SELECT 1")]) for number in range(12)]
    root = make_release(train=train, databases={"shop": SHOP})

    for seed in range(5):
        items = build(root, executor, BY_DIALOGUE, seed)

        assert 4 == len(split_of(items, "dialogue_id")["validation"])
        assert {} == shared_between_splits(items, "conversation")


def test_what_splits_share_is_named(make_release: MakeRelease, executor: Executor) -> None:
    """A dev dialogue that also stands in train is named, as is the shared database."""
    same = ("shop", [("q", "SELECT 1")])
    items = build(
        make_release(train=[same, ("shop", [("r", "SELECT 2")])], dev=[same], databases={"shop": SHOP}), executor
    )

    assert {("train", "dev"): ["train/0"]} == shared_between_splits(items, "conversation")
    assert {("train", "dev"): ["shop"]} == shared_between_splits(items, "db_id")


def test_database_that_is_missing_is_not_held_out(make_release: MakeRelease, executor: Executor) -> None:
    """Turns that cannot be graded would make an empty validation set; they stay in train, set aside."""
    train = [(name, [("q", "SELECT 1")]) for name in ("shop", "lost", "store")]
    root = make_release(train=train, databases={"shop": SHOP, "store": SHOP})

    for seed in range(6):
        items = build(root, executor, seed=seed)

        assert "lost" in split_of(items, "db_id")["train"]
        assert ["database_missing"] == items.filter(pl.col("db_id") == "lost")["fault"].to_list()
        assert 1 == len(split_of(items, "db_id")["validation"])


def test_single_database_is_left_to_train_on(make_release: MakeRelease, executor: Executor) -> None:
    """Holding out the only database would leave nothing to train on."""
    root = make_release(train=[("shop", [("q", "SELECT 1")])], databases={"shop": SHOP})

    assert {"train": {"shop"}} == split_of(build(root, executor), "db_id")


def test_split_that_is_not_there_is_an_error(make_release: MakeRelease, executor: Executor, tmp_path: Path) -> None:
    """Training on no item is never silent; an empty validation set is allowed."""
    items = build(make_release(dev=[("shop", [("q", "SELECT 1")])], databases={"shop": SHOP}), executor)
    items.write_parquet(tmp_path / "items.parquet")

    assert [] == read_items(tmp_path / "items.parquet", "validation")
    with pytest.raises(DataError, match="holds no train items, only dev"):
        read_items(tmp_path / "items.parquet", "train")


def test_file_of_something_else_is_an_error(tmp_path: Path) -> None:
    """A text file, a missing file and another table are named as what they are not."""
    (tmp_path / "text.parquet").write_text("no", encoding="utf-8")
    pl.DataFrame({"item_id": ["a"]}).write_parquet(tmp_path / "other.parquet")

    for name in ("text", "nowhere", "other"):
        with pytest.raises(DataError, match=rf"{name}\.parquet .*no file of items"):
            read_items(tmp_path / f"{name}.parquet")


def test_audit_of_other_data_is_refused(make_release: MakeRelease, executor: Executor) -> None:
    """An audit that lacks a turn was made from other data."""
    root = make_release(dev=[("shop", [("q", "SELECT 1"), ("r", "SELECT 2")])], databases={"shop": SHOP})
    benchmark = load_benchmark(BY_DATABASE, root)

    with pytest.raises(DataError, match="no row for dev/0/2"):
        build_items(benchmark, audit(benchmark, executor).head(1), BY_DATABASE)
