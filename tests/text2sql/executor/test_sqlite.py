"""What a statement on an SQLite file gives: SQLite's own results, only reading, nothing left behind."""

import hashlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from text2sql.errors import DatabaseError
from text2sql.executor import Executor, Limits, render_result

MakeDatabase = Callable[..., Path]


def rows(executor: Executor, sql: str, database: Path) -> list[tuple[object, ...]]:
    execution = executor.execute(sql, database)
    assert execution.status in ("ok", "empty"), execution.message
    return list(execution.rows)


def test_query_that_reads_returns_columns_and_rows(executor: Executor, make_database: MakeDatabase) -> None:
    """A statement that reads comes back with its columns, its rows and the time it took."""
    database = make_database("CREATE TABLE t(a, b); INSERT INTO t VALUES (1, 'x'), (2.5, NULL)")

    execution = executor.execute("SELECT a, b AS label FROM t", database)

    assert (execution.status, execution.columns) == ("ok", ("a", "label"))
    assert execution.rows == ((1, "x"), (2.5, None))
    assert execution.seconds > 0


def test_bounded_recursion_is_allowed(executor: Executor, make_database: MakeDatabase) -> None:
    """Case ex-recursive-query-without-end: recursion that ends by itself is no offence."""
    database = make_database("CREATE TABLE t(a)")
    sql = "WITH RECURSIVE walk(step) AS (VALUES (0) UNION ALL SELECT step+2 FROM walk WHERE step < 100)"

    assert rows(executor, f"{sql} SELECT max(step) FROM walk", database) == [(100,)]


def test_dangerous_words_in_names_and_strings_are_no_offence(executor: Executor, make_database: MakeDatabase) -> None:
    """Case ex-keyword-filter-false-alarm: the compiled statement decides, not its words."""
    database = make_database(
        """CREATE TABLE log(id INTEGER, "update" TEXT, drop_reason TEXT);
           INSERT INTO log VALUES (1,'x','please delete; then insert')"""
    )
    sql = """SELECT "update", replace(drop_reason,'delete','remove') FROM log WHERE drop_reason LIKE '%insert%';"""

    assert rows(executor, sql, database) == [("x", "please remove; then insert")]


def test_lock_of_another_process_does_not_matter(executor: Executor, make_database: MakeDatabase) -> None:
    """Case ex-locked-database: the files never change, so they are read as immutable, locks or not."""
    database = make_database("CREATE TABLE t(a); INSERT INTO t VALUES (1), (2)")
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
            "c.execute('BEGIN EXCLUSIVE'); print('locked', flush=True); sys.stdin.read()",
            str(database),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            sqlite3.connect(database, timeout=0).execute("SELECT count(*) FROM t")

        assert rows(executor, "SELECT count(*) FROM t", database) == [(2,)]
    finally:
        holder.communicate()


def test_reading_leaves_no_file_beside_the_data(executor: Executor, make_database: MakeDatabase) -> None:
    """Case ex-sidecar-files-beside-data: a write-ahead-log database in a read-only folder; nothing appears or changes."""
    database = make_database("PRAGMA journal_mode = WAL; CREATE TABLE t(a); INSERT INTO t VALUES (1)", "frozen/x.db")
    before = hashlib.sha256(database.read_bytes()).hexdigest()
    database.parent.chmod(0o555)
    try:
        counted = rows(executor, "SELECT count(*) FROM t", database)
    finally:
        database.parent.chmod(0o755)

    assert counted == [(1,)]
    assert [path.name for path in database.parent.iterdir()] == ["x.db"]
    assert hashlib.sha256(database.read_bytes()).hexdigest() == before


def test_unmerged_log_beside_the_database_is_reported(executor: Executor, make_database: MakeDatabase) -> None:
    """An immutable reading would miss what lies in a -wal file; so that is an error and not an older answer."""
    database = make_database("PRAGMA journal_mode = WAL; CREATE TABLE t(a)")
    writer = sqlite3.connect(database)
    writer.execute("INSERT INTO t VALUES (1)")
    writer.commit()

    with pytest.raises(DatabaseError, match="never merged"):
        executor.execute("SELECT count(*) FROM t", database)
    writer.close()

    assert rows(executor, "SELECT count(*) FROM t", database) == [(1,)]


