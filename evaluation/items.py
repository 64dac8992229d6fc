"""
Items: one row per turn, stored as Parquet, with the history, the schema text and the audit's verdict beside it.

The validation set is split off train: whole databases (`split_by: database`, for the real benchmarks, whose dev set has
databases of its own), or dialogues (for the demo). Dialogues that say the same stay together, so that no dialogue of
train is repeated in validation. Dev is what the release calls dev; only evaluation reads it.

Turns that the audit set aside keep their row, their number and their `fault`. In the history of later turns they stand
with their gold text, faulty as it is: leaving them out would change what the conversation refers to.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from text2sql.config import BenchmarkSettings
from text2sql.datasets import Benchmark, read_tables
from text2sql.dialogue import Dialogue, Item, PriorTurn, Split
from text2sql.errors import DatabaseError, DataError
from text2sql.schema import Style, read_schema, render_schema

ITEM_SCHEMA: Mapping[str, pl.DataType] = {
    "item_id": pl.String(),
    "split": pl.String(),
    "dialogue_id": pl.String(),
    "turn": pl.Int64(),
    "turns_in_dialogue": pl.Int64(),
    "db_id": pl.String(),
    "utterance": pl.String(),
    "gold": pl.String(),
    "history": pl.List(pl.Struct({"utterance": pl.String(), "sql": pl.String()})),
    "schema_text": pl.String(),
    "hardness": pl.String(),
    "fault": pl.String(),
}


def build_items(
    benchmark: Benchmark,
    audited: pl.DataFrame,
    settings: BenchmarkSettings,
    *,
    schema_style: Style = "full",
    sample_values: int = 0,
    seed: int = 0,
) -> pl.DataFrame:
    """
    One row per turn with the fields of `Item`, in the order of the files. `audited` is the table of
    `evaluation.audit.audit` on the same benchmark; `schema_style` and `sample_values` form the schema text, which is empty
    where the database cannot be read. `seed` draws the validation set. Raises DataError when `audited` lacks a turn.
    """
    verdicts = {
        item_id: (hardness, fault)
        for item_id, hardness, fault in audited.select("item_id", "hardness", "fault").iter_rows()
    }
    gradable = set(audited.filter(pl.col("fault") == "")["dialogue_id"])
    validation = validation_dialogues(benchmark.splits.get("train", ()), gradable, settings, seed)
    schema_texts = _schema_texts(benchmark, schema_style, sample_values)
    rows = [
        row
        for released, dialogues in benchmark.splits.items()
        for dialogue in dialogues
        for row in _rows(
            dialogue,
            "validation" if dialogue.dialogue_id in validation else released,
            schema_texts[dialogue.db_id],
            verdicts,
        )
    ]
    return pl.DataFrame(rows, schema=ITEM_SCHEMA)


def validation_dialogues(
    train: Sequence[Dialogue], gradable: set[str], settings: BenchmarkSettings, seed: int
) -> set[str]:
    """
    Ids of the dialogues to hold out: groups (databases, or dialogues that say the same) in a seeded order until they
    reach `validation_share` of the train dialogues. Groups without a gradable turn stay in train, where they are set
    aside; at least one group with one is left to train on.
    """
    groups: dict[Any, list[str]] = {}
    for dialogue in train:
        content = tuple((turn.utterance, turn.gold) for turn in dialogue.turns)
        key = dialogue.db_id if settings.split_by == "database" else (dialogue.db_id, content)
        groups.setdefault(key, []).append(dialogue.dialogue_id)
    usable = [ids for ids in groups.values() if not gradable.isdisjoint(ids)]
    random.Random(f"validation {seed}").shuffle(usable)
    wanted = settings.validation_share * len(train)
    held_out: set[str] = set()
    for ids in usable[:-1]:
        if len(held_out) >= wanted:
            break
        held_out.update(ids)
    return held_out


def shared_between_splits(items: pl.DataFrame, column: str = "db_id") -> dict[tuple[str, str], list[str]]:
    """
    For each two splits, what they share: values of `db_id` or `dialogue_id`, or, with `column="conversation"`, the
    ids of dialogues in the first whose utterances and gold also stand in the second. Splits that share nothing are
    left out; an empty answer is the good one.
    """
    if column == "conversation":
        said = items.group_by("split", "dialogue_id", maintain_order=True).agg(
            pl.col("db_id").first(), pl.col("utterance"), pl.col("gold")
        )
        keys = {
            split: {(db, tuple(words), tuple(golds)): name for _, name, db, words, golds in part.iter_rows()}
            for (split,), part in said.group_by("split", maintain_order=True)
        }
    else:
        keys = {
            split: {value: value for value in part[column]}
            for (split,), part in items.group_by("split", maintain_order=True)
        }
    names = [str(split) for split in keys]
    found = {
        (first, second): sorted(keys[first][key] for key in keys[first].keys() & keys[second].keys())
        for position, first in enumerate(names)
        for second in names[position + 1 :]
    }
    return {pair: shared for pair, shared in found.items() if shared}


def read_items(path: Path, split: Split | None = None) -> list[Item]:
    """
    The items of one split, or all, in file order; set-aside ones too (`Item.gradable`). Raises DataError when the file
    cannot be read, or has no item of `split` (validation may be empty).
    """
    try:
        table = pl.read_parquet(path)
        missing = [column for column in ITEM_SCHEMA if column not in table.columns]
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"{path} is no file of items: {error}. Make the items again.") from None
    if missing:
        raise DataError(f"{path} has no column {', '.join(missing)}: it is no file of items. Make the items again.")
    if split is not None:
        splits = sorted(set(table["split"]))
        table = table.filter(pl.col("split") == split)
        if table.is_empty() and split != "validation":
            raise DataError(
                f"{path.name} holds no {split} items, only {', '.join(splits) or 'none at all'}. The benchmark's files had no "
                f"{split} dialogues (or the profile's filters left none); the data audit says which file is missing."
            )
    return [_item(row) for row in table.select(list(ITEM_SCHEMA)).iter_rows(named=True)]


def _item(row: dict[str, Any]) -> Item:
    history = tuple(PriorTurn(turn["utterance"], turn["sql"]) for turn in row["history"])
    return Item(**{**row, "history": history})


def _rows(
    dialogue: Dialogue, split: str, schema_text: str, verdicts: Mapping[str, tuple[str | None, str]]
) -> Iterator[dict[str, Any]]:
    history: list[dict[str, str]] = []
    for number, turn in enumerate(dialogue.turns, start=1):
        item_id = f"{dialogue.dialogue_id}/{number}"
        if item_id not in verdicts:
            raise DataError(f"The audit has no row for {item_id}: it was made from other data. Run the audit again.")
        hardness, fault = verdicts[item_id]
        yield {
            "item_id": item_id,
            "split": split,
            "dialogue_id": dialogue.dialogue_id,
            "turn": number,
            "turns_in_dialogue": len(dialogue.turns),
            "db_id": dialogue.db_id,
            "utterance": turn.utterance,
            "gold": turn.gold,
            "history": list(history),
            "schema_text": schema_text,
            "hardness": hardness,
            "fault": fault,
        }
        history.append({"utterance": turn.utterance, "sql": turn.gold})


def _schema_texts(benchmark: Benchmark, style: Style, sample_values: int) -> dict[str, str]:
    entries = read_tables(benchmark.tables_json)
    texts = {}
    for db_id in benchmark.db_ids:
        try:
            schema = read_schema(benchmark.database(db_id), entries.get(db_id))
            texts[db_id] = render_schema(schema, sample_values, style)
        except DatabaseError:  # the audit has set the turns of this database aside and says why
            texts[db_id] = ""
    return texts
