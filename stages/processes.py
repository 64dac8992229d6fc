"""
A stage's work shared out over processes: what runs on CPUs is then done on all cores.

The processes are forked, so they begin with everything that is loaded already; each takes the next task when it is done
with one. They end with their parent, however that ends.
"""

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from stages.context import StageContext
from text2sql.errors import InfrastructureError, Text2SqlError

T = TypeVar("T")
Work = Callable[[StageContext, Iterator[T]], None]


def share_out(context: StageContext, work: Work[T], tasks: Sequence[T], processes: int) -> None:
    """
    `work(context, its tasks)` in so many processes; what they log and say comes from this one. Nothing here may have
    computed with torch before, since its threads do not survive a fork. Raises what a process raised, as soon as it
    did; InfrastructureError when one was lost. The others are ended then.
    """
    fork = multiprocessing.get_context("fork")
    taken = fork.Value("i", 0)
    running: dict[Connection, Any] = {}
    try:
        for _ in range(processes):
            ours, theirs = fork.Pipe(duplex=False)
            process = fork.Process(target=_process, args=(theirs, context, work, tasks, taken, processes), daemon=True)
            process.start()
            theirs.close()
            running[ours] = process
        while running:
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)
                _hear(context, connection, running)
    finally:
        for process in running.values():
            process.kill()
            process.join()


def _hear(context: StageContext, connection: Connection, running: dict[Connection, Any]) -> None:
    try:
        kind, *values = connection.recv()
    except EOFError:
        process = running.pop(connection)
        process.join()
        raise InfrastructureError(
            f"{context.key}: one of the processes that shared the work ended with status {process.exitcode} (out of "
            "memory?). Finished shards are kept; run the same command again to go on, with engine.processes: 1 if memory "
            "is short."
        ) from None
    if kind == "log":
        context.log(*values)
    elif kind == "say":
        context.say(*values)
    elif kind == "error":
        raise values[0]
    else:
        running.pop(connection).join()


def _process(
    connection: Connection, context: StageContext, work: Work[T], tasks: Sequence[T], taken: Any, processes: int
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    settings = context.profile.executor
    part = settings.model_copy(update={"workers": max(1, settings.workers // processes)})
    told = replace(
        context,
        profile=context.profile.model_copy(update={"executor": part}),
        log=lambda values, step: connection.send(("log", dict(values), step)),
        say=lambda text: connection.send(("say", text)),
    )
    try:
        import torch

        torch.set_num_threads(max(1, cores() // processes))
        work(told, _next_ones(tasks, taken))
        connection.send(("done",))
    except Exception as error:
        connection.send(("error", _sendable(error)))


def _next_ones(tasks: Sequence[T], taken: Any) -> Iterator[T]:
    while True:
        with taken.get_lock():
            number = taken.value
            taken.value += 1
        if number >= len(tasks):
            return
        yield tasks[number]


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - made on the line itself
    except Exception:
        return Text2SqlError(f"{type(error).__name__}: {error}")
    return error


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
