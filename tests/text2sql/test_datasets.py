"""Loaders: the releases' own layouts, the shared data unchanged, and what is said of files that are broken."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from text2sql.config import BenchmarkSettings
from text2sql.datasets import join_split_operators, load_benchmark, read_dialogues, read_tables, source_files
from text2sql.errors import DataError

MakeRelease = Callable[..., Path]
DEMO = BenchmarkSettings(name="demo")


def write_json(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    return path


def dialogue(db_id: str = "shop", *golds: str, **more: Any) -> dict[str, Any]:
    turns = [{"utterance": f"question {number}", "query": gold} for number, gold in enumerate(golds or ("SELECT 1",))]
    return {"database_id": db_id, "interaction": turns, **more}


@pytest.mark.parametrize(
    ("sql", "joined"),
    [
        ("SELECT code FROM bus WHERE seats > = 52", "SELECT code FROM bus WHERE seats >= 52"),
        ("SELECT code FROM bus WHERE seats <  = 40", "SELECT code FROM bus WHERE seats <= 40"),
        ("SELECT code FROM bus WHERE seats !\t= 40", "SELECT code FROM bus WHERE seats != 40"),
        (
            "SELECT code FROM bus WHERE seats ! = 52 AND code = '> ='",
            "SELECT code FROM bus WHERE seats != 52 AND code = '> ='",
        ),
        ("""SELECT 'it''s > = ' , "a > = b" , `x > = y`""", """SELECT 'it''s > = ' , "a > = b" , `x > = y`"""),
        ("SELECT a -- > =\nFROM t /* < = */ WHERE b > = 1", "SELECT a -- > =\nFROM t /* < = */ WHERE b >= 1"),
        ("SELECT a FROM t WHERE b >= 1", "SELECT a FROM t WHERE b >= 1"),
    ],
)
def test_split_operators_are_joined_outside_strings_only(sql: str, joined: str) -> None:
    """Case data-split-operator-gold: `> =`, `< =`, `! =` become one operator; strings and comments stay."""
    assert joined == join_split_operators(sql)


def test_joined_gold_runs_and_returns_what_was_meant(make_release: MakeRelease) -> None:
    """Case data-split-operator-gold: the three golds of the case run; the released text is kept beside each."""
    golds = [
        "SELECT code FROM bus WHERE seats > = 52",
        "SELECT code FROM bus WHERE seats ! = 52 AND code = '> ='",
        "SELECT code FROM bus WHERE seats <  = 40",
    ]
    script = "CREATE TABLE bus(code TEXT, seats INTEGER); INSERT INTO bus VALUES ('b7',40),('b1',52),('> =',61);"
    root = make_release(dev=[("bus", [("which?", gold) for gold in golds])], databases={"bus": script})

    benchmark = load_benchmark(DEMO, root)
    turns = benchmark.dev[0].turns
    with sqlite3.connect(benchmark.database("bus")) as connection:
        answers = [connection.execute(turn.gold).fetchall() for turn in turns]

    assert [[("b1",), ("> =",)], [("> =",)], [("b7",)]] == answers
    assert golds == [turn.gold_as_released for turn in turns]


def test_cosql_release_layout_is_read_from_its_own_folder_and_the_one_above(tmp_path: Path) -> None:
    """The release's own layout: cosql_dataset/sql_state_tracking/cosql_*.json, tables.json and database/ beside it."""
    release = tmp_path / "cosql_dataset"
    extra = {"utterance_toks": ["hi"], "query_toks_no_value": [], "sql": {}}
    turns = [{"utterance": "hi | ok? | yes", "query": "SELECT 1", **extra}]
    for split in ("train", "dev"):
        entry = {"database_id": split, "interaction": turns, "final": {"utterance": "", "query": ""}}
        write_json(release / "sql_state_tracking" / f"cosql_{split}.json", [entry])
    write_json(release / "tables.json", [])
    (release / "database").mkdir()

    for root in (release, tmp_path):
        benchmark = load_benchmark(BenchmarkSettings(name="cosql"), root)

        assert "train/0" == benchmark.train[0].dialogue_id
        assert "hi | ok? | yes" == benchmark.dev[0].turns[0].utterance
        assert release / "tables.json" == benchmark.tables_json
        assert release / "database" / "dev" / "dev.sqlite" == benchmark.database("dev")