@pytest.mark.parametrize("name", ["a b#50%?.sqlite", "é ü/大阪 100%#1?.sqlite", "a&b=c;d'e\"f.sqlite"])
def test_path_may_hold_any_character(executor: Executor, make_database: MakeDatabase, name: str) -> None:
    """Case ex-path-with-url-characters: the named file is opened, and no second one appears."""
    database = make_database("CREATE TABLE t(a); INSERT INTO t VALUES (1)", name)

    assert rows(executor, "SELECT name FROM sqlite_master", database) == [("t",)]
    assert list(database.parent.iterdir()) == [database]


def test_text_that_is_not_utf8_is_decoded_without_its_bad_bytes(
    executor: Executor, make_database: MakeDatabase
) -> None:
    """Bytes that are no UTF-8 are left out, as the official evaluator does."""
    database = make_database("CREATE TABLE t(a TEXT); INSERT INTO t VALUES (CAST(X'41FF42' AS TEXT))")

    assert rows(executor, "SELECT a FROM t", database) == [("AB",)]


def test_odd_cells_come_back_as_they_are(executor: Executor, make_database: MakeDatabase) -> None:
    """Case ex-binary-and-odd-cells: blobs, zero bytes, long cells, infinities and overflow are values like others."""
    database = make_database("CREATE TABLE t(a)")
    sql = "SELECT X'00FF', 'a'||char(0)||'b', hex(zeroblob(500000)), 1e400, -1e400, NULL, 9223372036854775807+1"

    assert rows(executor, sql, database) == [
        (b"\x00\xff", "a\x00b", "00" * 500_000, float("inf"), float("-inf"), None, 9.223372036854775807e18)
    ]


DOUBLE_QUOTED = [
    ('SELECT "nmae" FROM st', [("nmae",), ("nmae",)], '"nmae" matches no column'),
    ('SELECT name FROM st WHERE city = "Oslo"', [("Ana",)], None),
    ("SELECT name FROM st WHERE \"ctiy\" = 'Oslo'", [], '"ctiy" matches no column'),
    ('SELECT name FROM st WHERE name = "city"', [], None),
]


@pytest.mark.parametrize(("sql", "expected", "hint"), DOUBLE_QUOTED)
def test_double_quoted_word_is_sqlites_and_a_misspelt_column_gets_a_hint(
    executor: Executor, make_database: MakeDatabase, sql: str, expected: list[tuple[str]], hint: str | None
) -> None:
    """Case ex-double-quoted-string-fallback: the results are SQLite's, the hint is for the reader only."""
    database = make_database(
        "CREATE TABLE st(name TEXT, city TEXT); INSERT INTO st VALUES ('Ana','Oslo'),('Bo','Rome')"
    )

    execution = executor.execute(sql, database)

    assert list(execution.rows) == expected
    assert (hint in (execution.hint or "")) if hint else execution.hint is None
    assert (hint or "0 rows" if not expected else "") in render_result(execution, 200)


