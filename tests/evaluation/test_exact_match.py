"""Exact match, official and sound: the rules as pairs of SQL, then what the functions promise around them."""

import re
import sqlite3
from pathlib import Path

import pytest

from evaluation.exact_match import EvaluatorSchema, exact_match, exact_match_sound, hardness, load_schema
from text2sql.errors import DatabaseError, DataError

PAIRS = Path(__file__).parents[1] / "fixtures" / "exact_match.pairs"
BLOCK = re.compile(
    r"# (?P<rule>.+)\nem (?P<em>true|false|raises), sound (?P<sound>true|false)\ngold: (?P<gold>.+)\npred: ?(?P<pred>.*)"
)
EM = {"true": True, "false": False, "raises": None}


def pairs() -> list[re.Match[str]]:
    return list(BLOCK.finditer(PAIRS.read_text(encoding="utf-8")))


@pytest.mark.parametrize("pair", pairs(), ids=lambda pair: pair["rule"])
def test_rule(pair, concerts: EvaluatorSchema):
    """Every rule of the fixture file holds, for the official and for the sound reading."""
    official = exact_match(pair["gold"], pair["pred"], concerts)
    sound = exact_match_sound(pair["gold"], pair["pred"], concerts)

    assert (EM[pair["em"]], pair["sound"] == "true") == (official.em, sound)


def test_every_block_of_the_fixture_file_is_a_pair():
    """No block of the fixture file is skipped for its form."""
    written = PAIRS.read_text(encoding="utf-8").count("\ngold: ")

    assert written == len(pairs())


def test_partial_scores_carry_both_counts(concerts: EvaluatorSchema):
    """Each part is [accuracy, recall, f1, gold count, predicted count]."""
    verdict = exact_match("SELECT name , age FROM singer", "SELECT name FROM singer WHERE age > 3", concerts)

    assert [0, 0, 0, 2, 1] == verdict.partial["select"]
    assert [0, 0, 0, 0, 1] == verdict.partial["where"]
    assert [1, 1, 1, 0, 0] == verdict.partial["group"]


def test_connector_counts_are_swapped_when_they_differ(concerts: EvaluatorSchema):
    """As in the evaluator, and/or counts the prediction's connectors as the gold's and the other way round."""
    gold = "SELECT name FROM singer WHERE age = 1 AND age = 2 OR age = 3"
    verdict = exact_match(gold, "SELECT name FROM singer", concerts)

    assert [0, 0, 0, 0, 2] == verdict.partial["and/or"]


def test_unreadable_prediction_is_wrong_and_says_why(concerts: EvaluatorSchema):
    """A prediction that the parser cannot read is compared as an empty query, and the reason names the place."""
    verdict = exact_match("SELECT name FROM singer", "SELECT s.name FROM singer s", concerts)

    assert verdict.em is False
    assert verdict.readable is False
    assert "not readable: table alias without AS, or a word after the tables at 'singer s' (token 5)" == verdict.reason
    assert [0, 0, 0, 1, 0] == verdict.partial["select"]


@pytest.mark.parametrize(
    ("pred", "reason"),
    [
        ("SELECT name FROM singer LEFT JOIN concert", "LEFT in FROM"),
        ("SELECT name FROM singer , concert", "tables separated by a comma"),
        ("SELECT count(*) AS n FROM singer", "column alias"),
        ("SELECT name FROM singer WHERE name = 'a", "odd number of quotes"),
        ("SELECT name FROM singer WHERE age IN (1, 2, 3)", "a list of several values?"),
        ("SELECT name FROM singer WHERE age IN (1,2)", "value expected"),
        ("SELECT name FROM singer WHERE name IN ('a' , 'b')", "a list of several values?"),
        ("SELECT name FROM singer WHERE age <> 3", "value expected"),
        ("SELECT name FROM singer WHERE EXISTS (SELECT 1)", "EXISTS where a column is expected"),
        ("SELECT name FROM (SELECT name FROM singer) AS x", "alias of a derived table"),
        ("SELECT name FROM singer ORDER BY 1", "literal where a column is expected"),
        ("SELECT name", "no FROM"),
        ("WITH x AS (SELECT * FROM singer) SELECT name FROM x", "SELECT expected"),
        ("SELECT name FROM singer AS concert", "alias 'concert' is also the name of a table"),
    ],
)
def test_reason_names_the_commonest_refusals(pred, reason, concerts: EvaluatorSchema):
    """What stands in the parser's way is named in words."""
    verdict = exact_match("SELECT name FROM singer", pred, concerts)

    assert reason in verdict.reason


def test_white_space_of_any_kind_is_one_blank(concerts: EvaluatorSchema):
    """Line ends and tabs do not matter, since the evaluator reads one query a line."""
    verdict = exact_match("SELECT name FROM singer", "SELECT name\n\tFROM   singer\n", concerts)

    assert verdict.em is True