def test_sparc_release_is_read_from_its_own_folder_and_the_one_above(tmp_path: Path) -> None:
    """SParC: train.json and dev.json in the release's folder, tables.json beside them or one folder above."""
    release = tmp_path / "data" / "sparc"
    write_json(release / "train.json", [dialogue("a", interaction_id="7")])
    write_json(release / "dev.json", [dialogue("b")])
    write_json(tmp_path / "data" / "tables.json", [])
    (tmp_path / "data" / "database").mkdir()

    for root in (release, release.parent):
        benchmark = load_benchmark(BenchmarkSettings(name="sparc"), root)

        assert ["a"] == [dialogue.db_id for dialogue in benchmark.train]
        assert tmp_path / "data" / "tables.json" == benchmark.tables_json


def test_shared_cosql_is_read_unchanged(shared: Path) -> None:
    """CoSQL as it lies in the shared data: 2,159 and 293 dialogues, 7,343 and 1,007 turns, 261 and 24 joined golds."""
    benchmark = load_benchmark(BenchmarkSettings(name="cosql"), shared / "data")
    counts = {
        split: (
            len(dialogues),
            sum(len(dialogue.turns) for dialogue in dialogues),
            sum(turn.gold != turn.gold_as_released for dialogue in dialogues for turn in dialogue.turns),
        )
        for split, dialogues in benchmark.splits.items()
    }

    assert {"train": (2159, 7343, 261), "dev": (293, 1007, 24)} == counts
    assert 492 == len(benchmark.restored)
    assert 160 == len(benchmark.db_ids)
    assert not benchmark.database("wta_1").exists()
    assert 157 + 4 == len(source_files(benchmark))


def test_shared_sparc_has_dev_and_says_so_when_train_is_asked_for(shared: Path) -> None:
    """SParC's train set is not in the shared data: dev loads, and only asking for train is an error."""
    benchmark = load_benchmark(BenchmarkSettings(name="sparc"), shared / "data")

    assert 422 == len(benchmark.dev)
    assert 1203 == sum(len(dialogue.turns) for dialogue in benchmark.dev)
    with pytest.raises(DataError, match=r"no train set here: .*train\.json does not exist"):
        _ = benchmark.train


def test_first_dialogues_are_taken_after_the_filter_by_database_and_keep_their_ids(make_release: MakeRelease) -> None:
    """A cut is the first N in file order of those that the filter leaves; ids are places in the whole file."""
    turns = [("q", "SELECT 1")]
    root = make_release(train=[("a", turns), ("b", turns), ("a", turns), ("b", turns)], dev=[("b", turns)])
    settings = BenchmarkSettings(name="demo", databases=("b",), train_dialogues=1)

    benchmark = load_benchmark(settings, root)

    assert ["train/1"] == [dialogue.dialogue_id for dialogue in benchmark.train]
    assert ["b"] == benchmark.db_ids


def test_unknown_database_in_the_filter_is_an_error_that_lists_the_known_ones(make_release: MakeRelease) -> None:
    """A misspelt database would otherwise leave an empty benchmark."""
    root = make_release(dev=[("shop", [("q", "SELECT 1")])])

    with pytest.raises(DataError, match=r"shpo, which no demo dialogue .* Databases there: shop"):
        load_benchmark(BenchmarkSettings(name="demo", databases=("shpo",)), root)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([dialogue(), {"database_id": "x"}], r"dialogue 1 \(from 0\): `interaction` is missing"),
        (
            [{"database_id": "x", "interaction": [{"utterance": "a", "query": "b"}, {"utterance": "c"}]}],
            r"dialogue 0 \(from 0\), turn 2 \(from 1\): `query` is missing",
        ),
        (
            [{"database_id": "x", "interaction": [{"utterance": "a", "query": 7}]}],
            r"turn 1 \(from 1\): `query` should be text, found 7 \(int\)",
        ),
        (
            [{"database_id": "x", "interaction": [{"utterance": None, "query": ""}]}],
            "`utterance` should be text, found None",
        ),
        ([{"database_id": "x", "interaction": "no"}], "`interaction` should be a list, found 'no'"),
        (["text"], r"dialogue 0 \(from 0\): should be an object"),
        ({"database_id": "x"}, "should be a list, found"),
        ([dialogue("../../secret")], "`database_id` should be the name of a database folder"),
    ],
)
def test_broken_entry_is_named_with_file_dialogue_and_turn(tmp_path: Path, content: Any, message: str) -> None:
    """What is missing or of the wrong type is named with its place; nothing is skipped."""
    path = write_json(tmp_path / "dev.json", content)

    with pytest.raises(DataError, match=rf"dev\.json.*{message}"):
        read_dialogues(path, "dev")


def test_file_that_is_cut_short_is_named_with_line_and_column(tmp_path: Path) -> None:
    """Invalid JSON: file, line and column."""
    path = tmp_path / "dev.json"
    path.write_text('[\n{"database_id": "x", "inter', encoding="utf-8")

    with pytest.raises(DataError, match=r"dev\.json is not valid JSON: .* at line 2, column 22"):
        read_dialogues(path, "dev")


