"""The demo benchmark: what its generator promises about databases, dialogues and wording."""

import hashlib
import json
import random
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from evaluation.exact_match import exact_match, hardness
from evaluation.schema_index import load_schema
from text2sql.config import BenchmarkSettings
from text2sql.datasets import load_benchmark, read_tables
from text2sql.demo import generate_demo
from text2sql.demo.__main__ import print_counts
from text2sql.demo.databases import DOMAINS, create_statement, draw_rows
from text2sql.demo.domain import Domain, predicate, singular
from text2sql.demo.draw import Step
from text2sql.demo.frames import FRAMES
from text2sql.demo.generate import DEPTHS, plan_dialogues
from text2sql.demo.sound import MAX_ROWS
from text2sql.demo.wording import STYLES, Wording, frames_of, held_out, slots
from text2sql.errors import DataError
from text2sql.schema import read_schema, render_schema

SPLITS = ("train", "dev", "dev_phrasing")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo")
    generate_demo(out, seed=7)
    return out


def read(demo: Path, split: str) -> list[dict[str, Any]]:
    return json.loads((demo / f"{split}.json").read_text(encoding="utf-8"))


def turns(demo: Path, split: str) -> list[tuple[str, str, str]]:
    """(database, utterance, gold) of every turn."""
    return [(d["database_id"], t["utterance"], t["query"]) for d in read(demo, split) for t in d["interaction"]]


def connect(demo: Path, db_id: str) -> sqlite3.Connection:
    return sqlite3.connect(demo / "database" / db_id / f"{db_id}.sqlite")


@cache
def steps() -> list[tuple[Domain, Step]]:
    """Planned steps with their domains, over databases in memory."""
    connections = {}
    for domain in DOMAINS:
        connections[domain.name] = memory_database(domain)
    plans = plan_dialogues(1500, random.Random(1), connections, frozenset())
    return [(plan.domain, step) for plan in plans for step in plan.steps]


def memory_database(domain: Domain) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    for table, rows in zip(domain.tables, draw_rows(domain, 3), strict=True):
        connection.execute(create_statement(domain, table))
        connection.executemany(f"INSERT INTO {table.name} VALUES ({', '.join('?' * len(table.columns))})", rows)
    return connection


def test_the_same_seed_gives_the_same_bytes(demo: Path, tmp_path: Path) -> None:
    """Every file, databases included, is the same again, also from another process with other string hashing."""
    command = [sys.executable, "-m", "text2sql.demo", str(tmp_path), "--seed", "7"]
    subprocess.run(command, check=True, capture_output=True, env={"PYTHONHASHSEED": "123", "PATH": ""})
    files = sorted(path.relative_to(demo) for path in demo.rglob("*") if path.is_file())

    assert files == sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    for file in files:
        assert (
            hashlib.sha256((demo / file).read_bytes()).digest()
            == hashlib.sha256((tmp_path / file).read_bytes()).digest()
        )


def test_another_seed_gives_other_rows_and_dialogues(demo: Path, tmp_path: Path) -> None:
    """The seed reaches both the rows and the dialogues."""
    generate_demo(tmp_path, seed=8, train=24, dev=12)

    assert connect(demo, "clinic").execute("SELECT name FROM doctor").fetchall() != (
        connect(tmp_path, "clinic").execute("SELECT name FROM doctor").fetchall()
    )
    assert read(demo, "dev")[:12] != read(tmp_path, "dev")


def test_it_can_be_generated_over_some_databases_only(tmp_path: Path) -> None:
    """All dialogues are then about those, as many for each."""
    generate_demo(tmp_path, seed=7, train=40, dev=10, databases=("library", "bakery"))

    assert Counter(d["database_id"] for d in read(tmp_path, "train")) == {"library": 20, "bakery": 20}
    assert sorted(path.name for path in (tmp_path / "database").iterdir()) == ["bakery", "library"]


