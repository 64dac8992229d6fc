"""
Executor: a bounded pool of worker processes that run SQL read-only, each statement within its limits.

    with Executor(Limits(timeout_seconds=2), workers=4) as executor:
        execution = executor.execute("SELECT count(*) FROM singer", Path("concert_singer.sqlite"))

A statement that fails is data (`Execution.status`). DatabaseError: the file is missing or is no database.
InfrastructureError: the machine failed, also when tried again. Workers start when they are first needed, hold no lock,
import nothing of the caller (safe beside torch), are killed and replaced when a deadline passes unanswered, and end
with their parent. All methods may be called from several threads; after a fork the child gets workers of its own.
"""

import asyncio
import contextlib
import os
import pickle
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from text2sql.errors import DatabaseError, InfrastructureError
from text2sql.executor.backend import backend_name, shown
from text2sql.executor.cache import AnswerCache
from text2sql.executor.files import file_version
from text2sql.executor.result import Answer, Channel, Execution, Job, Limits, stopped, unpack

GRACE_SECONDS = 0.5  # what a worker gets beyond the deadline before it is killed
START_SECONDS = 60
TRIES = 3
CLOSED = "The executor is closed; make a new one."
PACKAGE_ROOT = Path(__file__).resolve().parents[2]


class WorkerLostError(Exception):
    """A worker process ended instead of answering, or did not start."""


