"""
The command line of the project.

    python -m pipelines list                     the experiments
    python -m pipelines show EXPERIMENT          the resolved profile, and the plan with fingerprints and states
    python -m pipelines run EXPERIMENT           the whole lineage, through Dagster, with progress on the terminal
    python -m pipelines ui                       the Dagster and MLflow UIs, side by side

Exit status: 0 done; 1 an error that its message explains; 130 stopped.
"""

import argparse
import os
import sys

from stages.plan import Plan
from stages.tracking import profile_yaml
from text2sql.config import Settings, experiment_names, load_profile
from text2sql.errors import Text2SqlError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines", description="Run and inspect experiments.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="name the experiments")
    commands.add_parser("ui", help="serve the Dagster and MLflow UIs side by side")
    for name, text in (("show", "print the resolved profile and the plan"), ("run", "materialize the whole lineage")):
        command = commands.add_parser(name, help=text)
        command.add_argument("experiment")
    options = parser.parse_args(arguments)
    settings = Settings.from_environment()
    try:
        if options.command == "list":
            return list_experiments(settings)
        if options.command == "show":
            return show(options.experiment, settings)
        if options.command == "ui":
            from pipelines.ui import serve

            return serve(settings)
        from pipelines.run import run_lineage

        return run_lineage(options.experiment, settings)
    except Text2SqlError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("\nStopped; finished work is kept, the same command goes on from there.", file=sys.stderr)
        return 130


def list_experiments(settings: Settings) -> int:
    for name in experiment_names(settings.experiments):
        description = load_profile(name, settings.experiments).description.split("\n")[0]
        print(f"{name:24} {description}")
    return 0


def show(experiment: str, settings: Settings) -> int:
    """The profile as YAML, then a line per stage: state, fingerprint, key."""
    profile = load_profile(experiment, settings.experiments)
    print(profile_yaml(profile))
    plan = Plan(profile, settings)
    print("# plan: state, fingerprint, stage")
    for key, state in plan.states().items():
        print(f"{state:9} {plan.fingerprints[key]}  {key}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
