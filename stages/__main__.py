"""
Run one stage from a shell.

    python -m stages EXPERIMENT STAGE [--lost-again] [--lineage-run ID] [--dagster-run ID]

--lost-again: of a complete artifact, draw again the samples that the machine lost, and only those.
Exit status: 0 made or found complete; 1 an error that its message explains; 130 stopped.
"""

import argparse
import os
import signal
import sys
import threading
import uuid

# Read when the libraries are first imported, so before anything else is.
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from stages.plan import Plan
from stages.runner import materialize
from stages.tracking import Tracker
from text2sql.config import Settings, load_profile
from text2sql.errors import Text2SqlError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m stages", description="Run one stage of an experiment.")
    parser.add_argument("experiment")
    parser.add_argument("stage", help="for example round_1/policy; `python -m pipelines show EXPERIMENT` lists them")
    parser.add_argument("--lost-again", action="store_true", help="draw again the samples that the machine lost")
    parser.add_argument("--lineage-run", default=None, help="name of the lineage run this belongs to")
    parser.add_argument("--dagster-run", default=None)
    options = parser.parse_args(arguments)
    settings = Settings.from_environment()
    lineage_run = options.lineage_run or f"shell-{uuid.uuid4().hex[:8]}"
    if threading.current_thread() is threading.main_thread():
        # A lineage that is stopped asks its stages to end by SIGTERM: they end their MLflow runs like after Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        profile = load_profile(options.experiment, settings.experiments)
        plan = Plan(profile, settings)
        artifact, made = materialize(
            plan,
            options.stage,
            Tracker.opener(profile, settings, lineage_run, options.dagster_run),
            lambda text: print(text, flush=True),
            lost_again=options.lost_again,
        )
    except Text2SqlError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped; finished work is kept, the same command goes on from there.", file=sys.stderr)
        return 130
    print(f"{options.stage}: {'made' if made else 'complete already'}, {artifact.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
