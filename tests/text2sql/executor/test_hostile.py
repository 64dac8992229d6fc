"""
Some 200 statements that mean harm or come out of a broken model. Whatever they are: an answer within the deadline plus a
second, bounded memory, untouched files, and a pool that goes on.
"""

import hashlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from text2sql.executor import Execution, Executor, Limits, render_result

LIMITS = Limits(timeout_seconds=0.5, memory_bytes=128 * 2**20)
STATUSES = {"ok", "empty", "error", "timeout", "too_large"}

WRITES = """
INSERT INTO people VALUES (9, 'Eve', 1)
INSERT OR REPLACE INTO people VALUES (1, 'Eve', 1)
REPLACE INTO people VALUES (1, 'Eve', 1)
UPDATE people SET name = 'Eve'
UPDATE people SET name = 'Eve' RETURNING id
DELETE FROM people
DELETE FROM people RETURNING *
WITH x AS (SELECT 1) DELETE FROM people WHERE id IN x
WITH x AS (SELECT 1) INSERT INTO people SELECT 9, 'Eve', 1 FROM x
WITH x AS (DELETE FROM people RETURNING *) SELECT * FROM x
EXPLAIN DELETE FROM people
INSERT INTO sqlite_master VALUES ('table', 'x', 'x', 0, 'CREATE TABLE x(a)')
UPDATE sqlite_master SET sql = 'CREATE TABLE people(a)' WHERE name = 'people'
DELETE FROM sqlite_master
INSERT INTO sqlite_sequence VALUES ('people', 1000000)
UPDATE sqlite_sequence SET seq = 0
INSERT INTO notes(notes) VALUES ('optimize')
INSERT INTO notes(notes) VALUES ('rebuild')
DELETE FROM notes_content
CREATE TABLE evil(a)
CREATE TABLE IF NOT EXISTS people(a)
CREATE TABLE copy AS SELECT * FROM people
CREATE TEMP TABLE evil(a)
CREATE TEMPORARY VIEW evil AS SELECT 1
CREATE VIEW evil AS SELECT * FROM people
CREATE INDEX evil ON people(name)
CREATE UNIQUE INDEX temp.evil ON people(name)
CREATE TRIGGER evil AFTER INSERT ON people BEGIN DELETE FROM people; END
CREATE TEMP TRIGGER evil AFTER INSERT ON people BEGIN SELECT 1; END
CREATE VIRTUAL TABLE evil USING fts5(a)
CREATE VIRTUAL TABLE temp.evil USING dbstat
CREATE VIRTUAL TABLE evil USING rtree(a, b, c)
CREATE VIRTUAL TABLE evil USING csv(filename='/etc/passwd')
ALTER TABLE people RENAME TO evil
ALTER TABLE people RENAME COLUMN name TO evil
ALTER TABLE people ADD COLUMN evil TEXT
ALTER TABLE people DROP COLUMN name
DROP TABLE people
DROP TABLE IF EXISTS people
DROP VIEW adults
DROP INDEX by_name
DROP TABLE sqlite_master
DROP TABLE notes
REINDEX
REINDEX by_name
ANALYZE
ANALYZE people
VACUUM
VACUUM INTO 'evil.sqlite'
VACUUM INTO '{folder}/evil.sqlite'
ATTACH 'evil.sqlite' AS evil
ATTACH '{folder}/evil.sqlite' AS evil
ATTACH DATABASE 'file:{folder}/evil.sqlite?mode=rwc' AS evil
ATTACH ':memory:' AS evil
ATTACH '' AS evil
DETACH main
BEGIN
BEGIN EXCLUSIVE
BEGIN IMMEDIATE TRANSACTION
COMMIT
END
ROLLBACK
SAVEPOINT evil
RELEASE evil
ROLLBACK TO evil
PRAGMA journal_mode = DELETE
PRAGMA journal_mode = WAL
PRAGMA journal_mode
PRAGMA writable_schema = ON
PRAGMA writable_schema = RESET
PRAGMA user_version = 666
PRAGMA main.user_version = 666
PRAGMA application_id = 666
PRAGMA schema_version = 666
PRAGMA encoding = 'UTF-16'
PRAGMA page_size = 512
PRAGMA auto_vacuum = FULL
PRAGMA incremental_vacuum
PRAGMA wal_checkpoint(TRUNCATE)
PRAGMA optimize
PRAGMA query_only = OFF
PRAGMA trusted_schema = ON
PRAGMA temp_store_directory = '{folder}'
PRAGMA data_store_directory = '{folder}'
PRAGMA locking_mode = EXCLUSIVE
PRAGMA hard_heap_limit = 1
PRAGMA soft_heap_limit = 1
PRAGMA cache_size = -4000000
PRAGMA mmap_size = 4000000000
PRAGMA threads = 64
PRAGMA foreign_keys = OFF
PRAGMA secure_delete = OFF
PRAGMA case_sensitive_like = ON
PRAGMA database_list
PRAGMA integrity_check
PRAGMA quick_check
PRAGMA cell_size_check = ON
SELECT * FROM pragma_database_list
SELECT * FROM pragma_user_version
SELECT load_extension('evil.so')
SELECT load_extension('{folder}/evil.so', 'init')
SELECT fts3_tokenizer('simple')
SELECT fts3_tokenizer('simple', X'0000000000000000')
SELECT readfile('/etc/passwd')
SELECT writefile('{folder}/evil.txt', 'x')
SELECT edit('x')
SELECT sqlite_log(1, 'x')
SELECT * FROM fsdir('/etc')
SELECT eval('DROP TABLE people')
.shell touch {folder}/evil
.open {folder}/evil.sqlite
.import /etc/passwd people
"""

