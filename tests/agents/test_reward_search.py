"""Grid search over reward weights."""

from collections.abc import Iterable

import pytest

from agents.mtsql.reward_search import WeightSearch
from agents.mtsql.reward_search import search_weights as search_grid
from agents.mtsql.rewards import PARTS, Reward
from text2sql.config import RewardGrid, RewardSearchSettings, RewardSettings

PUBLISHED = RewardSettings()
DEFAULTS = RewardSearchSettings()


def search_weights(
    rewards: Iterable[tuple[str, Reward]], given: RewardSettings, grid: RewardGrid = DEFAULTS.grid
) -> WeightSearch:
    """The search with a profile's default margin."""
    return search_grid(rewards, given, grid, DEFAULTS.margin)


def sample(item: str, *parts: float, total: float | None = 0.0) -> tuple[str, Reward]:
    """Parts in the order execution_match, exact_match, propose, e_verify, m_verify."""
    return item, Reward(total, dict(zip(PARTS, parts, strict=True)))


def test_weights_that_rank_better_outcomes_higher_are_chosen():
    """m_verify tells right from wrong here and propose misleads: m_verify gets more weight than propose."""
    samples = [
        *(sample(item, 1, 1, 0.2, 0.5, 1.0) for item in "abc"),
        *(sample(item, 0, 0, 0.9, 0.5, 0.1) for item in "abc"),
    ]
    found = search_weights(samples, PUBLISHED)
    best = found.table.row(0, named=True)

    assert (found.advised.propose, found.advised.m_verify) == (0.2, 0.3)
    assert (best["inversions"], best["process_auc"], best["best_of_n"]) == (0.0, 1.0, 1.0)
    assert (found.items, found.pairs) == (3, 3)
    assert "process_auc 1.0000 against 0.0000" in found.reason


def test_the_given_weights_stay_without_a_clear_gain():
    """Every weighting of propose ranks these alike, so the published weights are kept."""
    samples = [sample("a", 1, 1, 0.9, 0.0, 0.0), sample("a", 0, 0, 0.2, 0.0, 0.0)]

    assert search_weights(samples, PUBLISHED).advised == PUBLISHED


def test_process_parts_must_not_outbid_the_outcome():
    """Weights under which a wrong sample is paid as much as a right one are refused, however good their process_auc."""
    samples = [
        *(sample(item, 1, 0, 0.0, 0.0, 0.0) for item in "ab"),
        *(sample(item, 0, 0, 1.0, 0.0, 0.0) for item in "ab"),
        *(sample(item, 1, 0, 0.9, 0.0, 0.0) for item in "cdef"),
        *(sample(item, 0, 0, 0.1, 0.0, 0.0) for item in "cdef"),
    ]
    found = search_weights(samples, RewardSettings(propose=1.2))
    greedy = found.table.filter(propose=1.2)["inversions"]

    assert greedy.to_list() == pytest.approx([1 / 3] * len(greedy))
    assert found.advised.propose == 0.8


def test_each_item_counts_the_same():
    """An item with many pairs does not outvote the others."""
    many = [sample("a", 1, 1, 1.0, 0, 0)] + [sample("a", 0, 0, 0.0, 0, 0)] * 9
    few = [sample("b", 1, 1, 0.0, 0, 0), sample("b", 0, 0, 1.0, 0, 0)]
    row = search_weights(many + few, PUBLISHED).table.filter(given=True)

    assert row["process_auc"].to_list() == pytest.approx([0.5])


def test_without_pairs_the_given_weights_stay_and_the_reason_says_so():
    """All right, all wrong, or nothing at all: nothing to learn from, no NaN, no error."""
    alike = search_weights([sample("a", 1, 1, 1, 1, 1), sample("b", 0, 0, 0, 0, 0)], PUBLISHED)
    nothing = search_weights([], PUBLISHED)

    assert alike.advised == nothing.advised == PUBLISHED
    assert "no item has samples of different outcome" in alike.reason
    assert alike.table["process_auc"].to_list() == [None] * len(alike.table)


def test_samples_that_were_set_aside_take_no_part():
    """A reward without a total says nothing about weights; it is counted."""
    good = [sample("a", 1, 1, 1, 1, 1), sample("a", 0, 0, 0, 0, 0)]
    aside = ("a", Reward(None, dict.fromkeys(PARTS), "ungradable"))
    found = search_weights([*good, aside], PUBLISHED)

    assert found.set_aside == 1
    assert found.table.equals(search_weights(good, PUBLISHED).table)


def test_the_order_of_samples_makes_no_difference():
    """Equal input in another order gives an equal table."""
    samples = [sample(item, right, right, 0.1 * n, 0.5, 0.3) for n, item in enumerate("abcab") for right in (0, 1)]

    assert search_weights(samples, PUBLISHED).table.equals(search_weights(samples[::-1], PUBLISHED).table)


def test_the_table_has_the_whole_grid_and_the_given_weights():
    """One row per combination of the profile's lists; weights off the grid are added."""
    grid = RewardGrid(propose=(0.0, 0.8), e_verify=(0.1,), m_verify=(0.0, 0.1, 0.3))

    assert len(search_weights([], PUBLISHED, grid).table) == 2 * 1 * 3
    assert len(search_weights([], RewardSettings(propose=0.55), grid).table) == 2 * 1 * 3 + 1


def test_the_default_grid_holds_the_published_weights():
    """They are one row among the others, marked as given, and not a row more."""
    table = search_weights([], PUBLISHED).table

    assert len(table) == 45
    assert table["given"].sum() == 1
