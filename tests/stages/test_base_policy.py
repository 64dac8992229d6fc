"""The base policy: a folder that is named from where the command is run, and a bootstrap that is gone on with."""

from dataclasses import replace

import pytest

from stages.base_policy import make_base_policy
from stages.context import policy_of
from text2sql.policy import check_policy

GOLD = "SELECT name FROM staff"
TINY = {"init": "scratch", "vocabulary": 400, "layers": 1, "width": 32, "heads": 2, "key_value_heads": 1}


@pytest.mark.parametrize("name", ["../there/policy", "policy"])
def test_a_folder_by_a_relative_name_is_found_from_anywhere(make_context, policy, tmp_path, monkeypatch, name: str):
    """The name counts from where the command is run; later stages find the folder, whichever folder they run in."""
    here, there = tmp_path / "elsewhere" / "here", tmp_path / "elsewhere" / "there"
    here.mkdir(parents=True)
    there.symlink_to(policy)
    monkeypatch.chdir(here if name.startswith("..") else policy)
    context = make_context("base_policy", [], {"model": {"name": name}})

    make_base_policy(context)

    monkeypatch.chdir("/")
    assert str((policy / "policy").resolve()) == policy_of(context.out)


@pytest.mark.slow
def test_a_finished_bootstrap_is_not_done_again(make_context, dialogue):
    """What fails after both trainings costs neither: the next attempt takes no step and has the numbers of both."""
    bootstrap = {"share_of_train": 1.0, "dialogue_epochs": 1.0, "epochs": 1.0, "mistakes_per_episode": 0.0}
    profile = {"model": {**TINY, "bootstrap": bootstrap}, "agent": {"prompt": "compact"}}
    context = make_context("base_policy", dialogue("t/0", "train", GOLD, GOLD), profile)
    first = make_base_policy(context)
    steps: list[int] = []

    again = make_base_policy(replace(context, log=lambda values, step: steps.append(step)))

    assert [] == steps
    differing = {name for name, value in first.items() if value != again[name]}
    assert {"seconds", "resumed_from_step", "reader/seconds", "reader/resumed_from_step"} == differing
    check_policy(context.out / "policy")
