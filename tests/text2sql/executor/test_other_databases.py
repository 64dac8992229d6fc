"""DuckDB and a real PostgreSQL behind the same executor: the same statuses, only reading."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from text2sql.errors import DatabaseError, InfrastructureError
from text2sql.executor import Executor, Limits, render_result

duckdb = pytest.importorskip("duckdb")

TABLE = "CREATE TABLE bus(code TEXT, seats INTEGER, since DATE)"
ROWS = "INSERT INTO bus VALUES ('b7', 40, '2020-01-31'), ('b1', 52, NULL)"


@pytest.fixture(scope="module")
def duckdb_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("duckdb") / "town.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(TABLE)
        connection.execute(ROWS)
    return str(path)


@pytest.fixture(scope="module")
def postgres_address() -> Iterator[str]:
    """A server of our own in a temporary folder, run by a user who is not root; ends with the tests."""
    programs = find_postgres()
    folder = Path(tempfile.mkdtemp(prefix="text2sql-postgres-"))
    as_user = run_as("postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name)
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    data, port = folder / "data", free_port()
    try:
        command(as_user, programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
        settings = f"-p {port} -k {folder} -c listen_addresses='' -c fsync=off"
        command(as_user, programs / "pg_ctl", "-D", data, "-o", settings, "-l", folder / "log", "-w", "start")
        owner = f"postgresql://postgres@/postgres?host={folder}&port={port}"
        try:
            prepare(owner)
            yield owner.replace("//postgres@", "//reader@")
        finally:
            command(as_user, programs / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find_postgres() -> Path:
    """The folder with PostgreSQL's programs. Missing in CI is a failure; elsewhere the tests are skipped."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if program := shutil.which("initdb"):
        found.append(Path(program).parent)
    if not found:
        message = "PostgreSQL is not installed: install the package postgresql (apt-get install postgresql)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return found[0]


def run_as(user: str) -> dict[str, object]:
    account = pwd.getpwnam(user)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}