class Executor:
    """
    See the module's text. `cache_bytes` bounds the results kept for repeated statements; 0 keeps none. Half of it is for
    statements that run within other limits than the executor's own: so do golds, and no candidate displaces them.
    """

    def __init__(self, limits: Limits | None = None, workers: int = 2, *, cache_bytes: int = 128 * 2**20) -> None:
        if workers < 1:
            raise ValueError(f"workers is {workers}; at least 1 is needed")
        self.limits = limits or Limits()
        self.workers = workers
        self._cache_bytes = cache_bytes
        self._closed = False
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._process_id = os.getpid()
        self._cache, self._cache_apart = (AnswerCache(self._cache_bytes // 2) for _ in range(2))
        self._pool = _Pool(self.workers)
        self._threads: ThreadPoolExecutor | None = None
        self._threads_lock = threading.Lock()
        weakref.finalize(self, self._pool.close)

    def execute(self, sql: str, database: Path | str, *, limits: Limits | None = None) -> Execution:
        """
        Runs one statement on `database` (an SQLite or DuckDB file, or a postgresql:// address); blocks until it is
        answered, at most the time-out plus a second once a worker is free.
        """
        job = self._job(sql, database, limits or self.limits)
        return self._cache_of(job).get(job) or self._run([job])[0]

    def execute_many(
        self, queries: Sequence[tuple[str, Path | str]], *, limits: Limits | None = None
    ) -> list[Execution]:
        """The same for many statements, in their order, by one worker and with one message to it."""
        limits = limits or self.limits
        blank = {database: self._job("", database, limits) for _, database in queries}  # one look at each file
        jobs = [blank[database]._replace(sql=sql) for sql, database in queries]
        known = [self._cache_of(job).get(job) for job in jobs]
        fresh = iter(self._run(list(dict.fromkeys(job for job, found in zip(jobs, known, strict=True) if not found))))
        ran: dict[Job, Execution] = {}
        results = []
        for job, found in zip(jobs, known, strict=True):
            if found is None:
                found = ran[job] if job in ran else ran.setdefault(job, next(fresh))
            results.append(found)
        return results

    async def aexecute(self, sql: str, database: Path | str, *, limits: Limits | None = None) -> Execution:
        """`execute` without blocking the event loop; any number may be in flight."""
        job = self._job(sql, database, limits or self.limits)
        if known := self._cache_of(job).get(job):
            return known
        call = partial(self.execute, sql, database, limits=limits)
        return await asyncio.get_running_loop().run_in_executor(self._thread_pool(), call)

    def close(self) -> None:
        """Ends all workers, busy ones too. Calling it twice does no harm."""
        self._closed = True
        self._pool.close()
        if self._threads:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _job(self, sql: str, database: Path | str, limits: Limits) -> Job:
        self._check()
        name = str(database)
        version = () if backend_name(name) == "postgres" else file_version(name)
        return Job(name, version, sql, limits)

    def _cache_of(self, job: Job) -> AnswerCache:
        own = job.limits is self.limits or job.limits == self.limits  # comparing them costs more than looking
        return self._cache if own else self._cache_apart

    def _thread_pool(self) -> ThreadPoolExecutor:
        with self._threads_lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self.workers, thread_name_prefix="executor")
            return self._threads

    def _check(self) -> None:
        if self._process_id != os.getpid():
            self._start_afresh()
        if self._closed:
            raise InfrastructureError(CLOSED)

    def _run(self, jobs: list[Job]) -> list[Execution]:
        """Runs jobs on one worker, which is replaced when it must be killed or was lost."""
        executions: list[Execution] = []
        tries = 0
        while len(executions) < len(jobs):
            done = len(executions)
            try:
                with self._pool.worker() as worker:
                    for job, answer in worker.run(jobs[done:]):
                        executions.append(self._settle(job, answer))
            except WorkerLostError as lost:
                tries = tries + 1 if len(executions) == done else 1
                if tries == TRIES or self._closed:
                    raise InfrastructureError(
                        f"A worker process of the executor was lost {tries} times on one statement ({lost}): "
                        f"{jobs[len(executions)].sql[:200]!r}"
                    ) from None
        return executions

    def _settle(self, job: Job, answer: Answer) -> Execution:
        execution = answer.execution
        if answer.failure == "database":
            raise DatabaseError(f"{shown(job.database)} cannot be used: {execution.message}")
        if answer.failure == "infrastructure":
            raise InfrastructureError(f"{shown(job.database)}: {execution.message} (while running {job.sql[:200]!r})")
        if answer.repeatable:
            self._cache_of(job).put(job, answer)
        return execution


class _Pool:
    """At most `size` workers at once; idle ones are kept, the one used last first."""

    def __init__(self, size: int) -> None:
        self._slots = threading.BoundedSemaphore(size)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._closed = False
        self._owner = os.getpid()

    @contextmanager
    def worker(self) -> Iterator["_Worker"]:
        with self._slots:
            worker = self._take()
            try:
                yield worker
            except BaseException:
                worker.usable = False
                raise
            finally:
                with self._lock:
                    self._busy.discard(worker)
                    keep = worker.usable and not self._closed
                    if keep:
                        self._idle.append(worker)
                if not keep:
                    worker.stop()

    def _take(self) -> "_Worker":
        worker = None
        while worker is None:
            with self._lock:
                found = self._idle.pop() if self._idle else None
            worker = found or _Worker()
            if not worker.alive():  # killed from outside while it was idle
                worker.stop()
                worker = None
        with self._lock:
            if not self._closed:
                self._busy.add(worker)
                return worker
        worker.stop()
        raise InfrastructureError(CLOSED)

    def close(self) -> None:
        if self._owner != os.getpid():  # a forked child must leave its parent's workers alone
            return
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = set(self._busy)
        for worker in idle:
            worker.stop()
        for worker in busy:  # the thread that waits for it sees it end, and clears up
            worker.kill()


class _Worker:
    """One process and the socket to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "text2sql.executor.worker", str(theirs.fileno()), str(os.getpid())]
        search = os.pathsep.join(filter(None, (str(PACKAGE_ROOT), os.environ.get("PYTHONPATH", ""))))
        try:
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": search},
            )
        except OSError as error:
            ours.close()
            raise InfrastructureError(f"A worker process of the executor cannot start: {error}") from error
        finally:
            theirs.close()
        self._channel = Channel(ours)
        self.usable = True
        self._await_start()

    def _await_start(self) -> None:
        """The deadline of a statement must not include the start of its worker, slow on a busy machine."""
        try:
            self._channel.receive(START_SECONDS)
            return
        except TimeoutError:
            problem = f"not started within {START_SECONDS} s"
        except (EOFError, OSError):
            problem = f"exit status {self._process.wait()} while starting; its own words are on standard error"
        self.stop()
        raise WorkerLostError(problem)

    def alive(self) -> bool:
        return self._process.poll() is None

    def run(self, jobs: list[Job]) -> Iterator[tuple[Job, Answer]]:
        """
        Answers as they come. Ends early, with the worker unusable, after a job whose deadline passed unanswered.
        Raises WorkerLostError.
        """
        try:
            self._channel.send(pickle.dumps(jobs, protocol=5))
            for job in jobs:
                patience = job.limits.timeout_seconds + GRACE_SECONDS
                try:
                    answer = unpack(self._channel.receive(patience))
                except TimeoutError:
                    self.usable = False
                    yield job, Answer(Execution("timeout", (), (), patience, stopped(job.limits)), repeatable=False)
                    return
                self.usable = not answer.last
                yield job, answer
                if answer.last:
                    return
        except (EOFError, OSError) as error:
            self.usable = False
            raise WorkerLostError(f"exit status {self._process.poll()}, {type(error).__name__}") from error

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self._process.kill()

    def stop(self) -> None:
        self.kill()
        self._channel.close()
        self._process.wait()
