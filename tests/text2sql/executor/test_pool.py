"""The pool: deadlines that hold, workers that are replaced, nothing left behind, one answer for one statement."""

import asyncio
import contextlib
import gc
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from text2sql.errors import DatabaseError, InfrastructureError
from text2sql.executor import Execution, Executor, Limits
from text2sql.executor.result import Channel

MakeDatabase = Callable[..., Path]

ENDLESS = "WITH RECURSIVE walk(step) AS (VALUES (0) UNION ALL SELECT step+2 FROM walk) SELECT max(step) FROM walk"
CROSS_JOIN = "SELECT count(*) FROM a w, a x, a y, a z WHERE w.n < 0.5 + x.n + y.n + z.n"
NUMBERS = (
    "CREATE TABLE a(n INTEGER);"
    "INSERT INTO a WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM r WHERE n<300) SELECT n FROM r"
)


def all_workers() -> set[psutil.Process]:
    found = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
            if "text2sql.executor.worker" in child.cmdline():
                found.add(child)
    return found


def test_messages_that_arrive_together_come_one_by_one() -> None:
    """Short, empty and long ones, however they were cut on the way; then the end is an EOFError, silence a TimeoutError."""
    one, other = (Channel(end) for end in socket.socketpair())
    messages = [b"a", b"", b"b" * 100_000, b"c"]
    with ThreadPoolExecutor(1) as threads:
        sending = threads.submit(lambda: [one.send(message) for message in messages])
        received = [other.receive(5) for _ in messages]
        sending.result()
    with pytest.raises(TimeoutError):
        other.receive(0.01)
    one.close()

    assert messages == received
    with pytest.raises((EOFError, OSError)):
        other.receive(5)
    other.close()


OTHERS: set[psutil.Process] = set()


@pytest.fixture(autouse=True)
def workers_of_other_tests() -> None:
    """Executors that a fixture of another file keeps for the session are none of ours."""
    OTHERS.clear()
    OTHERS.update(all_workers())


def workers_of_this_process() -> list[psutil.Process]:
    return list(all_workers() - OTHERS)


def timed(call: Callable[[], Execution]) -> tuple[Execution, float]:
    before = time.monotonic()
    return call(), time.monotonic() - before


def test_endless_recursion_is_a_timeout_and_the_same_worker_goes_on(make_database: MakeDatabase) -> None:
    """Case ex-recursive-query-without-end: stopped at the limit; the one worker answers the next statement."""
    database = make_database("CREATE TABLE t(a)")
    with Executor(Limits(timeout_seconds=1), workers=1) as executor:
        started = time.monotonic()
        execution = executor.execute(ENDLESS, database)
        took = time.monotonic() - started

        assert (execution.status, execution.message) == ("timeout", "stopped after 1 s")
        assert took < 10  # a hang, not the speed of the machine, is what this would catch
        assert executor.execute("SELECT 1", database).rows == ((1,),)


def test_statement_that_cannot_be_interrupted_ends_with_its_worker(make_database: MakeDatabase) -> None:
    """What SQLite does not interrupt is killed with its process, and a fresh worker takes over."""
    database = make_database("CREATE TABLE t(a)")
    with Executor(Limits(timeout_seconds=0.2), workers=1) as executor:
        executor.execute("SELECT 1", database)
        (before,) = workers_of_this_process()
        # fewer steps than between two checks of the deadline, each through a text of four million letters
        patterns = [f"x LIKE '%{letter * 3}%{letter}_{letter}%{letter * 9}%'" for letter in "GHIJKLMNOPQRSTUVWXYZ" * 8]
        sql = f"SELECT * FROM (SELECT hex(randomblob(1900000)) AS x) WHERE {' OR '.join(patterns)}"
        execution = executor.execute(sql, database)

        assert execution.status == "timeout"
        assert executor.execute("SELECT 2", database).rows == ((2,),)
        (after,) = workers_of_this_process()
        assert after.pid != before.pid


@pytest.mark.slow
def test_cross_joins_sent_together_take_turns_and_leave_nothing_busy(make_database: MakeDatabase) -> None:
    """Case ex-cross-join-without-rows: 32 of them on 8 workers end within a few limits, not 32."""
    database = make_database(NUMBERS)
    with Executor(Limits(timeout_seconds=1), workers=8) as executor:

        async def all_together() -> list[str]:
            answers = await asyncio.gather(*(executor.aexecute(CROSS_JOIN, database) for _ in range(32)))
            return [answer.status for answer in answers]

        started = time.monotonic()
        statuses = asyncio.run(all_together())
        took = time.monotonic() - started

        assert statuses == ["timeout"] * 32
        assert took < 16
        assert executor.execute("SELECT 1", database).status == "ok"
        busy = [worker for worker in workers_of_this_process() if worker.cpu_percent(0.2) > 50]
        assert busy == []
    assert workers_of_this_process() == []