@pytest.mark.parametrize(
    "sql",
    [
        'SELECT name FROM st WHERE city IN ("Oslo", "Bergen")',
        'SELECT name FROM st WHERE city BETWEEN "A" AND "P"',
        'SELECT name FROM st WHERE city LIKE "O%" OR name = "Bo"',
        'SELECT CASE WHEN city = "Oslo" THEN "yes" ELSE "no" END AS "answer" FROM st',
        'SELECT "name", T1."city" FROM st AS T1 ORDER BY "city" -- "nmae"',
        "SELECT name FROM st WHERE city = '\"nmae\"'",
    ],
)
def test_double_quoted_word_in_a_values_place_gets_no_hint(
    executor: Executor, make_database: MakeDatabase, sql: str
) -> None:
    """Words that are columns, or strings where strings belong, are nothing to remark on."""
    database = make_database("CREATE TABLE st(name TEXT, city TEXT); INSERT INTO st VALUES ('Ana','Oslo')")

    assert executor.execute(sql, database).hint is None


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("txt = 10", [("10",)]),
        ("txt > 9", []),
        ("txt BETWEEN 9 AND 100", []),
        ("num = '10'", [("10",)]),
        ("num BETWEEN 100 AND 9", []),
    ],
)
def test_comparison_of_text_and_number_follows_affinity(
    executor: Executor, make_database: MakeDatabase, where: str, expected: list[tuple[str]]
) -> None:
    """Case ex-affinity-and-between: text columns compare with numbers as SQLite has it."""
    database = make_database(
        "CREATE TABLE a(txt TEXT, num INTEGER); INSERT INTO a VALUES ('10',10),('9',9),('100',100)"
    )

    assert rows(executor, f"SELECT txt FROM a WHERE {where}", database) == expected
    assert rows(executor, "SELECT '10' = 10", database) == [(0,)]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("n LIKE 'an%'", [("Anna",), ("ANNA",)]),
        ("n LIKE 'é%'", [("émile",)]),
        ("n = 'anna'", []),
        ("n GLOB 'An*'", [("Anna",)]),
    ],
)
def test_case_counts_where_sqlite_says_so(
    executor: Executor, make_database: MakeDatabase, where: str, expected: list[tuple[str]]
) -> None:
    """Case ex-like-glob-case: LIKE ignores the case of ASCII letters only, = and GLOB do not; no literal is lowered."""
    database = make_database("CREATE TABLE l(n TEXT); INSERT INTO l VALUES ('Anna'),('ANNA'),('Émile'),('émile')")

    assert rows(executor, f"SELECT n FROM l WHERE {where}", database) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT id FROM n ORDER BY s LIMIT 1", [(1,)]),
        ("SELECT id FROM n WHERE s <> 5", [(3,)]),
        ("SELECT id FROM n WHERE s NOT IN (SELECT s FROM n WHERE id = 1)", []),
        ("SELECT sum(s) FROM n WHERE id = 1", [(None,)]),
        ("SELECT 1/0", [(None,)]),
        ("SELECT 3/4", [(0,)]),
    ],
)
def test_null_sorts_vanishes_and_poisons_as_in_sqlite(
    executor: Executor, make_database: MakeDatabase, sql: str, expected: list[tuple[object]]
) -> None:
    """Case ex-null-logic: NULL sorts first, vanishes from <> and poisons NOT IN."""
    database = make_database("CREATE TABLE n(id INTEGER, s INTEGER); INSERT INTO n VALUES (1,NULL),(2,5),(3,7)")

    assert rows(executor, sql, database) == expected


def test_numbers_stored_as_text_stay_text(executor: Executor, make_database: MakeDatabase) -> None:
    """Case data-numbers-stored-as-text: nothing is cast."""
    database = make_database(
        "CREATE TABLE car(id INTEGER, hp TEXT); INSERT INTO car VALUES (1,'100'),(3,'null'),(4,'9')"
    )

    assert rows(executor, "SELECT max(hp) FROM car", database) == [("null",)]
    assert rows(executor, "SELECT count(*) FROM car WHERE hp IS NULL", database) == [(0,)]


@pytest.mark.parametrize(
    ("content", "said"), [(b"\x00\x05\x16\x07" + b"x" * 159, "163 bytes"), (b"", "0 bytes"), (None, "missing")]
)
def test_file_that_is_no_database_is_named_at_once(
    executor: Executor, tmp_path: Path, content: bytes | None, said: str
) -> None:
    """Case data-archive-litter-as-database: a stub or empty file is an error by name, not `no such table`."""
    path = tmp_path / "._shop.sqlite"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(DatabaseError, match=said) as error:
        executor.execute("SELECT 1", path)

    assert "._shop.sqlite" in str(error.value)


def test_damaged_database_is_an_error_of_the_file_not_of_the_query(
    executor: Executor, make_database: MakeDatabase
) -> None:
    """A file whose pages are damaged raises; it never becomes a wrong answer."""
    database = make_database("CREATE TABLE t(a); INSERT INTO t VALUES (zeroblob(20000))")
    with database.open("r+b") as file:
        file.seek(100)
        file.write(os.urandom(3000))

    with pytest.raises(DatabaseError, match="Restore the file"):
        executor.execute("SELECT * FROM t", database)


def test_several_statements_are_refused_in_sqlites_words(executor: Executor, make_database: MakeDatabase) -> None:
    """Only one statement at a time; the message is the library's own."""
    database = make_database("CREATE TABLE t(a)")

    execution = executor.execute("SELECT 1; SELECT 2", database)

    assert (execution.status, execution.message) == ("error", "You can only execute one statement at a time.")
    assert executor.execute("SELECT 1; -- done", database).status == "ok"


