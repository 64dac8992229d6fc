"""
Difficulty-aware selection of right trajectories (Algorithm 1, S2).

Per item with at least one right trajectory (EX and EM of its final SQL):
- easy item (Spider hardness easy, or every sample right): of the trajectories with at most `easy_max_tool_calls`
  executed calls, `easy_keep` are drawn at random;
- any other item: of the trajectories with at least `hard_min_tool_calls`, the embeddings of their texts are clustered
  and one medoid per cluster is kept, `hard_keep` in all.

What the paper leaves open is settled here:
1. identical texts count once, before anything is drawn or clustered;
2. when a rule leaves no trajectory, those with the fewest (easy) or the most (hard) calls stand in, so that a solved
   item always contributes;
3. clusters come from agglomerative clustering (Ward) with k = `hard_keep`; with no more texts than k all are kept;
4. two strategies for ablations draw the same number of right trajectories per item: `unclustered` at random among
   those that the rule for calls leaves, `random` among all.

The result does not depend on the order of the input.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from text2sql.config import SelectionSettings
from text2sql.errors import TrainingError
from text2sql.trajectory import Trajectory

Embed = Callable[[Sequence[str]], np.ndarray]  # texts -> (n, d), one row per text


@dataclass(frozen=True)
class ScoredTrajectory:
    """A trajectory with the verdicts on its final SQL; None where a verdict could not be given (counts as not right)."""

    trajectory: Trajectory
    ex: bool | None
    em: bool | None
    em_sound: bool | None

    def right(self, exact_match: str) -> bool:
        """EX and EM, where EM is the official evaluator's or the sound one."""
        return bool(self.ex) and bool(self.em if exact_match == "official" else self.em_sound)


@dataclass(frozen=True)
class Selection:
    """
    What one round keeps. `solved` lists the items with a right trajectory. `counts`: items, solved, trajectories,
    right, identical (right ones that repeat a text), easy, hard (solved items by rule), stand_in (items for which a
    rule left none), clustered (hard items with more texts than are kept), kept.
    """

    kept: tuple[Trajectory, ...]
    solved: tuple[str, ...]
    counts: Mapping[str, int]


def select(
    scored: Iterable[ScoredTrajectory],
    hardness: Mapping[str, str | None],
    samples: int,
    settings: SelectionSettings,
    embed: Embed,
    seed: int,
) -> Selection:
    """
    Choose training trajectories from one round's samples. `samples` is how many were drawn per item: an item is
    all right when that many are. `embed` is called at most once, with every text that is to be clustered.
    """
    seen: set[str] = set()
    right: dict[str, list[Trajectory]] = defaultdict(list)
    total = 0
    for entry in scored:
        total += 1
        seen.add(entry.trajectory.item_id)
        if entry.right(settings.exact_match):
            right[entry.trajectory.item_id].append(entry.trajectory)

    kept: dict[str, list[Trajectory]] = {}
    to_cluster: dict[str, list[Trajectory]] = {}
    identical = easy_items = stand_in = 0
    for item_id in sorted(right):
        distinct = _distinct(right[item_id])
        identical += len(right[item_id]) - len(distinct)
        easy = hardness.get(item_id) == "easy" or len(right[item_id]) >= samples
        easy_items += easy
        keep = settings.easy_keep if easy else settings.hard_keep
        if settings.strategy == "random":
            kept[item_id] = _draw(distinct, keep, f"{seed}/{item_id}")
            continue
        candidates, fits = _by_calls(distinct, easy, settings)
        stand_in += not fits
        if easy or settings.strategy == "unclustered":
            kept[item_id] = _draw(candidates, keep, f"{seed}/{item_id}")
        elif len(candidates) <= keep:
            kept[item_id] = candidates
        else:
            to_cluster[item_id] = candidates

    kept.update(_medoids(to_cluster, settings.hard_keep, embed))
    trajectories = tuple(trajectory for item_id in sorted(kept) for trajectory in kept[item_id])
    counts = {
        "items": len(seen),
        "solved": len(right),
        "trajectories": total,
        "right": sum(len(entries) for entries in right.values()),
        "identical": identical,
        "easy": easy_items,
        "hard": len(right) - easy_items,
        "stand_in": stand_in,
        "clustered": len(to_cluster),
        "kept": len(trajectories),
    }
    return Selection(trajectories, tuple(sorted(right)), counts)