def test_many_threads_and_tasks_share_one_pool(make_database: MakeDatabase) -> None:
    """Sync and async callers together get each their own answer."""
    database = make_database("CREATE TABLE t(a)")
    with Executor(workers=2) as executor, ThreadPoolExecutor(8) as threads:
        in_threads = threads.map(lambda n: executor.execute(f"SELECT {n}", database).rows, range(100))

        async def together() -> list[object]:
            answers = await asyncio.gather(*(executor.aexecute(f"SELECT -{n}", database) for n in range(1, 200)))
            return [answer.rows for answer in answers]

        assert asyncio.run(together()) == [((-n,),) for n in range(1, 200)]
        assert list(in_threads) == [((n,),) for n in range(100)]
        assert len(workers_of_this_process()) <= 2


def test_batch_keeps_its_order_and_survives_a_timeout_in_its_midst(make_database: MakeDatabase) -> None:
    """Many statements with one message: each has its own verdict, repeated ones too."""
    database = make_database("CREATE TABLE t(a)")
    with Executor(Limits(timeout_seconds=0.3), workers=1) as executor:
        queries = [("SELECT 1", database), (ENDLESS, database), ("SELECT 2", database), ("SELECT 1", database)]
        executions = executor.execute_many([*queries, ("SELECT nothing", database)])

        assert [execution.status for execution in executions] == ["ok", "timeout", "ok", "ok", "error"]
        assert [execution.rows for execution in executions] == [((1,),), (), ((2,),), ((1,),), ()]


def test_started_statements_give_what_execute_many_gives(make_database: MakeDatabase) -> None:
    """Rows, none, errors, repeated and failing statements, each within limits of its own; then they are at hand."""
    database = make_database("CREATE TABLE t(a); INSERT INTO t VALUES (1), (2), (3)")
    golds = Limits(timeout_seconds=60)
    sqls = ["SELECT a FROM t", "SELECT 1 WHERE 0", "SELECT nothing", "SELECT a FROM t", "DROP TABLE t"]
    with Executor(Limits(max_rows=2), workers=1) as plain, Executor(Limits(max_rows=2), workers=2) as executor:
        plain.execute("SELECT 1", database)
        others = set(workers_of_this_process())
        started = executor.start_many([(sql, database, limits) for sql in sqls for limits in (None, golds)])
        started.finish()
        started.finish()
        (worker,) = set(workers_of_this_process()) - others
        worker.suspend()
        for limits in (None, golds):
            found = [executor.execute(sql, database, limits=limits) for sql in sqls]
            expected = plain.execute_many([(sql, database) for sql in sqls], limits=limits)

            assert [(one.status, one.rows, one.message) for one in found] == [
                (one.status, one.rows, one.message) for one in expected
            ]
        worker.resume()


def test_starting_does_not_wait(make_database: MakeDatabase) -> None:
    """Neither for the statements, nor for a worker when all are taken: then they run when they are waited for."""
    database = make_database("CREATE TABLE t(a)")
    slow = [(f"{ENDLESS} LIMIT {number}", database, None) for number in range(1, 3)]
    with Executor(Limits(timeout_seconds=1), workers=1) as executor:
        executor.execute("SELECT 1", database)
        before = time.monotonic()
        first = executor.start_many(slow)
        second = executor.start_many([("SELECT 2", database, None)])
        took = time.monotonic() - before
        second.finish()
        first.finish()

        assert took < 1
        assert executor.execute("SELECT 2", database).rows == ((2,),)
        assert executor.execute(slow[0][0], database).status == "timeout"


def test_what_was_started_makes_room_for_who_waits_for_a_worker(make_database: MakeDatabase) -> None:
    """With the one worker at what was started, this thread and others are served, and nothing started is lost."""
    database = make_database("CREATE TABLE t(a)")
    with Executor(workers=1) as executor, ThreadPoolExecutor(4) as threads:
        for turn in range(20):
            started = executor.start_many([(f"SELECT {turn}, {number}", database, None) for number in range(50)])
            others = threads.map(lambda n: executor.execute(f"SELECT {n}", database).rows, range(turn, turn + 8))
            many = executor.execute_many([(f"SELECT 'many', {turn}", database)])

            assert many[0].rows == (("many", turn),)
            assert list(others) == [((n,),) for n in range(turn, turn + 8)]
            started.finish()
            assert executor.execute(f"SELECT {turn}, 49", database).rows == ((turn, 49),)
        assert len(workers_of_this_process()) == 1


