"""
`python -m text2sql.executor DATABASE [--timeout S] [--max-rows N] < query.sql`: one statement, one JSON result.

Exit status: 0 the statement ran (also to no rows), 1 it failed, timed out or was too large, 2 the database or the
arguments cannot be used, 3 the machine failed.
"""

import argparse
import math
import sys
from typing import Any

from text2sql.errors import DatabaseError, InfrastructureError
from text2sql.executor import Execution, Executor, Limits
from text2sql.textfiles import json_line


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m text2sql.executor", description="Runs one SQL statement, read-only."
    )
    parser.add_argument("database", help="an SQLite or DuckDB file, or a postgresql:// address")
    parser.add_argument("--timeout", type=float, default=Limits.timeout_seconds, metavar="SECONDS")
    parser.add_argument("--max-rows", type=int, default=Limits.max_rows, metavar="N")
    arguments = parser.parse_args()
    sql = sys.stdin.buffer.read().decode("utf-8", errors="replace")
    try:
        with Executor(Limits(arguments.timeout, arguments.max_rows), workers=1) as executor:
            execution = executor.execute(sql, arguments.database)
    except (DatabaseError, InfrastructureError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, DatabaseError) else 3
    sys.stdout.buffer.write(json_line(as_json(execution)))
    return 0 if execution.status in ("ok", "empty") else 1


def as_json(execution: Execution) -> dict[str, Any]:
    """Valid JSON for every cell: a blob is {"blob": hex}, an infinity {"real": "Infinity"}."""
    return {
        "status": execution.status,
        "columns": list(execution.columns),
        "rows": [[_cell(cell) for cell in row] for row in execution.rows],
        "seconds": round(execution.seconds, 6),
        "message": execution.message,
        "hint": execution.hint,
    }


def _cell(cell: Any) -> Any:
    if isinstance(cell, bytes):
        return {"blob": cell.hex()}
    if isinstance(cell, float) and not math.isfinite(cell):
        return {"real": "Infinity" if cell > 0 else "-Infinity" if cell < 0 else "NaN"}
    return cell if cell is None or isinstance(cell, str | int | float) else str(cell)


if __name__ == "__main__":
    sys.exit(main())