def completion_text(trajectory: Trajectory) -> str:
    """What was said after the prompt, by the model and the environment; it decides identity and is embedded."""
    return "".join(segment.text for segment in trajectory.segments[1:]) or str(trajectory.completion[0])


def _distinct(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """One trajectory per text, the lowest sample number of each, in the order of sample numbers."""
    first: dict[str, Trajectory] = {}
    for trajectory in sorted(trajectories, key=lambda trajectory: trajectory.sample):
        first.setdefault(completion_text(trajectory), trajectory)
    return list(first.values())


def _by_calls(trajectories: list[Trajectory], easy: bool, settings: SelectionSettings) -> tuple[list[Trajectory], bool]:
    """Trajectories that fit the rule for their calls and True; or, when none does, the nearest to it and False."""
    if easy:
        fitting = [trajectory for trajectory in trajectories if trajectory.tool_calls <= settings.easy_max_tool_calls]
        nearest = min(trajectory.tool_calls for trajectory in trajectories)
    else:
        fitting = [trajectory for trajectory in trajectories if trajectory.tool_calls >= settings.hard_min_tool_calls]
        nearest = max(trajectory.tool_calls for trajectory in trajectories)
    if fitting:
        return fitting, True
    return [trajectory for trajectory in trajectories if trajectory.tool_calls == nearest], False


def _draw(trajectories: list[Trajectory], keep: int, seed: str) -> list[Trajectory]:
    drawn = random.Random(seed).sample(trajectories, min(keep, len(trajectories)))
    return sorted(drawn, key=lambda trajectory: trajectory.sample)


def _medoids(groups: Mapping[str, list[Trajectory]], keep: int, embed: Embed) -> dict[str, list[Trajectory]]:
    """One representative per cluster for every item; all groups hold more than `keep` texts."""
    if not groups:
        return {}
    texts = [completion_text(trajectory) for group in groups.values() for trajectory in group]
    vectors = np.asarray(embed(texts), dtype=np.float64)
    if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
        raise TrainingError(
            f"The embedding gave an array of shape {vectors.shape} for {len(texts)} texts, or values that are not "
            "finite; expected one finite row per text. Look at selection.embedding."
        )
    chosen: dict[str, list[Trajectory]] = {}
    start = 0
    for item_id, group in groups.items():
        picked = cluster_medoids(vectors[start : start + len(group)], keep)
        chosen[item_id] = [group[index] for index in picked]
        start += len(group)
    return chosen


def cluster_medoids(vectors: np.ndarray, clusters: int) -> list[int]:
    """
    Indices, ascending, of one medoid per cluster of the rows of `vectors` (n, d): the member with the least summed
    distance to its cluster, the first of them on a tie. With n <= `clusters` every row is its own medoid.
    """
    if len(vectors) <= clusters:
        return list(range(len(vectors)))
    if clusters == 1:
        labels = np.zeros(len(vectors), dtype=int)
    else:
        from sklearn.cluster import AgglomerativeClustering

        labels = AgglomerativeClustering(n_clusters=clusters).fit_predict(vectors)
    medoids: list[int] = []
    for label in range(clusters):
        members = np.flatnonzero(labels == label)
        distances = np.linalg.norm(vectors[members][:, None] - vectors[members][None], axis=-1).sum(axis=1)
        medoids.append(int(members[int(np.argmin(np.round(distances, 9)))]))
    return sorted(medoids)
