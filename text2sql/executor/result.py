"""
What an execution is, within which limits it runs, and how both travel between the pool and its workers. Plain data:
imported by the worker processes too.
"""

import marshal
import pickle
import socket
import struct
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Status = Literal["ok", "empty", "error", "timeout", "too_large"]
Row = tuple[Any, ...]
READ_AT_ONCE = 2**16  # bytes
_LENGTH = struct.Struct("!Q")


@dataclass(frozen=True)
class Execution:
    """
    What a statement gave. `ok`: at least one row. `empty`: it ran and gave none. `error`: the database refused it,
    `message` has its words. `timeout`: stopped at its deadline. `too_large`: a limit on rows, bytes or memory was
    reached; `rows` holds those read until then, `message` names the limit. A cell is None, int, float, str or bytes
    (other databases than SQLite also give dates, decimals and so on). `seconds` is the time in the database.
    `hint` is for the reader's eyes only and never changes a score.
    """

    status: Status
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    seconds: float
    message: str | None = None
    hint: str | None = None


@dataclass(frozen=True)
class Limits:
    """
    What one statement may use. `timeout_seconds` is wall time from the moment a worker starts it (waiting for a free
    worker does not count). `memory_bytes` bounds what its worker may allocate for it.
    """

    timeout_seconds: float = 5.0
    max_rows: int = 10_000
    max_cell_bytes: int = 4 * 2**20
    max_result_bytes: int = 32 * 2**20
    memory_bytes: int = 512 * 2**20


def stopped(limits: Limits) -> str:
    """The message of a time-out."""
    return f"stopped after {limits.timeout_seconds:g} s"


def out_of_memory(limits: Limits) -> str:
    """The message of a statement that would have needed more memory than it may have."""
    return f"needed more than {limits.memory_bytes // 2**20:,} MiB of memory"


class Job(NamedTuple):
    """One statement for a worker. `version` changes when the database file does, so that it is opened anew."""

    database: str
    version: tuple[int, ...]
    sql: str
    limits: Limits


class Answer(NamedTuple):
    """
    A worker's reply to one job. `failure` is set when the machine or the file failed, not the SQL. `size` is about the
    bytes that the rows take. `repeatable` is False when the statement reads the clock or random numbers, or when
    another run could end otherwise; such an answer is not cached. After a `last` answer the worker is replaced, since
    its memory ran out once.
    """

    execution: Execution
    size: int = 0
    repeatable: bool = True
    failure: Literal["database", "infrastructure"] | None = None
    last: bool = False


def pack(answer: Answer) -> bytes:
    """Bytes for `unpack`. Plain values, which is all that SQLite has, take marshal's quick way."""
    plain = (*vars(answer.execution).values(), *answer[1:])
    try:
        return b"m" + marshal.dumps(plain)
    except ValueError:
        return b"p" + pickle.dumps(plain, protocol=5)


def unpack(data: bytes) -> Answer:
    body = memoryview(data)[1:]
    # written by a worker process of our own, from values that it read from a database
    values = marshal.loads(body) if data[:1] == b"m" else pickle.loads(body)  # noqa: S301, S302
    return Answer(Execution(*values[:6]), *values[6:])


class Channel:
    """
    Messages over a socket. What has arrived is read at once, however many messages it holds: fewer calls to the system.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._arrived = end.makefile("rb", buffering=READ_AT_ONCE)

    def send(self, message: bytes) -> None:
        """Raises OSError: TimeoutError when nobody reads for as long as the last `receive` would wait."""
        self._socket.sendall(_LENGTH.pack(len(message)) + message)

    def receive(self, timeout_seconds: float | None = None) -> bytes:
        """The next message. Raises TimeoutError; EOFError when the other end is closed; OSError."""
        if timeout_seconds != self._socket.gettimeout():  # setting it is a call to the system, too
            self._socket.settimeout(timeout_seconds)
        return self._read(_LENGTH.unpack(self._read(_LENGTH.size))[0])

    def close(self) -> None:
        self._arrived.close()
        self._socket.close()

    def _read(self, size: int) -> bytes:
        data: bytes = self._arrived.read(size)
        if len(data) < size:
            raise EOFError
        return data
