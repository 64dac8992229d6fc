"""Schemas: keys from the database, warnings where tables.json differs, and the text that a model sees."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from text2sql.datasets import read_tables
from text2sql.errors import DatabaseError, DataError
from text2sql.schema import ForeignKey, read_schema, render_schema

CAMPUS = {
    "db_id": "campus",
    "table_names_original": ["room"],
    "column_names_original": [[-1, "*"], [0, "building"], [0, "number"], [0, "seats"]],
    "column_types": ["text", "text", "text", "number"],
    "primary_keys": [1],
    "foreign_keys": [],
}
LIBRARY = {
    "db_id": "lib",
    "table_names_original": ["paper", "paper_tag"],
    "column_names_original": [[-1, "*"], [0, "paper_id"], [0, "title"], [1, "paper_id"], [1, "tag"]],
    "column_types": ["text", "number", "text", "number", "text"],
    "primary_keys": [1],
    "foreign_keys": [],
}


def make_database(folder: Path, script: str, name: str = "shop.sqlite") -> Path:
    path = folder / name
    with sqlite3.connect(path) as connection:
        connection.executescript(script)
    connection.close()
    return path


@pytest.mark.parametrize("listed", [[1], [[1, 2]]])
def test_primary_key_of_two_columns_comes_from_the_database(tmp_path: Path, listed: list[Any]) -> None:
    """Case data-composite-primary-key: both spellings of primary_keys load; the key shown is the database's."""
    path = make_database(
        tmp_path,
        "CREATE TABLE room(building TEXT, number TEXT, seats INTEGER, PRIMARY KEY(building, number));",
    )

    schema = read_schema(path, {**CAMPUS, "primary_keys": listed})

    assert ("building", "number") == schema.tables[0].primary_key
    assert "PRIMARY KEY (building, number)" in render_schema(schema)
    differs = listed == [1]
    assert differs == any("campus.room: primary key" in warning for warning in schema.warnings)


def test_no_foreign_key_is_invented(tmp_path: Path) -> None:
    """Case data-foreign-keys-absent: two tables that obviously join are shown without a foreign key."""
    path = make_database(
        tmp_path,
        "CREATE TABLE paper(paper_id INTEGER PRIMARY KEY, title TEXT); "
        "CREATE TABLE paper_tag(paper_id INTEGER, tag TEXT);",
    )

    schema = read_schema(path, LIBRARY)

    assert () == schema.foreign_keys
    assert () == schema.warnings
    assert "paper(paper_id, title)\npaper_tag(paper_id, tag)" == render_schema(schema, style="compact")


def test_foreign_keys_of_both_sources_are_shown_in_the_databases_spelling(tmp_path: Path) -> None:
    """tables.json adds the keys it lists; what only one of the two knows is a warning."""
    path = make_database(
        tmp_path,
        "CREATE TABLE Paper(Paper_ID INTEGER PRIMARY KEY, title TEXT, next INTEGER REFERENCES Paper); "
        "CREATE TABLE paper_tag(paper_id INTEGER, tag TEXT);",
    )

    columns = [[-1, "*"], [0, "paper_id"], [0, "title"], [0, "next"], [1, "paper_id"], [1, "tag"]]
    schema = read_schema(path, {**LIBRARY, "column_names_original": columns, "foreign_keys": [[4, 1]]})

    assert (
        ForeignKey("Paper", "next", "Paper", "Paper_ID"),
        ForeignKey("paper_tag", "paper_id", "Paper", "Paper_ID"),
    ) == schema.foreign_keys
    assert {
        "lib: foreign key Paper.next -> Paper.Paper_ID is in the database only",
        "lib: foreign key paper_tag.paper_id -> paper.paper_id is in tables.json only",
    } == set(schema.warnings)


def test_tables_and_columns_that_differ_from_tables_json_are_warnings(tmp_path: Path) -> None:
    """The database decides; what tables.json has more or less is said."""
    path = make_database(tmp_path, "CREATE TABLE paper(paper_id INTEGER, year INTEGER); CREATE TABLE extra(x);")

    warnings = read_schema(path, LIBRARY).warnings

    assert "lib.paper_tag: in tables.json, not in the database" in warnings
    assert "lib.extra: in the database, not in tables.json" in warnings
    assert "lib.paper: columns differ from tables.json (title, year)" in warnings


def test_foreign_key_to_an_unknown_column_is_left_out_with_a_warning(tmp_path: Path) -> None:
    """A key that points nowhere is never shown to a model."""
    path = make_database(tmp_path, "CREATE TABLE a(x INTEGER REFERENCES gone(id));")

    schema = read_schema(
        path,
        {**LIBRARY, "table_names_original": ["a"], "column_names_original": [[-1, "*"], [0, "x"]], "primary_keys": []},
    )

    assert () == schema.foreign_keys
    assert any("a.x -> gone.id names a table or column" in warning for warning in schema.warnings)


def test_compact_text_has_one_line_per_table_and_per_foreign_key(tmp_path: Path) -> None:
    """The compact style: names only, as few tokens as can be."""
    path = make_database(
        tmp_path,
        "CREATE TABLE singer(singer_id INTEGER PRIMARY KEY, name TEXT, country TEXT); "
        "CREATE TABLE concert(id INTEGER PRIMARY KEY, singer_id INTEGER REFERENCES singer(singer_id));",
    )

    text = render_schema(read_schema(path), style="compact")

    assert "singer(singer_id, name, country)\nconcert(id, singer_id)\nconcert.singer_id = singer.singer_id" == text