SEVERAL = """
SELECT 1; DROP TABLE people
SELECT 1; SELECT 2
SELECT 1;;DROP TABLE people;
;DROP TABLE people
; ; ;
SELECT 1; ATTACH '{folder}/evil.sqlite' AS evil; CREATE TABLE evil.x(a);
/* SELECT 1 */ DROP TABLE people
SELECT 1 -- ; DROP TABLE people
SELECT 1 /* ; DROP TABLE people
/*!50000 DROP TABLE people */
--
-- DROP TABLE people
SELECT '--'; DROP TABLE people
EXPLAIN SELECT 1; DROP TABLE people
CREATE TRIGGER t AFTER INSERT ON people BEGIN SELECT 1; END; DROP TABLE people
PREPARE x AS SELECT 1
EXECUTE x
EXEC sp_executesql 'DROP TABLE people'
GRANT ALL ON people TO eve
COPY people TO '{folder}/evil.csv'
SELECT * FROM people INTO OUTFILE '{folder}/evil.csv'
SELECT pg_sleep(60)
WAITFOR DELAY '0:0:60'
"""

ENDLESS = """
WITH RECURSIVE r(n) AS (VALUES (0) UNION ALL SELECT n+1 FROM r) SELECT max(n) FROM r
WITH RECURSIVE r(n) AS (VALUES (0) UNION ALL SELECT n+1 FROM r) SELECT n FROM r
WITH RECURSIVE r(n) AS (VALUES (0) UNION SELECT n+1 FROM r) SELECT count(*) FROM r
WITH RECURSIVE r(n) AS (VALUES (0) UNION ALL SELECT n+1 FROM r) SELECT count(DISTINCT n) FROM r
WITH RECURSIVE r(n) AS (VALUES (0) UNION ALL SELECT n+1 FROM r) SELECT n FROM r ORDER BY -n
WITH RECURSIVE r(n) AS (VALUES (0) UNION ALL SELECT n FROM r) SELECT 1 FROM r WHERE n = 1
WITH RECURSIVE r(n) AS (VALUES (0) UNION ALL SELECT n+1 FROM r) SELECT 1 WHERE EXISTS (SELECT 1 FROM r WHERE n < 0)
WITH RECURSIVE r(n) AS (VALUES (0) UNION ALL SELECT n+1 FROM r) SELECT * FROM people WHERE id NOT IN (SELECT -n FROM r)
WITH RECURSIVE r(t) AS (VALUES ('x') UNION ALL SELECT t || t FROM r) SELECT max(length(t)) FROM r
WITH RECURSIVE r(t) AS (VALUES (zeroblob(1000)) UNION ALL SELECT t FROM r) SELECT group_concat(t) FROM r
WITH RECURSIVE r(n) AS (VALUES (0) UNION ALL SELECT n+1 FROM r) SELECT json_group_array(n) FROM r
WITH RECURSIVE r(n) AS (VALUES (0) UNION ALL SELECT n+1 FROM r) SELECT n, row_number() OVER (ORDER BY -n) FROM r
WITH RECURSIVE r(n, x) AS (SELECT 1, zeroblob(900000) UNION ALL SELECT n+1, zeroblob(900000) FROM r) SELECT n FROM r ORDER BY x
WITH RECURSIVE r(n, x) AS (SELECT 1, randomblob(900000) UNION ALL SELECT n+1, randomblob(900000) FROM r) SELECT x FROM r
WITH RECURSIVE a(n) AS (VALUES (0) UNION ALL SELECT n+1 FROM a), b(n) AS (SELECT n FROM a) SELECT count(*) FROM a, b
SELECT count(*) FROM many a, many b, many c, many d
SELECT a.n FROM many a, many b, many c, many d WHERE a.n + b.n + c.n + d.n < 0
SELECT * FROM many a, many b, many c, many d
SELECT * FROM many a, many b, many c, many d ORDER BY a.n * b.n, c.n
SELECT DISTINCT a.n, b.n, c.n, d.n FROM many a, many b, many c, many d
SELECT a.n FROM many a, many b, many c GROUP BY a.n, b.n, c.n HAVING count(*) > 1
SELECT max(a.n * b.n * c.n * d.n) FROM many a CROSS JOIN many b CROSS JOIN many c CROSS JOIN many d
SELECT a.n FROM many a, many b, many c EXCEPT SELECT 1
SELECT (SELECT count(*) FROM many b, many c WHERE b.n + c.n <> a.n + d.n) FROM many a, many d
SELECT sum(n) OVER (PARTITION BY n % 2) FROM (SELECT a.n FROM many a, many b, many c)
SELECT a.name FROM people a NATURAL JOIN many b NATURAL JOIN many c, many d, many e, many f
SELECT group_concat(a.n) FROM many a, many b, many c
SELECT count(*) FROM pragma_table_info('people') a, many b, many c, many d
SELECT count(*) FROM sqlite_master a, sqlite_master b, many c, many d, many e
SELECT * FROM notes WHERE notes MATCH 'a* OR b* OR c* OR d* NOT e*'
SELECT zeroblob(2000000000)
SELECT zeroblob(9223372036854775807)
SELECT randomblob(2000000000)
SELECT hex(zeroblob(1000000000))
SELECT length(hex(hex(hex(hex(zeroblob(4000000))))))
SELECT printf('%2000000000d', 1)
SELECT printf('%.2000000000f', 1.0)
SELECT printf('%.*c', 1000000000, 'x')
SELECT replace(hex(zeroblob(1000000)), '0', hex(zeroblob(1000000)))
SELECT group_concat(hex(zeroblob(100000))) FROM many a, many b
SELECT quote(zeroblob(100000000))
SELECT substr(hex(randomblob(2000000)), 1, 5) FROM many a, many b, many c
SELECT hex(zeroblob(1000000)) LIKE '%0%0%0%0%0%0%0%0%0%0%1'
SELECT hex(zeroblob(1000000)) GLOB '*0*0*0*0*0*0*0*0*0*0*1'
SELECT instr(hex(zeroblob(1900000)), hex(zeroblob(900000)) || '1')
SELECT trim(hex(zeroblob(1900000)), hex(randomblob(100000)))
SELECT json_extract(replace(hex(zeroblob(1000)), '0', '['), '$')
SELECT json(replace(hex(zeroblob(1900000)), '0', '['))
SELECT soundex(hex(zeroblob(1900000))), upper(hex(zeroblob(1900000))), unicode(hex(zeroblob(1900000)))
SELECT abs(-9223372036854775808)
SELECT 9223372036854775807 + 9223372036854775807, -9223372036854775808 - 1, 1 / 0, 1 % 0, 1 << 64, ~0
SELECT 1e308 * 1e308, -1e308 * 1e308, 1e400 - 1e400, CAST('nan' AS REAL), CAST('inf' AS REAL)
SELECT date(1e308), strftime('%s', 1e308), julianday('9999999-99-99'), datetime('now', '+99999999999 years')
SELECT * FROM json_each('[' || replace(hex(zeroblob(900000)), '0', '1,') || '1]')
SELECT * FROM json_tree(replace(hex(zeroblob(999)), '0', '[') || replace(hex(zeroblob(999)), '0', ']'))
"""


