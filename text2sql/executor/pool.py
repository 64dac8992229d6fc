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
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from text2sql.errors import DatabaseError, InfrastructureError
from text2sql.executor.backend import backend_name, shown
from text2sql.executor.cache import AnswerCache
from text2sql.executor.files import file_version
from text2sql.executor.result import Answer, Channel, Execution, Job, Limits, stopped, unpack

GRACE_SECONDS = 0.5  # what a worker gets beyond the deadline before it is killed
START_SECONDS = 60
TRIES = 3
BATCH = 32  # things whose statements go to a worker together
KEPT_TIMEOUTS = 4096  # found ahead and not asked for yet: more than the batches under way can have
CLOSED = "The executor is closed; make a new one."
PACKAGE_ROOT = Path(__file__).resolve().parents[2]

T = TypeVar("T")
Query = tuple[str, Path | str, Limits | None]  # SQL, database, limits (None: the executor's own)


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
        self._timeouts: dict[Job, Execution] = {}
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
        return self._cache_of(job).get(job) or self._timeouts.pop(job, None) or self._run([job])[0]

    def execute_many(
        self, queries: Sequence[tuple[str, Path | str]], *, limits: Limits | None = None
    ) -> list[Execution]:
        """The same for many statements, in their order, by one worker and with one message to it."""
        limits = limits or self.limits
        versions = {database: self._version(database) for _, database in queries}  # one look at each file
        jobs = [Job(str(database), versions[database], sql, limits) for sql, database in queries]
        known = [self._cache_of(job).get(job) for job in jobs]
        fresh = iter(self._run(list(dict.fromkeys(job for job, found in zip(jobs, known, strict=True) if not found))))
        ran: dict[Job, Execution] = {}
        results = []
        for job, found in zip(jobs, known, strict=True):
            if found is None:
                found = ran[job] if job in ran else ran.setdefault(job, next(fresh))
            results.append(found)
        return results

    def start_many(self, queries: Iterable[Query]) -> "Started":
        """
        Lets a worker begin with many statements and does not wait for it, nor for a worker: without a free one nothing
        begins before `Started.finish`, after which `execute` has the results at hand (a time-out once: who asks again
        has it tried anew). Never raises: what cannot be run is left for `execute` to report.
        """
        fresh: dict[Job, None] = {}
        versions: dict[Path | str, tuple[int, ...] | None] = {}  # one look at each file
        for sql, database, limits in queries:
            if database not in versions:
                versions[database] = self._version_if_any(database)
            version = versions[database]
            if version is not None:
                job = Job(str(database), version, sql, limits or self.limits)
                if not self._cache_of(job).get(job):
                    fresh[job] = None
        jobs = list(fresh)
        return Started(self, jobs, self._pool.start(jobs) if jobs else None)

    def ahead(self, things: Iterable[T], queries: Callable[[T], Iterable[Query]]) -> Iterator[T]:
        """
        `things` in their order, for a caller that asks for what `queries` says of each. What it says of a thing has run
        when the thing is given out; meanwhile the workers run that of those which come next.
        """
        remaining = iter(things)
        running: deque[tuple[list[T], Started]] = deque()

        def start() -> None:
            while len(running) < self.workers and (batch := list(islice(remaining, BATCH))):
                running.append((batch, self.start_many(query for thing in batch for query in queries(thing))))

        try:
            start()
            while running:
                batch, started = running.popleft()
                started.finish()
                start()
                yield from batch
        finally:
            for _, started in running:
                started.drop()

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
        return Job(str(database), self._version(database), sql, limits)

    def _version(self, database: Path | str) -> tuple[int, ...]:
        self._check()
        name = str(database)
        return () if backend_name(name) == "postgres" else file_version(name)

    def _version_if_any(self, database: Path | str) -> tuple[int, ...] | None:
        try:
            return self._version(database)
        except (DatabaseError, InfrastructureError):
            return None

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

    def _finish(self, jobs: list[Job], errand: "_Errand | None") -> None:
        answers = errand.answers() if errand else []
        ran = {job: self._settle(job, answer) for job, answer in zip(jobs, answers, strict=False) if not answer.failure}
        left = jobs[len(answers) :]
        with contextlib.suppress(DatabaseError, InfrastructureError):
            self._check()
            ran.update(zip(left, self._run(left), strict=True))
        # beside those of other batches, whose callers have yet to ask
        self._timeouts.update({job: execution for job, execution in ran.items() if execution.status == "timeout"})
        for job in list(self._timeouts)[:-KEPT_TIMEOUTS]:
            self._timeouts.pop(job, None)

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


class Started:
    """Statements that run while their caller does something else. See `Executor.start_many`."""

    def __init__(self, executor: Executor, jobs: list[Job], errand: "_Errand | None") -> None:
        self._executor = executor
        self._jobs = jobs
        self._errand = errand

    def finish(self) -> None:
        """
        Waits until all have run. What was not started, or lost its worker, runs now. Never raises; twice does no harm.
        A worker keeps each statement's deadline by itself; the time after which it is killed if it does not counts
        from when its answer is waited for.
        """
        jobs, self._jobs = self._jobs, []
        if jobs:
            self._executor._finish(jobs, self._errand)

    def drop(self) -> None:
        """Ends what is under way, for a caller that will not ask for it."""
        self._jobs = []
        if self._errand:
            self._errand.drop()