def test_unreadable_gold_has_neither_verdict_nor_hardness(concerts: EvaluatorSchema):
    """The evaluator stops on a gold it cannot read; that is not a wrong prediction."""
    verdict = exact_match("SELECT name FROM singer s", "SELECT name FROM singer", concerts)

    assert (None, None, None) == (verdict.em, verdict.partial, verdict.hardness)
    assert verdict.reason.startswith("gold not readable")


def test_readable_tells_predictions_from_golds(concerts: EvaluatorSchema):
    """A readable prediction stays readable although its gold is not."""
    verdict = exact_match("SELECT name FROM singer s", "SELECT name FROM singer", concerts)

    assert verdict.readable is True


def test_foreign_keys_come_from_tables_json(concerts: EvaluatorSchema, concerts_database: Path):
    """Without an entry of tables.json no columns count as one."""
    gold = "SELECT T1.singer_id FROM singer AS T1 JOIN performance AS T2"
    pred = "SELECT T2.singer_id FROM singer AS T1 JOIN performance AS T2"

    assert exact_match(gold, pred, concerts).em is True
    assert exact_match(gold, pred, load_schema(concerts_database, None)).em is False


def test_foreign_key_groups_are_not_merged(concerts_database: Path, concerts_entry):
    """
    A pair joins the first group that has either end; groups that meet later stay apart, and a column of two groups
    takes the later one: the keys singer-stadium, concert-title, stadium-concert leave two groups.
    """
    names = concerts_entry["column_names_original"]
    singer, stadium, concert, title = 1, 6, 10, 11
    entry = {**concerts_entry, "foreign_keys": [[singer, stadium], [concert, title], [stadium, concert]]}

    assert [(0, "singer_id"), (1, "stadium_id"), (2, "concert_id"), (2, "title")] == [
        names[index] for index in (singer, stadium, concert, title)
    ]
    assert {
        "singer.singer_id": "singer.singer_id",
        "stadium.stadium_id": "singer.singer_id",
        "concert.concert_id": "concert.concert_id",
        "concert.title": "concert.concert_id",
    } == load_schema(concerts_database, entry).representatives


def test_missing_database_is_an_error_that_names_the_file(tmp_path: Path):
    """A database that is not there raises; it does not become a verdict."""
    with pytest.raises(DatabaseError, match=r"nowhere\.sqlite"):
        load_schema(tmp_path / "nowhere.sqlite", None)


@pytest.mark.parametrize("broken", [{}, {"foreign_keys": [[1, 99]]}, {"column_names_original": None}])
def test_broken_entry_of_tables_json_is_an_error_that_names_it(concerts_database: Path, concerts_entry, broken):
    """Keys that are missing or lead nowhere: file and database are in the message."""
    entry = {**concerts_entry, **broken} if broken else {"db_id": "concerts"}

    with pytest.raises(DataError, match=r"tables\.json, entry 'concerts': \w+Error"):
        load_schema(concerts_database, entry)


def test_file_that_is_no_database_is_an_error(tmp_path: Path):
    """So does a file that is no database."""
    path = tmp_path / "text.sqlite"
    path.write_text("this is no database, only text that goes on for a while" * 10)

    with pytest.raises(DatabaseError, match="not a readable SQLite database"):
        load_schema(path, None)


def test_odd_table_names_are_read(tmp_path: Path):
    """Tables whose names are SQL words or hold blanks do not keep a schema from being read."""
    path = tmp_path / "odd.sqlite"
    connection = sqlite3.connect(path)
    connection.execute('CREATE TABLE "order" (id, "Two Words")')
    connection.execute('CREATE TABLE "two words" (Id)')
    connection.close()

    schema = load_schema(path, None)

    assert {"order": ("id", "two words"), "two words": ("id",)} == schema.ordered_columns


def test_path_with_url_characters_is_read(tmp_path: Path):
    """Case ex-path-with-url-characters, for the schema: `?`, `#` and `%` in a path are just characters."""
    folder = tmp_path / "a?b#c%20"
    folder.mkdir()
    path = folder / "x.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (a)")
    connection.close()

    assert {"t": ("a",)} == load_schema(path, None).ordered_columns


def test_gold_equals_itself_soundly(concerts: EvaluatorSchema):
    """A query that sqlglot can read always equals itself."""
    gold = (
        "SELECT T1.name , count(*) FROM singer AS T1 LEFT JOIN performance T2 USING (singer_id) GROUP BY 1 ORDER BY 2"
    )

    assert exact_match_sound(gold, gold, concerts)


def test_sound_reading_is_false_for_what_sqlglot_cannot_read(concerts: EvaluatorSchema):
    """Prose, broken SQL and statements that are no queries are never equal, not even to themselves."""
    for text in ("", "name?", "SELECT FROM WHERE", "DROP TABLE singer", "EXPLAIN SELECT 1", "SELECT ((1"):
        assert not exact_match_sound(text, text, concerts)


def test_hardness_of_an_unreadable_gold_is_none(concerts: EvaluatorSchema):
    """hardness never raises."""
    assert hardness("what?", concerts) is None
