"""
Runs SQL on benchmark databases: read-only, within limits, in worker processes. See `pool.Executor`.

    python -m text2sql.executor DATABASE --timeout 5 --max-rows 100 < query.sql
"""

from text2sql.executor.files import check_sqlite_file, is_sqlite_file
from text2sql.executor.pool import Executor, Query, Started
from text2sql.executor.render import render_result
from text2sql.executor.result import Execution, Limits, Row, Status

__all__ = [
    "Execution",
    "Executor",
    "Limits",
    "Query",
    "Row",
    "Started",
    "Status",
    "check_sqlite_file",
    "is_sqlite_file",
    "render_result",
]