def test_it_can_be_generated_of_common_intents_only(tmp_path: Path) -> None:
    """Turns are of every hardness still, and nothing that is asked seldom (set operations, patterns) is among them."""
    generate_demo(tmp_path, seed=7, train=200, dev=10, databases=("bakery",), intents="common")
    golds = [turn["query"] for dialogue in read(tmp_path, "train") for turn in dialogue["interaction"]]
    schema = load_schema(
        tmp_path / "database" / "bakery" / "bakery.sqlite", read_tables(tmp_path / "tables.json")["bakery"]
    )

    assert not [gold for gold in golds if re.search("INTERSECT|EXCEPT|LIKE|NOT IN", gold)]
    assert {"easy", "medium", "hard", "extra"} == {hardness(gold, schema) for gold in golds}


def test_an_unknown_database_is_named_beside_those_there_are(tmp_path: Path) -> None:
    """A typing error in a profile says what would be valid."""
    with pytest.raises(DataError, match=r"no database bakry\. It has: bakery, clinic"):
        generate_demo(tmp_path, seed=7, databases=("bakry",))


def test_sizes_are_as_planned(demo: Path) -> None:
    """About 700 train dialogues with about 2,400 turns, dev with at least 500 turns, over twelve databases."""
    train, dev = read(demo, "train"), read(demo, "dev")

    assert len(train) == 720
    assert 2200 <= len(turns(demo, "train")) <= 2700
    assert len(dev) == 168
    assert len(turns(demo, "dev")) >= 500
    assert len({dialogue["database_id"] for dialogue in train}) == 12
    assert {d["database_id"] for d in dev} == {d["database_id"] for d in train}


def test_depths_follow_their_stated_shares(demo: Path) -> None:
    """Depth 1 to 6, each within a point of its share."""
    counts = Counter(len(dialogue["interaction"]) for dialogue in read(demo, "train"))

    assert set(counts) == set(DEPTHS)
    for depth, share in DEPTHS.items():
        assert abs(counts[depth] / 720 - share) < 0.01


def test_the_official_shape_loads(demo: Path) -> None:
    """The loader of the releases reads the demo, with `final` in every dialogue as in the release."""
    benchmark = load_benchmark(BenchmarkSettings(name="demo"), demo)

    assert len(benchmark.train) == 720
    assert benchmark.database("clinic").is_file()
    assert all(dialogue["final"] == dialogue["interaction"][-1] for dialogue in read(demo, "train"))


def test_tables_json_agrees_with_the_databases(demo: Path) -> None:
    """Names, types and keys in tables.json are the database's; every database has foreign keys and no reader's warning."""
    for db_id, entry in read_tables(demo / "tables.json").items():
        schema = read_schema(demo / "database" / db_id / f"{db_id}.sqlite", entry)

        assert schema.warnings == ()
        assert schema.foreign_keys
        assert all(4 <= len(table.columns) <= 8 for table in schema.tables)
        assert entry["column_names_original"][0] == [-1, "*"]
        assert len(entry["column_types"]) == len(entry["column_names"]) == len(entry["column_names_original"])


def test_foreign_keys_hold_and_tables_have_rows_nulls_and_ties(demo: Path) -> None:
    """Referential integrity; 10 to 60 rows a table; some NULLs; ties in half of the databases."""
    tied = 0
    for domain in DOMAINS:
        connection = connect(demo, domain.name)
        nulls = ties = 0
        for table in domain.tables:
            count = connection.execute(f"SELECT COUNT(*) FROM {table.name}").fetchone()[0]
            for column in table.of_kind("number"):
                empty, different = connection.execute(
                    f"SELECT SUM({column.name} IS NULL), COUNT(DISTINCT {column.name}) FROM {table.name}"
                ).fetchone()
                nulls += empty
                ties += different < count - empty

            assert 10 <= count <= 60

        tied += ties > 0

        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        assert nulls

    assert tied >= 6


def test_a_name_belongs_to_one_table_of_a_database(demo: Path) -> None:
    """So that a question about a name has one answer although several tables hold people."""
    for domain in DOMAINS:
        names = []
        for table in domain.tables:
            if table.label:
                names += connect(demo, domain.name).execute(f"SELECT {table.label.name} FROM {table.name}").fetchall()

        assert len(names) == len(set(names))