def test_time_out_of_what_was_started_is_told_once(make_database: MakeDatabase) -> None:
    """Who asks for it next does not wait for it again; who asks once more has it tried anew."""
    database = make_database("CREATE TABLE t(a)")
    with Executor(Limits(timeout_seconds=0.5), workers=1) as executor:
        executor.start_many([(ENDLESS, database, None), ("SELECT 1", database, None)]).finish()
        first = timed(lambda: executor.execute(ENDLESS, database))
        second = timed(lambda: executor.execute(ENDLESS, database))

        assert [first[0].status, second[0].status] == ["timeout", "timeout"]
        assert first[1] < second[1]
        assert second[1] >= 0.5


@pytest.mark.parametrize(("kept", "tried_anew"), [(2, []), (1, [ENDLESS])])
def test_time_outs_wait_for_who_asks_while_other_batches_end(
    make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch, kept: int, tried_anew: list[str]
) -> None:
    """What one batch found is not forgotten when another ends, unless there are too many: then the oldest are."""
    monkeypatch.setattr("text2sql.executor.pool.KEPT_TIMEOUTS", kept)
    database = make_database("CREATE TABLE t(a)")
    ran: list[str] = []
    with Executor(Limits(timeout_seconds=0.2), workers=1) as executor:
        for sql in (ENDLESS, ENDLESS + " "):
            executor.start_many([(sql, database, None)]).finish()
        run = executor._run
        monkeypatch.setattr(executor, "_run", lambda jobs: ran.extend(job.sql for job in jobs) or run(jobs))
        asked = [executor.execute(sql, database) for sql in (ENDLESS, ENDLESS + " ")]

    assert [execution.status for execution in asked] == ["timeout", "timeout"]
    assert ran == tried_anew


def test_started_statements_survive_their_worker(make_database: MakeDatabase) -> None:
    """Killed before, in the midst of and after the work: finish raises nothing, and all can be asked for."""
    database = make_database(NUMBERS)
    sqls = ["SELECT 1", "SELECT count(*) FROM a, a b, (SELECT n FROM a LIMIT 50)", "SELECT 2"]
    with Executor(Limits(timeout_seconds=60), workers=1) as executor:
        for wait in (0.0, 0.1, 1.0):
            executor.execute(f"SELECT {wait}", database)
            started = executor.start_many([(f"{sql} -- {wait}", database, None) for sql in sqls])
            time.sleep(wait)
            workers_of_this_process()[0].kill()
            started.finish()

            found = [executor.execute(f"{sql} -- {wait}", database).rows for sql in sqls]
            assert found == [((1,),), ((300 * 300 * 50,),), ((2,),)]
        executor.execute("SELECT 3", database)
        assert len(workers_of_this_process()) == 1


def test_what_cannot_be_started_is_left_for_who_asks(make_database: MakeDatabase, tmp_path: Path) -> None:
    """A database that is missing does not spoil the others; a closed executor starts nothing. Neither raises here."""
    database = make_database("CREATE TABLE t(a)")
    executor = Executor(workers=1)
    missing = tmp_path / "missing.sqlite"
    executor.start_many([("SELECT 1", missing, None), ("SELECT 1", database, None)]).finish()

    assert executor.execute("SELECT 1", database).rows == ((1,),)
    with pytest.raises(DatabaseError, match=r"missing\.sqlite"):
        executor.execute("SELECT 1", missing)
    executor.close()
    executor.start_many([("SELECT 1", database, None)]).finish()
    with pytest.raises(InfrastructureError, match="closed"):
        executor.execute("SELECT 1", database)


def test_closing_and_dropping_end_what_was_started(make_database: MakeDatabase) -> None:
    """At once, with no process and no descriptor left, whether or not anybody comes for the results."""
    database = make_database("CREATE TABLE t(a)")
    gc.collect()  # so that what earlier tests left is not closed meanwhile, which would hide a descriptor of ours
    before = psutil.Process().num_fds()
    started_at = time.monotonic()
    for ending in ("close", "drop", "forget"):
        executor = Executor(Limits(timeout_seconds=60), workers=2)
        started = [executor.start_many([(ENDLESS + " " * number, database, None)]) for number in range(3)]
        if ending == "drop":
            for one in started:
                one.drop()
            assert executor.execute("SELECT 1", database).rows == ((1,),)
        if ending == "forget":
            del started
        else:
            executor.close()
            for one in started:
                one.finish()
        del executor
        gc.collect()

        assert workers_of_this_process() == []
        assert psutil.Process().num_fds() <= before
    assert time.monotonic() - started_at < 30


