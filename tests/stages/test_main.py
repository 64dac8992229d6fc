"""`python -m stages`: how it ends."""

import subprocess
import sys

STOPPED = """
import os, signal, sys, time
import stages.__main__ as command

def materialize(*arguments, **keywords):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    finally:
        print("ended its run")

command.materialize = materialize
sys.exit(command.main(["smoke", "benchmark"]))
"""


def test_a_stage_that_is_asked_to_stop_ends_what_it_began():
    """SIGTERM, by which a lineage stops its stages, ends one like Ctrl-C: MLflow runs are closed, the status is 130."""
    ended = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, text=True, timeout=60, check=False)

    assert (130, "ended its run") == (ended.returncode, ended.stdout.strip()), ended.stderr
    assert "the same command goes on from there" in ended.stderr