@pytest.mark.parametrize("split", SPLITS)
def test_every_gold_runs_and_returns_rows(demo: Path, split: str) -> None:
    """No gold fails, is empty, or returns more rows than a person would want to read."""
    connections = {domain.name: connect(demo, domain.name) for domain in DOMAINS}
    for db_id, _, gold in turns(demo, split):
        rows = connections[db_id].execute(gold).fetchall()

        assert 0 < len(rows) <= MAX_ROWS, gold


def test_no_limit_cuts_a_tie_and_no_order_has_one(demo: Path) -> None:
    """Where a gold is ordered, sorting its rows by any further column gives the same list."""
    connections = {domain.name: connect(demo, domain.name) for domain in DOMAINS}
    for db_id, _, gold in turns(demo, "train") + turns(demo, "dev"):
        if " ORDER BY " in gold and "= (SELECT" not in gold:
            rows = connections[db_id].execute(gold).fetchall()
            for tie_break in ("1 ASC", "1 DESC"):
                other = re.sub(r" (ASC|DESC)( LIMIT \d+)?$", rf" \1, {tie_break}\2", gold)

                assert connections[db_id].execute(other).fetchall() == rows, gold


def test_no_gold_of_dev_occurs_in_train(demo: Path) -> None:
    """Neither dev set shares a (database, gold SQL) pair with train, in whichever turn."""
    train = {(db_id, gold) for db_id, _, gold in turns(demo, "train")}

    assert not train & {(db_id, gold) for db_id, _, gold in turns(demo, "dev")}
    assert not train & {(db_id, gold) for db_id, _, gold in turns(demo, "dev_phrasing")}


def test_the_official_evaluator_reads_every_gold(demo: Path) -> None:
    """Each gold is readable, an exact match of itself, and the hardness shares are within their stated bounds."""
    entries = read_tables(demo / "tables.json")
    schemas = {db: load_schema(demo / "database" / db / f"{db}.sqlite", entry) for db, entry in entries.items()}
    bounds = {"easy": (0.27, 0.40), "medium": (0.28, 0.40), "hard": (0.12, 0.24), "extra": (0.10, 0.20)}
    for split in ("train", "dev"):
        golds = turns(demo, split)
        shares = Counter(hardness(gold, schemas[db_id]) for db_id, _, gold in golds)

        assert all(exact_match(gold, gold, schemas[db_id]).em for db_id, _, gold in golds)
        for level, (low, high) in bounds.items():
            assert low <= shares[level] / len(golds) <= high, (split, level, shares[level] / len(golds))


def test_most_later_turns_hang_on_earlier_ones(demo: Path) -> None:
    """At least three later turns in four need the conversation to be understood."""
    connections = {domain.name: connect(demo, domain.name) for domain in DOMAINS}
    plans = plan_dialogues(240, random.Random(5), connections, frozenset())
    later = [step for plan in plans for step in plan.steps[1:]]

    assert sum(step.before is not None for step in later) / len(later) > 0.75


def test_phrasing_dev_holds_the_dialogues_of_dev_in_other_words(demo: Path) -> None:
    """The same golds in the same order; nearly every utterance differs, and none is a train utterance with its gold."""
    dev, phrasing = turns(demo, "dev"), turns(demo, "dev_phrasing")

    assert [(db_id, gold) for db_id, _, gold in dev] == [(db_id, gold) for db_id, _, gold in phrasing]
    assert sum(a != b for a, b in zip(dev, phrasing, strict=True)) / len(dev) > 0.9


def test_held_out_combinations_are_a_fifth_and_leave_no_frame_or_style_out() -> None:
    """Each frame and each style is trained on, and each is held out in some combination of any five frames."""
    frames = range(5)

    assert sum(held_out(frame, style) for frame in frames for style in range(STYLES)) == 5
    for one in range(5):
        assert not all(held_out(one, style) for style in range(STYLES))
        assert not all(held_out(frame, one) for frame in frames)


