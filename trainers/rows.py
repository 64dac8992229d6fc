"""
Training rows: token ids as they were generated, with the mask of tokens that are trained.

Nothing is rendered or tokenized again on the way from a trajectory to a row, so thinking stays in, and a mask can never
outgrow its ids. Rows are read from and written to JSON Lines, one row a line.
"""

import json
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from text2sql.errors import TrainingError, TrajectoryError
from text2sql.trajectory import Trajectory

WINDOW = 8  # optimizer steps whose rows are shared out by length
IGNORED = -100  # label of a position without loss, the convention of torch and transformers


@dataclass(frozen=True)
class TrainingRow:
    """One sequence. `loss_mask` is 1 where the model itself produced the token, 0 for prompt and environment."""

    row_id: str
    input_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.input_ids) != len(self.loss_mask):
            raise TrajectoryError(
                f"row {self.row_id}: {len(self.input_ids)} token ids and a loss mask of {len(self.loss_mask)}; "
                "both must have the same length. The row is refused."
            )
        if not set(self.loss_mask) <= {0, 1}:
            raise TrajectoryError(f"row {self.row_id}: a loss mask holds 0 and 1 only. The row is refused.")

    @property
    def labels(self) -> list[int]:
        """Labels as TRL wants them, not shifted: the token's own id where it is trained, -100 elsewhere."""
        return [token if mask else IGNORED for token, mask in zip(self.input_ids, self.loss_mask, strict=True)]

    @property
    def trained_tokens(self) -> int:
        """Positions that count in the loss. The first token of a sequence has no prediction and never counts."""
        return sum(self.loss_mask[1:])


def row_from_trajectory(trajectory: Trajectory, left_out: Collection[int] = ()) -> TrainingRow:
    """
    The row of a validated trajectory. The model's messages numbered in `left_out` (from 0) are seen but not trained.
    Raises TrajectoryError when ids, mask and logprobs do not line up.
    """
    trajectory.validate()
    mask: list[int] = []
    message = 0
    for segment in trajectory.segments:
        own = segment.author == "model"
        mask += [int(own and message not in left_out)] * len(segment.token_ids)
        message += own
    return TrainingRow(f"{trajectory.item_id}#{trajectory.sample}", tuple(trajectory.token_ids), tuple(mask))


def row_for_reading(
    trajectory: Trajectory,
    left_out: Collection[int],
    answers: Sequence[Sequence[int]],
    share: float,
) -> TrainingRow:
    """
    The same tokens for language modelling of a whole dialogue. What counts: the model's messages as above, `answers` (token
    ids of the SQL of earlier turns) where they stand in the prompt, and of all other tokens a `share`, drawn by the row's
    name. Questions are hard to foresee and would else be most of the loss.
    """
    row = row_from_trajectory(trajectory, left_out)
    rng = random.Random(row.row_id)
    mask = [mask or int(rng.random() < share) for mask in row.loss_mask]
    start = 0
    for segment in trajectory.segments:
        own = range(start, start + len(segment.token_ids))
        start = own.stop
        if segment.author == "model":
            mask[own.start : own.stop] = row.loss_mask[own.start : own.stop]
        if segment.author == "prompt":
            for answer in answers:
                for place in _places(segment.token_ids, answer):
                    mask[place : place + len(answer)] = [1] * len(answer)
    return TrainingRow(row.row_id, row.input_ids, tuple(mask))


def _places(ids: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Where in `ids` the sequence `wanted` begins."""
    length = len(wanted)
    return [at for at in range(len(ids) - length + 1) if tuple(ids[at : at + length]) == tuple(wanted)]


@dataclass(frozen=True)
class UsableRows:
    """Rows that can be trained, and the ids of those set aside because they are too long or have no trained token."""

    rows: list[TrainingRow]
    too_long: list[str]
    untrained: list[str]


def usable_rows(rows: Iterable[TrainingRow], *, max_tokens: int, vocabulary: int) -> UsableRows:
    """Set rows aside that cannot be trained; nothing is ever cut. An id outside the vocabulary is a TrainingError."""
    kept: list[TrainingRow] = []
    too_long: list[str] = []
    untrained: list[str] = []
    for row in rows:
        if row.input_ids and not 0 <= min(row.input_ids) <= max(row.input_ids) < vocabulary:
            raise TrainingError(
                f"row {row.row_id} holds token ids from {min(row.input_ids)} to {max(row.input_ids)}, the policy's "
                f"vocabulary has {vocabulary}. The rows were sampled from a policy with another tokenizer."
            )
        if len(row.input_ids) > max_tokens:
            too_long.append(row.row_id)
        elif row.trained_tokens == 0:
            untrained.append(row.row_id)
        else:
            kept.append(row)
    return UsableRows(kept, too_long, untrained)


def training_order(lengths: Sequence[int], *, epochs: float, rows_per_step: int, seed: int) -> list[int]:
    """
    Indices of rows in the order in which they are trained, all epochs in one list.

    Each epoch is its own shuffle, in which WINDOW optimizer steps at a time share their rows out by length: padding to
    the longest row of a step would else be a third of the work. The order depends on the arguments alone, so a resumed
    run continues at the very row where it stopped.
    """
    order: list[int] = []
    wanted = max(1, round(epochs * len(lengths)))
    for epoch in range(-(-wanted // len(lengths))):
        rng = random.Random(f"{seed}/{epoch}")
        indices = rng.sample(range(len(lengths)), len(lengths))
        begun = -len(order) % rows_per_step  # the last step of the epoch before is filled up first
        order += indices[:begun]
        for start in range(begun, len(indices), WINDOW * rows_per_step):
            window = sorted(indices[start : start + WINDOW * rows_per_step], key=lambda index: -lengths[index])
            steps = [window[at : at + rows_per_step] for at in range(0, len(window), rows_per_step)]
            unfilled = steps.pop() if len(steps[-1]) < rows_per_step else []
            rng.shuffle(steps)
            order += [*chain.from_iterable(steps), *unfilled]
    steps = [order[at : min(at + rows_per_step, wanted)] for at in range(0, wanted, rows_per_step)]
    return [index for step in steps for index in sorted(step, key=lambda index: -lengths[index])]


def write_rows(rows: Iterable[TrainingRow], path: Path) -> int:
    """Write one JSON line per row; the file appears whole or not at all. Returns the number of rows."""
    partial = path.with_name(path.name + ".partial")
    count = 0
    with partial.open("w", encoding="utf-8") as file:
        for row in rows:
            line = {"row_id": row.row_id, "input_ids": row.input_ids, "loss_mask": row.loss_mask}
            file.write(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n")
            count += 1
    partial.replace(path)
    return count


def read_rows(path: Path) -> list[TrainingRow]:
    """Rows of a JSON Lines file; raises TrajectoryError naming file and line when one cannot be used."""
    rows: list[TrainingRow] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                values = json.loads(line)
                rows.append(TrainingRow(values["row_id"], tuple(values["input_ids"]), tuple(values["loss_mask"])))
            except (ValueError, KeyError, TypeError) as error:
                raise TrajectoryError(f"{path.name} line {number} is no training row: {error}") from error
    return rows
