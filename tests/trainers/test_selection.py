"""Difficulty-aware selection: which right trajectories become training rows."""

import random

import numpy as np
import pytest

from text2sql.config import SelectionSettings
from text2sql.errors import TrainingError
from text2sql.trajectory import Event, Segment, Trajectory
from trainers.selection import ScoredTrajectory, Selection, cluster_medoids, select

SETTINGS = SelectionSettings(easy_max_tool_calls=2, easy_keep=2, hard_min_tool_calls=2, hard_keep=3)


def scored(item_id: str, sample: int, text: str, calls: int = 2, right: bool = True) -> ScoredTrajectory:
    segments = (Segment("prompt", (1,)), Segment("model", (2,), (-0.1,), text))
    events = tuple(Event("execute", index, sql="SELECT 1", status="ok") for index in range(calls))
    trajectory = Trajectory(item_id, "d", 1, "shop", sample, "gold", segments, events, None, "answered")
    return ScoredTrajectory(trajectory, ex=right, em=right, em_sound=right)


def by_length(texts):
    """A toy embedding: number of letters a and b."""
    return np.array([[text.count("a"), text.count("b")] for text in texts], dtype=float)


def run(entries, hardness=None, samples=20, settings=SETTINGS, embed=by_length, seed=0) -> Selection:
    return select(entries, hardness or {}, samples, settings, embed, seed)


def kept_samples(selection: Selection, item_id: str) -> list[int]:
    return [trajectory.sample for trajectory in selection.kept if trajectory.item_id == item_id]


def test_only_trajectories_right_by_ex_and_em_are_kept():
    """One verdict is not enough, and a verdict that could not be given counts as not right."""
    right = scored("i", 0, "a")
    only_ex = ScoredTrajectory(scored("i", 1, "b").trajectory, ex=True, em=False, em_sound=False)
    unknown = ScoredTrajectory(scored("i", 2, "c").trajectory, ex=None, em=True, em_sound=True)

    selection = run([right, only_ex, unknown])

    assert [0] == kept_samples(selection, "i")
    assert 1 == selection.counts["right"]


def test_sound_exact_match_can_decide():
    """`exact_match: sound` keeps what the official EM accepts wrongly out."""
    fooled = ScoredTrajectory(scored("i", 0, "a").trajectory, ex=True, em=True, em_sound=False)

    assert ("i",) == run([fooled]).solved
    assert () == run([fooled], settings=SETTINGS.model_copy(update={"exact_match": "sound"})).solved


def test_fewer_trajectories_than_clusters():
    """Case ro-fewer-items-than-clusters: 0, 1, 2 and, of five identical texts, 1 representative; no error, no NaN."""
    entries = [scored("none", 0, "x", right=False), scored("one", 0, "a")]
    entries += [scored("two", sample, text) for sample, text in enumerate("ab")]
    entries += [scored("same", sample, "aaa") for sample in range(5)]

    selection = run(entries)

    assert [0, 1, 2, 1] == [len(kept_samples(selection, item)) for item in ("none", "one", "two", "same")]
    assert 4 == selection.counts["identical"]


def test_selection_does_not_depend_on_the_order_of_its_input():
    """Case ro-fewer-items-than-clusters: order-independent and the same on each run."""
    entries = [scored("hard", sample, "a" * sample + "b" * (sample % 3)) for sample in range(12)]
    entries += [scored("easy", sample, f"text {sample}", calls=1) for sample in range(9)]
    first = run(entries, {"easy": "easy"})
    random.Random(4).shuffle(entries)

    assert first == run(entries, {"easy": "easy"})


def test_easy_item_keeps_two_with_few_calls():
    """An easy item draws at most two of its trajectories with few calls, never a longer one."""
    entries = [scored("i", sample, f"t{sample}", calls=sample) for sample in range(6)]

    selection = run(entries, {"i": "easy"})

    assert 2 == len(selection.kept)
    assert all(trajectory.tool_calls <= 2 for trajectory in selection.kept)