def generated() -> Iterator[str]:
    """What is too long or too strange to write out."""
    yield ""
    yield " \t\r\n"
    yield "\x00"
    yield "SELECT '\x00'"
    yield "SELECT 1\x00; DROP TABLE people"
    yield "SELECT '\ud800'"
    yield "\ud800\udfff"
    yield "\ufeffSELECT 1"
    yield "SELECT\u00a01"
    yield "SELECT 1 FROM people WHERE name = '\u202e\u2066;DROP TABLE people--\u2069'"
    yield "ＳＥＬＥＣＴ * ＦＲＯＭ people"
    yield "SELECT 1；DROP TABLE people"
    yield "SELECT 1;\u2028DROP TABLE people"
    yield "ſELECT 1"
    yield "DRоP TABLE people"
    yield "SELECT ‘a’"
    yield "SELECT '" + "\U0001f600" * 100_000 + "'"
    yield "SELECT 'a\u0301' || char(0, 55296, 1114111, 1114112, -1)"
    yield "x" * 1_000_000
    yield "SELECT " + "1," * 500_000 + "1"
    yield "SELECT '" + "x" * 1_000_000 + "'"
    yield "SELECT '" + "x" * 1_000_000
    yield "-- " + "x" * 1_000_000
    yield "/*" * 500_000
    yield "(" * 1_000_000
    yield "SELECT " + "(" * 5_000 + "1" + ")" * 5_000
    yield "SELECT " + "-" * 1_000 + "1"
    yield "SELECT " + "- " * 100_000 + "1"
    yield "SELECT " + "NOT " * 100_000 + "1"
    yield "SELECT 1" + "+1" * 400_000
    yield "SELECT 1 WHERE " + "1=1 OR " * 100_000 + "1"
    yield "SELECT 1 WHERE 1 IN (" + "1," * 300_000 + "1)"
    yield "SELECT 1 " + "UNION ALL SELECT 1 " * 50_000
    yield "VALUES " + "(1)," * 250_000 + "(1)"
    yield "SELECT * FROM " + ",".join(["people"] * 65)
    yield "SELECT * FROM " + ",".join(f"people p{number}" for number in range(64))
    yield "SELECT * FROM " + "(SELECT * FROM " * 200 + "people" + ")" * 200
    yield "SELECT " + "(SELECT " * 200 + "1" + ")" * 200
    yield "SELECT " + "coalesce(" * 500 + "1" + ",1)" * 500
    yield "SELECT max(" + ",".join(["1"] * 500) + ")"
    yield "SELECT " + "CASE WHEN 1 THEN " * 2_000 + "1" + " END" * 2_000
    yield "SELECT 'a' LIKE '" + "%a" * 24_000 + "'"
    yield "SELECT hex(zeroblob(9000)) LIKE '" + "%0" * 40 + "1'"
    yield (
        "WITH "
        + ",".join(f"t{n} AS (SELECT * FROM t{n - 1} a, t{n - 1} b)" for n in range(1, 30))
        + " SELECT 1 FROM t29"
    )
    doubling = ["t0(n) AS (VALUES (1), (2))"] + [
        f"t{n}(n) AS (SELECT a.n FROM t{n - 1} a, t{n - 1} b)" for n in range(1, 7)
    ]
    yield f"WITH {', '.join(doubling)} SELECT count(*) FROM t6"
    yield f"WITH {', '.join(doubling[:5])} SELECT * FROM t4 a, t4 b, t4 c"
    yield "SELECT " + ", ".join(f"(SELECT count(*) FROM many a, many b WHERE a.n > {n})" for n in range(500))
    yield "SELECT :a, ?1, @b, $c"
    yield "SELECT ?" + "9" * 30
    yield "SELECT " + "9" * 100_000
    yield "SELECT 1e" + "9" * 1_000
    yield "SELECT 0x" + "f" * 1_000
    yield "SELECT X'" + "0" * 999_999 + "'"
    yield 'SELECT "' + '""' * 100_000 + '"'
    yield "SELECT " + ", ".join(f'"misspelt_{number}"' for number in range(1_500))
    yield "SELECT [" + "x" * 100_000 + "]"
    yield "SELECT 1 AS `" + "x" * 100_000 + "`"
    yield "```sql\nSELECT 1\n```"
    yield "<answer_sql>SELECT 1</answer_sql>"
    yield "SELECT 1 FROM people LIMIT -1 OFFSET -9223372036854775808"
    yield "SELECT 1 FROM people LIMIT 1e1000"
    yield "SELECT * FROM people ORDER BY " + ", ".join(["random()"] * 1_000)