def test_name_alone_names_the_database(tmp_path: Path) -> None:
    """For a policy that knows its few databases, the prompt need not spell them out."""
    path = tmp_path / "shop.sqlite"
    sqlite3.connect(path).execute("CREATE TABLE item (id INTEGER)")

    assert render_schema(read_schema(path), style="name") == "database shop"


def test_full_text_has_types_and_keys_and_runs_as_sql(tmp_path: Path) -> None:
    """The full style is CREATE TABLE statements that make the same schema again, sample values in comments."""
    script = (
        'CREATE TABLE "order"(id INTEGER PRIMARY KEY, "ship to" TEXT, note); '
        'CREATE TABLE line(order_id INTEGER, part TEXT, FOREIGN KEY (order_id) REFERENCES "order"(id), '
        "PRIMARY KEY (order_id, part)); "
        "INSERT INTO \"order\" VALUES (1, 'Graz', NULL), (2, 'O''Hara', X'00FF');"
    )
    schema = read_schema(make_database(tmp_path, script))
    text = render_schema(schema, sample_values=2)

    again = read_schema(make_database(tmp_path, text, "again.sqlite"))

    assert schema.tables == again.tables
    assert schema.foreign_keys == again.foreign_keys
    assert "\"ship to\" TEXT, -- 'Graz', 'O''Hara'" in text
    assert "note -- X'00FF'" in text


def test_sample_values_show_numbers_that_are_stored_as_text(tmp_path: Path) -> None:
    """Case data-numbers-stored-as-text: the quotes tell a model that hp is text."""
    path = make_database(
        tmp_path, "CREATE TABLE car(id INTEGER, hp TEXT); INSERT INTO car VALUES (1,'100'),(2,'95'),(3,'null'),(4,'9');"
    )

    assert "car(id [1, 2, 3], hp ['100', '95', 'null'])" == render_schema(read_schema(path), 3, "compact")


def test_long_and_broken_sample_values_stay_short_and_on_one_line(tmp_path: Path) -> None:
    """A cell with line ends, of great length or with bytes that are not UTF-8 cannot break the prompt."""
    path = make_database(
        tmp_path,
        "CREATE TABLE t(a TEXT, b TEXT, c TEXT); "
        "INSERT INTO t VALUES ('x' || char(10) || 'y', printf('%.200c', 'z'), CAST(X'41FF42' AS TEXT));",
    )

    text = render_schema(read_schema(path), 1, "compact")

    assert f"t(a ['x y'], b ['{'z' * 30}…'], c ['A\ufffdB'])" == text


def test_same_file_gives_the_same_text(shared: Path) -> None:
    """Rendering is deterministic, sample values included, and leaves nothing beside the database."""
    path = shared / "data" / "database" / "world_1" / "world_1.sqlite"
    entry = read_tables(shared / "data" / "tables.json")["world_1"]

    texts = {render_schema(read_schema(path, entry), 3, style) for style in ("full", "compact") for _ in range(2)}

    assert 2 == len(texts)
    assert [path] == list(path.parent.glob("*.sqlite*"))


def test_every_shared_database_can_be_read(shared: Path) -> None:
    """All 157 databases: 118 tables whose primary key tables.json has in part, two foreign keys only one source has."""
    entries = read_tables(shared / "data" / "tables.json")
    paths = sorted((shared / "data" / "database").glob("*/*.sqlite"))

    warnings = [warning for path in paths for warning in read_schema(path, entries[path.stem]).warnings]

    assert 157 == len(paths)
    assert 118 == sum("primary key" in warning for warning in warnings)
    assert 120 == len(warnings)


def test_path_with_url_characters_is_read(tmp_path: Path) -> None:
    """A name with # ? % and blanks opens that file and makes no other."""
    path = make_database(tmp_path, "CREATE TABLE t(x);", "a b#50%?é.sqlite")

    assert "t(x)" == render_schema(read_schema(path), style="compact")
    assert [path] == list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", bytes.fromhex("00051607") + b"x" * 159])
def test_file_that_is_no_database_is_a_named_error(tmp_path: Path, content: bytes) -> None:
    """Case data-archive-litter-as-database: an empty file or a macOS stub is named, not read as an empty schema."""
    path = tmp_path / "empty.sqlite"
    path.write_bytes(content)

    with pytest.raises(DatabaseError, match=r"empty\.sqlite .*is no SQLite database"):
        read_schema(path)


def test_damaged_database_is_a_named_error(tmp_path: Path) -> None:
    """A file with the right header and a damaged rest is a DatabaseError, never an empty schema."""
    path = make_database(tmp_path, "CREATE TABLE t(x);")
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 4000)

    with pytest.raises(DatabaseError, match=r"shop\.sqlite cannot be read"):
        read_schema(path)


def test_broken_tables_entry_is_named(tmp_path: Path) -> None:
    """A key that tables.json lacks is named with the database."""
    path = make_database(tmp_path, "CREATE TABLE t(x);")

    with pytest.raises(DataError, match=r"tables\.json, entry 'campus': KeyError 'foreign_keys'"):
        read_schema(path, {key: value for key, value in CAMPUS.items() if key != "foreign_keys"})