@pytest.mark.parametrize("sql", ["", "  \n", "-- only a remark", "/* nothing */"])
def test_text_without_a_statement_gives_no_result(executor: Executor, make_database: MakeDatabase, sql: str) -> None:
    """Nothing ran: no columns, no rows, and a message that says why."""
    execution = executor.execute(sql, make_database("CREATE TABLE t(a)"))

    assert (execution.status, execution.columns, execution.rows) == ("empty", (), ())
    assert execution.message == "the text holds no SQL statement"


@pytest.mark.parametrize(
    ("limits", "sql", "kept", "said"),
    [
        (Limits(max_rows=3), "SELECT value FROM json_each('[1,2,3,4]')", 3, "more than 3 rows"),
        (Limits(max_rows=4), "SELECT value FROM json_each('[1,2,3,4]')", 4, None),
        (Limits(max_cell_bytes=1000), "SELECT hex(zeroblob(501))", 0, "the limit is 1,000 bytes"),
        (Limits(max_cell_bytes=1000), "SELECT hex(zeroblob(499))", 1, None),
        (Limits(max_result_bytes=5000), "SELECT zeroblob(100) FROM json_each('[1,2]')", 2, None),
        (Limits(max_result_bytes=50), "SELECT zeroblob(100) FROM json_each('[1,2]')", 0, "more than 50 bytes"),
    ],
)
def test_limits_on_rows_and_bytes_are_named(
    executor: Executor, make_database: MakeDatabase, limits: Limits, sql: str, kept: int, said: str | None
) -> None:
    """Beyond a limit the status is too_large, the message names the limit, and the rows up to it are kept."""
    execution = executor.execute(sql, make_database("CREATE TABLE t(a)"), limits=limits)

    assert execution.status == ("too_large" if said else "ok")
    assert len(execution.rows) == kept
    assert said is None or said in (execution.message or "")


def test_memory_is_bounded(executor: Executor, make_database: MakeDatabase) -> None:
    """A sort of more than the memory limit ends as too_large, writes no temporary file, and the pool goes on."""
    database = make_database("CREATE TABLE t(a)")
    sql = (
        "WITH RECURSIVE r(n, x) AS (SELECT 1, zeroblob(1000000) UNION ALL SELECT n+1, zeroblob(1000000) FROM r"
        " LIMIT 500) SELECT n FROM r ORDER BY x"
    )

    execution = executor.execute(sql, database, limits=Limits(timeout_seconds=30, memory_bytes=64 * 2**20))

    assert (execution.status, execution.message) == ("too_large", "needed more than 64 MiB of memory")
    assert rows(executor, "SELECT 1", database) == [(1,)]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("DROP TABLE t", "a change of the schema"),
        ("DELETE FROM t", "DELETE t"),
        ("ATTACH 'other.sqlite' AS other", "ATTACH other.sqlite"),
        ("PRAGMA journal_mode = DELETE", "PRAGMA journal_mode"),
        ("SELECT load_extension('x')", "FUNCTION load_extension"),
        ("VACUUM INTO 'copy.sqlite'", "ATTACH copy.sqlite"),
        ("BEGIN", "TRANSACTION BEGIN"),
    ],
)
def test_statement_that_does_more_than_read_is_refused_by_name(
    executor: Executor, make_database: MakeDatabase, sql: str, said: str
) -> None:
    """The message tells the model what it may not do."""
    execution = executor.execute(sql, make_database("CREATE TABLE t(a)"))

    assert (execution.status, execution.message) == ("error", f"only reading is allowed, refused: {said}")


def test_looking_at_the_schema_is_reading(executor: Executor, make_database: MakeDatabase) -> None:
    """sqlite_master, PRAGMA table_info and its table-valued form, and EXPLAIN only read."""
    database = make_database("CREATE TABLE t(a INTEGER)")

    assert rows(executor, "SELECT name FROM sqlite_master", database) == [("t",)]
    assert rows(executor, "PRAGMA table_info(t)", database) == [(0, "a", "INTEGER", 0, None, 0)]
    assert rows(executor, "SELECT name FROM pragma_table_info('t')", database) == [("a",)]
    assert executor.execute("EXPLAIN QUERY PLAN SELECT * FROM t", database).status == "ok"