def test_file_that_is_not_utf8_is_named_with_the_byte(tmp_path: Path) -> None:
    """A Latin-1 file is refused with the place of the first bad byte, not read as something else."""
    path = tmp_path / "dev.json"
    path.write_bytes(json.dumps([dialogue()]).encode() + "\né".encode("latin-1"))

    with pytest.raises(DataError, match=r"dev\.json: byte \d+ \(line 2\) is not UTF-8"):
        read_dialogues(path, "dev")


def test_missing_data_folder_names_the_environment_variable(tmp_path: Path) -> None:
    """The message says which variable to set."""
    for root in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(DataError, match="Set TEXT2SQL_DATA"):
            load_benchmark(BenchmarkSettings(name="cosql"), root)


def test_release_without_tables_json_is_an_error_that_lists_where_it_was_looked_for(tmp_path: Path) -> None:
    """tables.json belongs to the release; the places searched are named."""
    write_json(tmp_path / "release" / "dev.json", [dialogue()])

    with pytest.raises(DataError, match=r"No tables\.json was found in .*release"):
        load_benchmark(DEMO, tmp_path / "release")


def test_tables_entry_without_name_is_an_error(tmp_path: Path) -> None:
    """A broken tables.json is named with the place of the entry."""
    path = write_json(tmp_path / "tables.json", [{"db_id": "a"}, {}])

    with pytest.raises(DataError, match=r"tables\.json: entry 1 \(from 0\) has no `db_id`"):
        read_tables(path)


def test_dialogue_without_a_database_file_is_kept(make_release: MakeRelease) -> None:
    """A missing database does not change which dialogues there are; the audit lists its turns."""
    root = make_release(dev=[("lost", [("q", "SELECT 1")])])

    benchmark = load_benchmark(DEMO, root)

    assert "lost" == benchmark.dev[0].db_id
    assert not [path for path in source_files(benchmark) if path.suffix == ".sqlite"]


def test_the_test_suite_beside_a_database_is_one_of_its_sources(make_release: MakeRelease) -> None:
    """EX is judged on it too, so a benchmark to which one is added has other digests."""
    root = make_release(dev=[("bus", [("q", "SELECT 1")])], databases={"bus": "CREATE TABLE bus(code TEXT)"})
    benchmark = load_benchmark(DEMO, root)
    before = source_files(benchmark)
    suite = benchmark.database("bus").with_name("bus_1.sqlite")
    suite.touch()

    assert [suite] == [path for path in source_files(benchmark) if path not in before]


def test_dialogue_without_turns_is_kept_and_noted(tmp_path: Path) -> None:
    """A dialogue that has no turn gives no item; the notes of the benchmark name it."""
    write_json(tmp_path / "dev.json", [dialogue(), {"database_id": "x", "interaction": []}])
    write_json(tmp_path / "tables.json", [])
    (tmp_path / "database").mkdir()

    assert ("dialogue dev/1 has no turns",) == load_benchmark(DEMO, tmp_path).notes


def test_restored_turns_of_another_folder_do_not_leak_into_a_release(shared: Path, tmp_path: Path) -> None:
    """The list of restored utterances belongs to the train file beside it; a release without one has none."""
    for name in ("train.json", "dev.json"):
        (tmp_path / "cosql").mkdir(exist_ok=True)
        shutil.copy(shared / "data" / "cosql" / name, tmp_path / "cosql" / name)
    write_json(tmp_path / "tables.json", [])
    (tmp_path / "database").mkdir()

    assert not load_benchmark(BenchmarkSettings(name="cosql"), tmp_path).restored


def test_files_are_read_as_utf8_under_a_plain_c_locale(make_release: MakeRelease, tmp_path: Path) -> None:
    """Case cl-non-utf8-locale: with LC_ALL=C the utterance comes back with the same bytes."""
    utterance = "Où est l'hôtel de 大阪?"
    root = make_release(dev=[("shop", [(utterance, "SELECT 1")])])
    program = (
        "import sys; from pathlib import Path\n"
        "from text2sql.config import BenchmarkSettings\n"
        "from text2sql.datasets import load_benchmark\n"
        "benchmark = load_benchmark(BenchmarkSettings(name='demo'), Path(sys.argv[1]))\n"
        "sys.stdout.buffer.write(benchmark.dev[0].turns[0].utterance.encode())\n"
    )
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    result = subprocess.run([sys.executable, "-c", program, str(root)], capture_output=True, env=environment)

    assert utterance.encode() == result.stdout, result.stderr.decode()