def test_things_come_in_order_with_their_statements_run(make_database: MakeDatabase) -> None:
    """Every thing of a long source is given out once; a caller that stops early leaves no worker busy."""
    database = make_database("CREATE TABLE t(a)")
    with Executor(workers=2) as executor:
        things = list(executor.ahead(range(500), lambda n: [(f"SELECT {n // 2}", database, None)]))
        endless = executor.ahead(itertools.count(), lambda n: [(f"SELECT -{n}", database, None)] if n else [])
        early = list(itertools.islice(endless, 40))
        endless.close()

        assert things == list(range(500))
        assert early == list(range(40))
        assert [executor.execute(f"SELECT {n}", database).rows for n in (0, 249)] == [((0,),), ((249,),)]


def test_forked_child_leaves_what_its_parent_started(make_database: MakeDatabase) -> None:
    """The child runs the statements itself when it waits for them; the parent's answers are the parent's."""
    database = make_database("CREATE TABLE t(a)")
    with Executor(workers=1) as executor:
        started = executor.start_many([(f"SELECT {number}", database, None) for number in range(100)])
        child = os.fork()
        if child == 0:
            status = 1
            try:
                started.finish()
                status = 0 if executor.execute("SELECT 99", database).rows == ((99,),) else 1
                started.drop()
                executor.close()
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        started.finish()

        assert os.waitstatus_to_exitcode(status) == 0
        assert executor.execute("SELECT 99", database).rows == ((99,),)


def test_worker_that_dies_is_replaced(make_database: MakeDatabase) -> None:
    """A worker killed from outside, idle or busy, costs no answer."""
    database = make_database(NUMBERS)
    with Executor(Limits(timeout_seconds=20), workers=1) as executor:
        executor.execute("SELECT 1", database)
        workers_of_this_process()[0].kill()

        assert executor.execute("SELECT 2", database).rows == ((2,),)

        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(executor.execute, "SELECT count(*) FROM a, a b, a c", database)
            time.sleep(0.1)
            workers_of_this_process()[0].kill()

            assert running.result().rows == ((300**3,),)


def test_worker_that_dies_on_every_try_is_the_machines_fault(make_database: MakeDatabase) -> None:
    """A statement whose worker is lost each time raises: it is no wrong answer, and the pool stays usable."""
    database = make_database(NUMBERS)
    with Executor(Limits(timeout_seconds=60), workers=1) as executor, ThreadPoolExecutor(1) as threads:
        running = threads.submit(executor.execute, CROSS_JOIN, database)
        while not running.done():
            for worker in workers_of_this_process():
                worker.kill()
            time.sleep(0.05)

        with pytest.raises(InfrastructureError, match="lost 3 times"):
            running.result()
        assert executor.execute("SELECT 1", database).status == "ok"


def test_worker_does_not_outlive_a_killed_parent(make_database: MakeDatabase) -> None:
    """After kill -9 of the caller its worker ends by itself, in the midst of a statement too."""
    database = make_database("CREATE TABLE t(a)")
    script = (
        "import sys; from text2sql.executor import Executor, Limits;"
        "executor = Executor(Limits(timeout_seconds=600), workers=1); executor.execute('SELECT 1', sys.argv[1]);"
        "print('started', flush=True); executor.execute(sys.argv[2], sys.argv[1])"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(database), ENDLESS], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"started\n"
    workers = psutil.Process(parent.pid).children()
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()

    _, alive = psutil.wait_procs(workers, timeout=30)

    assert len(workers) == 1
    assert alive == []


def test_closing_leaves_no_process_and_no_descriptor(make_database: MakeDatabase) -> None:
    """Time-outs, errors and closing with a statement under way included; a closed executor says so."""
    database = make_database("CREATE TABLE t(a)")
    before = psutil.Process().num_fds()
    for _ in range(3):
        executor = Executor(Limits(timeout_seconds=0.2), workers=2)
        executor.execute(ENDLESS, database)
        executor.execute("SELECT nothing", database)
        with ThreadPoolExecutor(1) as threads:
            limits = Limits(timeout_seconds=30)
            running = threads.submit(executor.execute, ENDLESS, database, limits=limits)
            time.sleep(0.2)
            executor.close()

            with pytest.raises(InfrastructureError, match=r"closed|lost"):
                running.result()

    assert workers_of_this_process() == []
    assert psutil.Process().num_fds() == before
    with pytest.raises(InfrastructureError, match="closed"):
        executor.execute("SELECT 1", database)


