"""A stage's work shared out over processes."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from stages.context import StageContext
from stages.processes import share_out
from text2sql.errors import DatabaseError, InfrastructureError


@pytest.fixture
def context(make_context: Callable[..., StageContext]) -> StageContext:
    return make_context("round_1/trajectories", [])


def test_every_task_is_done_once_by_all_processes(context: StageContext) -> None:
    """Each process takes the next task when it is done with one; together they do all of them, none twice."""
    heard: list[tuple[Mapping[str, float], int]] = []

    def work(told: StageContext, tasks: Iterator[int]) -> None:
        for task in tasks:
            time.sleep(0.05)
            told.log({"process": float(os.getpid())}, task)

    share_out(replace(context, log=lambda values, step: heard.append((values, step))), work, range(12), 2)

    assert list(range(12)) == sorted(step for _, step in heard)
    assert 2 == len({values["process"] for values, _ in heard})


def test_a_process_computes_with_its_share_of_the_cores(context: StageContext) -> None:
    """Two processes on all cores would hinder each other with as many threads each as there are cores."""
    said: list[str] = []

    def work(told: StageContext, tasks: Iterator[int]) -> None:
        import torch

        told.say(f"{torch.get_num_threads()} {told.profile.executor.workers}")

    share_out(replace(context, say=said.append), work, [], os.cpu_count() or 1)

    assert ["1 1"] * (os.cpu_count() or 1) == said


def test_an_error_of_one_process_ends_all(context: StageContext) -> None:
    """The error is the one that was raised, with its words; the other processes do not go on behind the back."""

    def work(told: StageContext, tasks: Iterator[int]) -> None:
        if next(tasks) == 0:
            raise DatabaseError("shop.sqlite cannot be used")
        time.sleep(60)

    before = psutil.Process().children()  # of tests before this one: a multiprocessing helper lives as long as pytest
    with pytest.raises(DatabaseError, match=r"shop\.sqlite cannot be used"):
        share_out(context, work, range(2), 2)

    assert not set(psutil.Process().children()) - set(before)


def test_a_process_that_is_killed_stops_the_stage_with_the_reason(context: StageContext) -> None:
    """A process can be killed for memory: the stage says so and what to do, and does not wait for it forever."""

    def work(told: StageContext, tasks: Iterator[int]) -> None:
        if next(tasks) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    with pytest.raises(InfrastructureError, match=r"ended with status -9.*engine\.processes: 1"):
        share_out(context, work, range(2), 2)


def test_processes_end_with_their_parent(tmp_path: Path) -> None:
    """A stage that is killed (-9) leaves nothing behind that computes on."""
    script = """
        import time
        from text2sql.config import ModelSettings, Profile
        from stages.context import StageContext
        from stages.processes import share_out

        def work(told, tasks):
            print(next(tasks), flush=True)
            time.sleep(600)

        profile = Profile(name="x", model=ModelSettings(init="scratch"))
        share_out(StageContext(profile, "k", {}, None, None, print, print), work, range(2), 2)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    assert ["0\n", "1\n"] == sorted([parent.stdout.readline(), parent.stdout.readline()])
    children = psutil.Process(parent.pid).children()
    assert 2 == len(children)

    parent.kill()
    parent.wait()

    assert ([], 2) == (psutil.wait_procs(children, timeout=30)[1], len(children))