class _Pool:
    """
    At most `size` workers at once; idle ones are kept, the one used last first. Who needs a worker while errands hold
    them all reads the answers to one: its caller may be waiting for just that.
    """

    def __init__(self, size: int) -> None:
        self._changed = threading.Condition()
        self._free = size
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._errands: list[_Errand] = []
        self._closed = False
        self._owner = os.getpid()

    @contextmanager
    def worker(self) -> Iterator["_Worker"]:
        while errand := self._await_slot():
            errand.answers()
        with self.lent(self._take()) as worker:
            yield worker

    def start(self, jobs: list[Job]) -> "_Errand | None":
        """Sends the jobs to a worker, if one is free."""
        with self._changed:
            if not self._free:
                return None
            self._free -= 1
        try:
            errand = _Errand(self, self._take(), jobs)
        except (WorkerLostError, InfrastructureError):
            return None
        with self._changed:
            self._errands.append(errand)
            self._changed.notify_all()  # who waits for a slot can wait for this errand instead
        return errand

    @contextmanager
    def lent(self, worker: "_Worker") -> Iterator["_Worker"]:
        """Takes the worker and its slot back at the end. A worker that is not usable any more is ended."""
        try:
            yield worker
        except BaseException:
            worker.usable = False
            raise
        finally:
            with self._changed:
                self._busy.discard(worker)
                self._errands = [errand for errand in self._errands if errand.worker is not worker]
                keep = worker.usable and not self._closed
                if keep:
                    self._idle.append(worker)
            if not keep:
                worker.stop()
            self._give_slot_back()

    def owned(self) -> bool:
        """A forked child must leave its parent's workers alone."""
        return self._owner == os.getpid()

    def close(self) -> None:
        if not self.owned():
            return
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            busy, errands = set(self._busy), self._errands
        for worker in idle:
            worker.stop()
        for worker in busy:  # the thread that waits for it sees it end, and clears up
            worker.kill()
        for errand in errands:  # nobody may be waiting for it
            errand.answers()

    def _await_slot(self) -> "_Errand | None":
        """None with a slot taken, or an errand whose answers must be read before there is one."""
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._errands)
            if not self._free:
                return self._errands[0]
            self._free -= 1
            return None

    def _give_slot_back(self) -> None:
        with self._changed:
            self._free += 1
            self._changed.notify()

    def _take(self) -> "_Worker":
        """A worker for a slot that was taken."""
        try:
            worker = None
            while worker is None:
                with self._changed:
                    found = self._idle.pop() if self._idle else None
                worker = found or _Worker()
                if not worker.alive():  # killed from outside while it was idle
                    worker.stop()
                    worker = None
            with self._changed:
                if not self._closed:
                    self._busy.add(worker)
                    return worker
            worker.stop()
            raise InfrastructureError(CLOSED)
        except BaseException:
            self._give_slot_back()
            raise


class _Errand:
    """Jobs that were sent to a worker, whose answers anybody reads later. Until then it keeps the worker's slot."""

    def __init__(self, pool: _Pool, worker: "_Worker", jobs: list[Job]) -> None:
        self.worker = worker
        self._pool = pool
        self._jobs = jobs
        self._answers: list[Answer] | None = None
        self._reading = threading.RLock()  # a signal's handler may close the executor in the midst of reading
        try:
            worker.send(jobs)
        except BaseException:
            self.drop()
            raise

    def answers(self) -> list[Answer]:
        """To the first jobs, in their order: fewer than to all if the worker came to an end."""
        if not self._pool.owned():
            return []
        with self._reading:
            if self._answers is None:
                self._answers = []
                with contextlib.suppress(WorkerLostError), self._pool.lent(self.worker):
                    self._answers.extend(answer for _, answer in self.worker.answers(self._jobs))
            return self._answers

    def drop(self) -> None:
        if self._pool.owned():
            with self._reading:
                if self._answers is None:
                    self.worker.kill()
            self.answers()


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
        ours.settimeout(START_SECONDS)
        self._channel = Channel(ours)
        self._started = False
        self.usable = True

    def alive(self) -> bool:
        return self._process.poll() is None

    def run(self, jobs: list[Job]) -> Iterator[tuple[Job, Answer]]:
        """`send` and `answers`."""
        self.send(jobs)
        yield from self.answers(jobs)

    def send(self, jobs: list[Job]) -> None:
        """Returns before they have run. Raises WorkerLostError."""
        with self._lost_if_broken():
            self._channel.send(pickle.dumps(jobs, protocol=5))

    def answers(self, jobs: list[Job]) -> Iterator[tuple[Job, Answer]]:
        """
        To what was sent, as they come. Ends early, with the worker unusable, after a job whose deadline passed
        unanswered. Raises WorkerLostError.
        """
        with self._lost_if_broken():
            self._await_start()
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

    def _await_start(self) -> None:
        """The deadline of a statement must not include the start of its worker, slow on a busy machine."""
        if self._started:
            return
        try:
            self._channel.receive(START_SECONDS)
            self._started = True
            return
        except TimeoutError:
            problem = f"not started within {START_SECONDS} s"
        except (EOFError, OSError):
            problem = f"exit status {self._process.wait()} while starting; its own words are on standard error"
        raise WorkerLostError(problem)

    @contextmanager
    def _lost_if_broken(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            raise WorkerLostError(f"exit status {self._process.poll()}, {type(error).__name__}") from error

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self._process.kill()

    def stop(self) -> None:
        self.kill()
        self._channel.close()
        self._process.wait()
