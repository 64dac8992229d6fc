"""
One worker process: `python -m text2sql.executor.worker DESCRIPTOR PARENT`.

Reads lists of jobs from a socket it inherited, answers each job on its own, and never outlives its parent: a thread
watches the socket and the parent's process id, so that the worker ends within a second even when the parent was
killed. It imports nothing but the standard library and the database's own driver.
"""

import contextlib
import os
import pickle
import resource
import select
import signal
import socket
import sys
import threading
from collections import OrderedDict
from pathlib import Path

from text2sql.errors import DatabaseError
from text2sql.executor.backend import Backend, backend_name, open_backend
from text2sql.executor.result import Answer, Channel, Execution, Job, out_of_memory, pack

OPEN_DATABASES = 16


def main(descriptor: int, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    with contextlib.suppress(OSError):  # when memory runs out, this is the process to give up
        Path("/proc/self/oom_score_adj").write_text("900", encoding="ascii")
    threading.Thread(target=_end_with_parent, args=(descriptor, parent), daemon=True).start()
    parent_end = Channel(socket.socket(fileno=descriptor))
    databases = _Databases()
    parent_end.send(b"ready")
    while True:
        try:
            jobs: list[Job] = pickle.loads(parent_end.receive())  # noqa: S301 - our own parent wrote it
        except (EOFError, OSError):
            return
        for job in jobs:
            answer = databases.answer(job)
            parent_end.send(pack(answer))
            if answer.last:
                return


def _end_with_parent(descriptor: int, parent: int) -> None:
    hung_up = select.poll()
    hung_up.register(descriptor, 0)
    while os.getppid() == parent and not hung_up.poll(1000):
        pass
    os._exit(0)


class _Databases:
    """The connections of this worker, the least recently used one closed first."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, tuple[tuple[int, ...], Backend]] = OrderedDict()
        self._only_sqlite = True
        self._mapped_at_start = _mapped_bytes()
        self._bound = self._most_memory = resource.getrlimit(resource.RLIMIT_AS)[0]

    def answer(self, job: Job) -> Answer:
        try:
            backend = self._backend(job)
            self._limit_memory(job)
            answer = backend.run(job.sql, job.limits)
        except MemoryError:
            answer = Answer(Execution("too_large", (), (), 0.0, out_of_memory(job.limits)), last=True)
        except DatabaseError as error:
            answer = Answer(Execution("error", (), (), 0.0, str(error)), failure="database")
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            answer = Answer(Execution("error", (), (), 0.0, message), failure="infrastructure")
        if answer.failure or answer.execution.status in ("timeout", "too_large"):
            self._drop(job.database)  # give back what the statement may still hold
        return answer

    def _backend(self, job: Job) -> Backend:
        known = self._open.get(job.database)
        if known and known[0] == job.version:
            self._open.move_to_end(job.database)
            return known[1]
        self._drop(job.database)
        while len(self._open) >= OPEN_DATABASES:
            self._drop(next(iter(self._open)))
        if backend_name(job.database) != "sqlite":
            self._only_sqlite = False
            self._bound_memory(self._most_memory)  # libraries are loaded now, and they map what they like
        backend = open_backend(job)
        self._open[job.database] = (job.version, backend)
        return backend

    def _drop(self, database: str) -> None:
        if known := self._open.pop(database, None):
            known[1].close()

    def _limit_memory(self, job: Job) -> None:
        """What the process has mapped without the job, plus the job's share. DuckDB keeps to a limit of its own."""
        if backend_name(job.database) != "duckdb":
            mapped = self._mapped_at_start if self._only_sqlite else _mapped_bytes()
            self._bound_memory(mapped + job.limits.memory_bytes)

    def _bound_memory(self, limit: int) -> None:
        if limit != self._bound:
            self._bound = limit
            most = resource.getrlimit(resource.RLIMIT_AS)[1]
            with contextlib.suppress(ValueError, OSError):  # not every system can bound it
                resource.setrlimit(resource.RLIMIT_AS, (limit, most))


def _mapped_bytes() -> int:
    """Address space in use; where /proc does not say, a guess that leaves the interpreter room."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    except OSError:
        return 2**30
    return int(pages) * resource.getpagesize()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
