"""Which train items the bootstrap sees, and which are left to practise on."""

import pytest

from stages.pools import bootstrap_items, practice_items


@pytest.fixture
def train(dialogue):
    return [item for number in range(20) for item in dialogue(f"train:{number}", "train", "SELECT 1", "SELECT 2")]


def pools(make_context, train, model, seed=0):
    context = make_context("base_policy", train, {"model": model, "seed": seed})
    return [[item.item_id for item in items] for items in (bootstrap_items(context), practice_items(context))]


def test_what_a_scratch_policy_has_not_seen_is_practised_on(make_context, train):
    """Whole dialogues on either side, no item on both, none lost; another seed draws others."""
    model = {"init": "scratch", "bootstrap": {"share_of_train": 0.7}}
    seen, left = pools(make_context, train, model)

    assert (28, 12) == (len(seen), len(left))
    assert {item.item_id for item in train} == {*seen, *left}
    assert not {name.split("/")[0] for name in seen} & {name.split("/")[0] for name in left}
    assert [seen, left] != pools(make_context, train, model, seed=1)


def test_a_pretrained_policy_practises_on_all_of_train(make_context, train):
    """It has seen nothing of the benchmark."""
    assert [item.item_id for item in train] == pools(make_context, train, {"name": "Qwen/Qwen3-1.7B"})[1]


def test_where_the_bootstrap_sees_everything_all_of_it_is_practised_on(make_context, train):
    """As `smoke` does, whose few dialogues leave none over."""
    model = {"init": "scratch", "bootstrap": {"share_of_train": 1.0}}

    assert [item.item_id for item in train] == pools(make_context, train, model)[1]