def command(as_user: dict[str, object], *words: object) -> None:
    with tempfile.TemporaryFile() as output:  # a pipe would be held open by the server that pg_ctl leaves behind
        ran = subprocess.run(list(map(str, words)), stdout=output, stderr=output, cwd="/", check=False, **as_user)  # type: ignore[call-overload]
        output.seek(0)
        assert ran.returncode == 0, output.read().decode()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def prepare(address: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(address, autocommit=True) as connection:
        for statement in (TABLE, ROWS, "CREATE ROLE reader LOGIN", "GRANT ALL ON bus TO reader"):
            connection.execute(statement)
        connection.execute("GRANT CREATE ON SCHEMA public TO reader")
        connection.execute("CREATE SEQUENCE numbers")
        connection.execute("GRANT ALL ON numbers TO reader")


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor(Limits(timeout_seconds=1, max_rows=100), workers=1) as running:
        yield running


@pytest.fixture(params=["duckdb", "postgres"])
def address(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("duckdb_file" if request.param == "duckdb" else "postgres_address"))


@pytest.mark.parametrize(
    ("sql", "status", "said"),
    [
        (
            "SELECT * FROM bus ORDER BY seats",
            "ok",
            "2 rows (code, seats, since): ('b7', 40, 2020-01-31), ('b1', 52, NULL)",
        ),
        ("SELECT code FROM bus WHERE seats > 99;", "empty", "0 rows (code)"),
        ("WITH x AS (SELECT 1 AS a) SELECT a FROM x -- done", "ok", "1 row (a): (1)"),
        ("", "empty", "no result"),
        ("SELECT nothing FROM bus", "error", "nothing"),
        ("SELECT '\ud800'", "error", "surrogates"),
        ("SELECT n FROM generate_series(1, 100000) AS t(n)", "too_large", "more than 100 rows"),
        ("SELECT repeat('x', 5000000)", "too_large", "a cell of more than"),
        (
            "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b",
            "timeout",
            "stopped after 1 s",
        ),
        ("SELECT 1; SELECT 2", "error", ""),
        ("SELECT 1; DROP TABLE bus", "error", ""),
        ("INSERT INTO bus VALUES ('x', 1, NULL)", "error", ""),
        ("UPDATE bus SET seats = 0", "error", ""),
        ("DELETE FROM bus", "error", ""),
        ("DROP TABLE bus", "error", ""),
        ("CREATE TABLE evil(a INTEGER)", "error", ""),
        ("COPY bus TO '/tmp/text2sql-evil.csv'", "error", ""),
        ("SET memory_limit = '100GB'", "error", ""),
        ("BEGIN", "error", ""),
        ("ROLLBACK", "error", ""),
    ],
)
def test_statement_has_the_same_status_everywhere(
    executor: Executor, address: str, sql: str, status: str, said: str
) -> None:
    """Rows, no rows, errors, limits and time-outs; what would write is an error."""
    execution = executor.execute(sql, address)

    assert execution.status == status, execution.message
    assert said in render_result(execution, 300)


def test_data_are_unchanged_and_the_worker_goes_on(executor: Executor, address: str) -> None:
    """After all that was refused, both rows are still there."""
    for sql in ("DELETE FROM bus", "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b"):
        executor.execute(sql, address)

    assert executor.execute("SELECT count(*), sum(seats) FROM bus", address).rows == ((2, 92),)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT content FROM read_text('/etc/passwd')",
        "SELECT * FROM glob('/etc/*')",
        "ATTACH '/tmp/text2sql-evil.duckdb'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "PRAGMA database_list",
        "EXPORT DATABASE '/tmp/text2sql-evil'",
        "EXPLAIN ANALYZE INSERT INTO bus VALUES ('x', 1, NULL)",
    ],
)
def test_duckdb_reaches_nothing_outside_its_file(executor: Executor, duckdb_file: str, sql: str) -> None:
    """Neither files nor extensions nor settings."""
    assert executor.execute(sql, duckdb_file).status == "error"
    assert sorted(path.name for path in Path(duckdb_file).parent.iterdir()) == ["town.duckdb"]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT set_config('transaction_read_only', 'off', true), nextval('numbers')",
        "SELECT nextval('numbers')",
        "SELECT pg_read_file('/etc/passwd')",
        "SELECT lo_import('/etc/passwd')",
        "WITH gone AS (DELETE FROM bus RETURNING *) SELECT * FROM gone",
        "SELECT * INTO evil FROM bus",
        "SELECT * FROM bus FOR UPDATE",
        "DO $$ BEGIN DELETE FROM bus; END $$",
        "EXPLAIN ANALYZE DELETE FROM bus",
        "COPY (SELECT 1) TO PROGRAM 'touch /tmp/text2sql-evil'",
    ],
)
def test_postgres_lets_nothing_but_reading_through(executor: Executor, postgres_address: str, sql: str) -> None:
    """Functions and statements with a side effect are errors of the statement."""
    assert executor.execute(sql, postgres_address).status == "error"


def test_postgres_stops_a_sleeping_statement(executor: Executor, postgres_address: str) -> None:
    """The server's own deadline holds; a statement cannot lengthen it for itself."""
    sql = "SELECT set_config('statement_timeout', '0', true), pg_sleep(600)"

    assert executor.execute(sql, postgres_address).status == "timeout"
    assert executor.execute("SELECT 1", postgres_address).rows == ((1,),)


def test_postgres_superuser_is_refused(executor: Executor, postgres_address: str) -> None:
    """A superuser could read the server's files; the message says what to do."""
    address = postgres_address.replace("//reader@", "//postgres:secret@")

    with pytest.raises(DatabaseError, match="superuser; connect with one that may only read") as error:
        executor.execute("SELECT 1", address)

    assert "secret" not in str(error.value)


def test_postgres_server_that_is_not_there_is_no_error_of_the_query(executor: Executor) -> None:
    """Connection problems raise; they are never shown to a model."""
    with pytest.raises(InfrastructureError, match="nowhere"):
        executor.execute("SELECT 1", "postgresql://reader@/nowhere?host=/nowhere")
