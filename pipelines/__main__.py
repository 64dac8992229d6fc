"""
The command line of the project.

    python -m pipelines list                     the experiments
    python -m pipelines show EXPERIMENT          the resolved profile, and the plan with fingerprints and states
    python -m pipelines run EXPERIMENT           the whole lineage, through Dagster, with progress on the terminal
    python -m pipelines findings [--run]         the paper's claims judged by experiments miniature/*: docs/findings.md
    python -m pipelines ui                       the Dagster and MLflow UIs, side by side

Exit status: 0 done; 1 an error that its message explains; 130 stopped.
"""

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

from stages.plan import Plan
from stages.tracking import profile_yaml
from text2sql.config import REPOSITORY, Settings, experiment_names, load_profile
from text2sql.errors import Text2SqlError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines", description="Run and inspect experiments.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="name the experiments")
    commands.add_parser("ui", help="serve the Dagster and MLflow UIs side by side")
    for name, text in (("show", "print the resolved profile and the plan"), ("run", "materialize the whole lineage")):
        command = commands.add_parser(name, help=text)
        command.add_argument("experiment")
    command = commands.add_parser("findings", help="judge the claims of the paper by the miniature family")
    command.add_argument("--seeds", type=_seeds, default=(0, 1, 2), metavar="0,1,2", help="of every experiment")
    command.add_argument("--run", action="store_true", help="first run every experiment that is not complete")
    command.add_argument("--out", type=Path, default=REPOSITORY / "docs", metavar="DIR", help="default: docs")
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
        if options.command == "findings":
            return findings(settings, options.seeds, options.out, run=options.run)
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


def findings(settings: Settings, seeds: tuple[int, ...], out: Path, *, run: bool) -> int:
    """Writes the page of findings with what there is, after running what is missing if `run`; 1 if a run failed."""
    from stages.findings import Family
    from stages.findings_page import write_findings

    failed = []
    if run:
        from pipelines.run import run_missing

        failed = run_missing(Family(settings, seeds).names, settings)
    out.mkdir(parents=True, exist_ok=True)
    counts = Counter(finding.verdict for finding in write_findings(Family(settings, seeds), out))
    print(f"{out / 'findings.md'}: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}")
    if failed:
        print(f"Failed: {', '.join(failed)}. The same command goes on from there.", file=sys.stderr)
    return int(bool(failed))


def _seeds(text: str) -> tuple[int, ...]:
    seeds = tuple(dict.fromkeys(int(word) for word in text.split(",")))
    if min(seeds) < 0:
        raise ValueError
    return seeds


if __name__ == "__main__":
    sys.exit(main())