def test_item_solved_in_every_sample_is_easy():
    """Twenty of twenty right makes an item easy, whatever Spider's hardness says."""
    entries = [scored("i", sample, f"t{sample}", calls=1) for sample in range(4)]

    assert 1 == run(entries, {"i": "extra"}, samples=4).counts["easy"]
    assert 1 == run(entries, {"i": "extra"}, samples=5).counts["hard"]


def test_hard_item_keeps_one_medoid_per_cluster():
    """Three clusters of texts give three representatives, each the middle of its cluster."""
    texts = ["a" * n for n in (1, 2, 3)] + ["a" * n for n in (21, 22, 23)] + ["b" * n for n in (11, 12, 13)]
    entries = [scored("i", sample, text, calls=3) for sample, text in enumerate(texts)]

    selection = run(entries, {"i": "hard"})

    assert [1, 4, 7] == kept_samples(selection, "i")


def test_clustered_items_are_counted():
    """With no more texts than are kept there is nothing to cluster: with few samples that holds for every item."""
    entries = [scored("few", sample, f"t{sample}", calls=3) for sample in range(3)]
    entries += [scored("many", sample, f"t{sample}", calls=3) for sample in range(4)]

    selection = run(entries, {"few": "hard", "many": "hard"})

    assert (2, 1, 6) == tuple(selection.counts[name] for name in ("hard", "clustered", "kept"))


def test_hard_item_prefers_long_trajectories():
    """Trajectories below the wanted number of calls are left out when longer ones exist."""
    entries = [scored("i", 0, "a", calls=1), scored("i", 1, "b", calls=2), scored("i", 2, "ab", calls=3)]

    assert [1, 2] == kept_samples(run(entries), "i")


def test_solved_item_always_contributes():
    """When a rule leaves nothing, the nearest trajectories stand in: fewest calls (easy), most calls (hard)."""
    entries = [scored("easy", 0, "a", calls=5), scored("easy", 1, "b", calls=4)]
    entries += [scored("hard", 0, "a", calls=0), scored("hard", 1, "b", calls=1)]

    selection = run(entries, {"easy": "easy"})

    assert [1] == kept_samples(selection, "easy")
    assert [1] == kept_samples(selection, "hard")
    assert 2 == selection.counts["stand_in"]


def test_unclustered_strategy_keeps_as_many_by_the_rule_for_calls_alone():
    """The ablation draws from the long trajectories of a hard item and embeds nothing."""
    settings = SETTINGS.model_copy(update={"strategy": "unclustered"})
    entries = [scored("i", sample, f"t{sample}", calls=sample % 4) for sample in range(30)]

    def refuse(texts):
        raise AssertionError("drawing needs no embedding")

    kept = run(entries, settings=settings, embed=refuse, samples=31).kept
    assert 3 == len(kept)
    assert all(trajectory.tool_calls >= 2 for trajectory in kept)


def test_random_strategy_keeps_as_many_without_looking_at_calls():
    """The ablation draws the same number per item from all right trajectories and embeds nothing."""
    settings = SETTINGS.model_copy(update={"strategy": "random"})
    entries = [scored("i", sample, f"t{sample}", calls=0) for sample in range(30)]

    def refuse(texts):
        raise AssertionError("random selection embeds nothing")

    assert 3 == len(run(entries, settings=settings, embed=refuse, samples=31).kept)


def test_broken_embedding_stops_the_selection():
    """NaN from an embedding is an error that says where to look, not a silent cluster."""
    entries = [scored("i", sample, "a" * sample) for sample in range(5)]

    with pytest.raises(TrainingError, match=r"selection\.embedding"):
        run(entries, embed=lambda texts: np.full((len(texts), 2), np.nan))


def test_equal_vectors_still_give_one_medoid_per_cluster():
    """Different texts with the same embedding do not give empty clusters."""
    assert 3 == len(set(cluster_medoids(np.ones((6, 4)), 3)))