def test_every_intent_has_four_frames_and_every_frame_can_be_said() -> None:
    """All frames of all planned steps find their slots, in every style, and give one plain sentence."""
    said: set[str] = set()
    for domain, step in steps():
        said.add(step.intent)
        for style in range(STYLES):
            filled = slots(step, domain, style)
            for frame in frames_of(step, domain):
                text = frame.format_map(filled)

                assert "  " not in text and "{" not in text, text

    assert all(len(frames) >= 4 for frames in FRAMES.values())
    assert said == {intent.partition(".")[0] for intent in FRAMES}


def test_phrasing_dev_says_what_training_never_says() -> None:
    """No sentence of the phrasing set is among those that training may use for the same step."""
    rng = random.Random(0)
    for domain, step in steps()[::40]:
        trained = {Wording(domain, rng).say(step, 1) for _ in range(60)}
        phrased = [Wording(domain, rng, only_held_out=True).say(step, 1) for _ in range(5)]

        assert all(text not in trained for text in phrased)


@pytest.mark.parametrize(
    ("form", "plural", "single"),
    [
        ("with 3 seats", "have 3 seats", "with 3 seats"),
        ("who live in Oslo", "live in Oslo", "who lives in Oslo"),
        ("that came out in 1990", "came out in 1990", "that came out in 1990"),
        ("from Oslo", "are from Oslo", "from Oslo"),
    ],
)
def test_forms_become_clauses_and_follow_singular_nouns(form: str, plural: str, single: str) -> None:
    """`predicate` makes the rest of a clause about several rows, `singular` what follows one row."""
    assert predicate(form) == plural
    assert singular(form) == single


def test_schemas_and_golds_are_short(demo: Path) -> None:
    """What a small model reads and writes stays small: schema text under 420 characters, gold under 300."""
    for domain in DOMAINS:
        text = render_schema(read_schema(demo / "database" / domain.name / f"{domain.name}.sqlite"), style="compact")

        assert len(text) < 420
    assert max(len(gold) for _, _, gold in turns(demo, "train")) < 300


def test_no_text_holds_what_the_official_evaluator_changes(demo: Path) -> None:
    """The evaluator replaces the letters `value` in predictions and fails on an odd number of quotes."""
    for split in SPLITS:
        for _, _, gold in turns(demo, split):
            assert "value" not in gold.lower()
            assert gold.count("'") % 2 == 0


def test_the_counts_name_sizes_depths_and_unseen_gold(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the command prints after writing the benchmark."""
    print_counts({split: read(demo, split) for split in SPLITS})
    printed = capsys.readouterr().out

    assert "train: 720 dialogues" in printed
    assert "by depth 1: 57" in printed
    assert printed.count("unseen gold 100.0%") == 2


def test_the_command_shows_dialogues_with_their_sql() -> None:
    """`python -m text2sql.demo --show N` needs no folder and prints N dialogues for a reader."""
    command = [sys.executable, "-m", "text2sql.demo", "--show", "3"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert shown.count("[") == 3
    assert "SELECT" in shown


def test_the_second_dev_is_read_as_a_split_of_its_own(tmp_path: Path) -> None:
    """The dialogues of dev_phrasing are those of dev in other words, as many of them; ids and words are their own."""
    generate_demo(tmp_path, seed=7, train=24, dev=24)
    dev, phrasing = (
        load_benchmark(BenchmarkSettings(dev_dialogues=12), tmp_path).splits[name] for name in ("dev", "dev_phrasing")
    )

    assert 12 == len(dev) == len(phrasing)
    assert [[turn.gold for turn in one.turns] for one in dev] == [[turn.gold for turn in one.turns] for one in phrasing]
    assert "dev_phrasing/0" == phrasing[0].dialogue_id
    assert [one.turns[0].utterance for one in dev] != [one.turns[0].utterance for one in phrasing]
