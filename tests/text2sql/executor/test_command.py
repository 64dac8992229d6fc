"""`python -m text2sql.executor DATABASE < query.sql`."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

MakeDatabase = Callable[..., Path]


def command(*arguments: object, sql: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "text2sql.executor", *map(str, arguments)],
        input=sql.encode(),
        capture_output=True,
        check=False,
        env={"LC_ALL": "C", "PYTHONUTF8": "0", "PATH": "/usr/bin:/bin"},
    )


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def test_result_is_one_line_of_valid_json_in_any_locale(make_database: MakeDatabase) -> None:
    """Case cl-non-utf8-locale: UTF-8 in and out under LC_ALL=C; blobs and infinities are marked."""
    database = make_database("CREATE TABLE t(a); INSERT INTO t VALUES ('naïve 大阪')")

    ran = command(database, sql="SELECT a, 'é', X'00FF', 1e400, NULL FROM t WHERE a LIKE '%大阪'")
    result = json.loads(ran.stdout, parse_constant=refuse_constant)

    assert ran.returncode == 0
    assert result["status"] == "ok"
    assert result["rows"] == [["naïve 大阪", "é", {"blob": "00ff"}, {"real": "Infinity"}, None]]
    assert set(result) == {"status", "columns", "rows", "seconds", "message", "hint"}


def test_exit_status_tells_what_failed(make_database: MakeDatabase, tmp_path: Path) -> None:
    """Case cl-success-that-was-none: a failed statement, a limit and a missing database are no success."""
    database = make_database("CREATE TABLE t(a)")
    endless = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n FROM r) SELECT * FROM r"

    assert command(database, sql="SELECT nothing").returncode == 1
    assert json.loads(command(database, "--max-rows", 2, sql=endless).stdout)["rows"] == [[1], [1]]
    assert json.loads(command(database, "--timeout", 0.2, sql=f"{endless} WHERE n > 1").stdout)["status"] == "timeout"
    assert command(tmp_path / "missing.sqlite", sql="SELECT 1").returncode == 2