def test_forked_child_gets_workers_of_its_own(make_database: MakeDatabase) -> None:
    """After a fork (data loaders do that) neither side disturbs the other."""
    database = make_database("CREATE TABLE t(a)")
    with Executor(workers=1) as executor:
        executor.execute("SELECT 1", database)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = 0 if executor.execute("SELECT 2", database).rows == ((2,),) else 1
                executor.close()
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)

        assert os.waitstatus_to_exitcode(status) == 0
        assert executor.execute("SELECT 3", database).rows == ((3,),)


def test_repeated_statement_is_answered_from_the_cache(make_database: MakeDatabase) -> None:
    """The very same execution comes back, without a worker; other limits are another question."""
    database = make_database("CREATE TABLE t(a)")
    with Executor(workers=1) as executor:
        first = executor.execute("SELECT 1", database)

        assert executor.execute("SELECT 1", database) is first
        assert executor.execute("SELECT 1", database, limits=Limits(max_rows=5)) is not first


def test_changed_file_is_read_anew(make_database: MakeDatabase) -> None:
    """The cache and the open connections belong to a version of the file."""
    database = make_database("CREATE TABLE t(a); INSERT INTO t VALUES (1)")
    with Executor(workers=1) as executor:
        assert executor.execute("SELECT a FROM t", database).rows == ((1,),)
        make_database("UPDATE t SET a = 2")

        assert executor.execute("SELECT a FROM t", database).rows == ((2,),)


def test_clock_and_chance_are_asked_each_time(make_database: MakeDatabase) -> None:
    """A statement that may give something else the next time is not cached."""
    database = make_database("CREATE TABLE t(a)")
    with Executor(workers=1) as executor:
        for sql in ("SELECT random()", "SELECT strftime('%f', 'now')", "SELECT 1 WHERE CURRENT_TIME = 'x'"):
            assert executor.execute(sql, database) is not executor.execute(sql, database)


def test_cache_is_bounded(make_database: MakeDatabase) -> None:
    """Old results make room for new ones; a result too large for the cache is simply not kept."""
    database = make_database("CREATE TABLE t(a)")
    with Executor(workers=1, cache_bytes=50_000) as executor:
        first = executor.execute("SELECT hex(zeroblob(2000))", database)
        assert executor.execute("SELECT hex(zeroblob(2000))", database) is first
        executor.execute_many([(f"SELECT {n}, hex(zeroblob(2000))", database) for n in range(20)])
        large = executor.execute("SELECT hex(zeroblob(20000))", database)

        assert executor.execute("SELECT hex(zeroblob(2000))", database) is not first
        assert executor.execute("SELECT hex(zeroblob(20000))", database) is not large


def test_golds_stay_while_candidates_come_and_go(make_database: MakeDatabase) -> None:
    """What runs within limits of its own, as golds do, has room of its own; that room is bounded, too."""
    database = make_database("CREATE TABLE t(a)")
    gold_limits = Limits(timeout_seconds=60)
    with Executor(workers=1, cache_bytes=50_000) as executor:
        gold = executor.execute("SELECT hex(zeroblob(2000))", database, limits=gold_limits)
        executor.execute_many([(f"SELECT {n}, hex(zeroblob(2000))", database) for n in range(20)])
        assert executor.execute("SELECT hex(zeroblob(2000))", database, limits=gold_limits) is gold

        golds = [(f"SELECT {n}, hex(zeroblob(2000))", database) for n in range(20)]
        executor.execute_many(golds, limits=gold_limits)
        assert executor.execute("SELECT hex(zeroblob(2000))", database, limits=gold_limits) is not gold


def test_worker_imports_nothing_of_the_caller(make_database: MakeDatabase) -> None:
    """The caller's modules (torch, say) are not loaded again in each worker."""
    database = make_database("CREATE TABLE t(a)")
    with Executor(workers=1) as executor:
        executor.execute("SELECT 1", database)
        (worker,) = workers_of_this_process()
        libraries = {Path(mapped.path).name for mapped in worker.memory_maps()}

        assert not [name for name in libraries if "torch" in name or "numpy" in name or "polars" in name]
