"""The README: its tree is the tree, its commands exist."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_the_tree_in_the_readme_is_the_tree_of_the_repository():
    """Every tracked top-level folder has its line, and every line its folder."""
    section = README.split("## The tree")[1].split("```")[1]
    named = set(re.findall(r"^([\w.]+)/", section, flags=re.MULTILINE))
    there = {
        path.name
        for path in REPOSITORY.iterdir()
        if (path.is_dir() and (path / "__init__.py").exists())
        or path.name in {".ci", "benchmarks", "docs", "experiments"}
    }

    assert there | {"dagster_home", "tests"} == named


def test_every_make_target_in_the_readme_exists():
    """A command that the README names can be typed."""
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))

    assert set(re.findall(r"\bmake ([a-z]+)", README)) <= targets


def test_every_experiment_in_the_readme_exists():
    """Names after `pipelines run` and `pipelines show` are profiles."""
    names = set(re.findall(r"pipelines (?:run|show) ([a-z0-9.-]+)", README))

    assert names
    assert all((REPOSITORY / "experiments" / f"{name}.yaml").is_file() for name in names)