def corpus(folder: Path) -> list[str]:
    lines = [line for text in (WRITES, SEVERAL, ENDLESS) for line in text.strip().splitlines()]
    return [line.replace("{folder}", str(folder)) for line in lines] + list(generated())


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "town" / "town.sqlite"
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.executescript(
        """CREATE TABLE people(id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, age INTEGER);
           INSERT INTO people(name, age) VALUES ('Ana', 31), ('Bo', NULL);
           CREATE INDEX by_name ON people(name);
           CREATE VIEW adults AS SELECT * FROM people WHERE age > 17;
           CREATE VIRTUAL TABLE notes USING fts5(body);
           INSERT INTO notes VALUES ('a b c'), ('d e f');
           CREATE TABLE many(n INTEGER);
           INSERT INTO many WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM r WHERE n < 500) SELECT n FROM r"""
    )
    connection.close()
    return path


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*")) if path.is_file()
    }


class LargestWorker:
    """Watches how much memory the workers of this process take."""

    def __enter__(self) -> "LargestWorker":
        self.bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            for child in psutil.Process().children():
                try:
                    self.bytes = max(self.bytes, child.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue


@pytest.mark.slow
def test_hostile_statements_are_answered_in_time_and_change_nothing(database: Path, tmp_path: Path) -> None:
    """Each within its deadline plus a second (a second try is granted on a busy machine), none with an exception."""
    statements = corpus(tmp_path)
    before = contents(tmp_path)
    assert len(statements) >= 150

    with Executor(LIMITS, workers=2) as executor, LargestWorker() as largest, ThreadPoolExecutor(2) as threads:

        def timed(sql: str) -> tuple[Execution, float]:
            started = time.monotonic()
            execution = executor.execute(sql, database)
            return execution, time.monotonic() - started

        executor.execute_many([("SELECT 1", database)] * 2)
        answers = list(threads.map(timed, statements))
        late = [sql for sql, (_, took) in zip(statements, answers, strict=True) if took > LIMITS.timeout_seconds + 1]
        late = [sql[:100] for sql in late if timed(sql)[1] > LIMITS.timeout_seconds + 1]
        after = [executor.execute(f"SELECT count(*), {number} FROM people", database) for number in range(4)]

    assert late == []
    assert {execution.status for execution, _ in answers} == STATUSES
    assert all(len(render_result(execution, 200).encode()) <= 800 for execution, _ in answers)
    assert [execution.rows[0][0] for execution in after] == [2, 2, 2, 2]
    assert contents(tmp_path) == before
    assert largest.bytes < LIMITS.memory_bytes + 64 * 2**20


def test_no_statement_of_the_hostile_kind_that_writes_is_let_through(database: Path, tmp_path: Path) -> None:
    """Writing, changing the schema, attaching, settings and loading: each is an error, none is a silent success."""
    with Executor(LIMITS, workers=1) as executor:
        lines = [line.replace("{folder}", str(tmp_path)) for line in WRITES.strip().splitlines()]
        let_through = [
            line
            for line, answer in zip(lines, executor.execute_many([(line, database) for line in lines]), strict=True)
            if answer.status != "error"
        ]

    assert let_through == []
