"""Training rows: tokens as generated, with their mask."""

import random

import pytest

from text2sql.errors import TrainingError, TrajectoryError
from text2sql.trajectory import Segment, Trajectory
from trainers.rows import (
    TrainingRow,
    read_rows,
    row_for_reading,
    row_from_trajectory,
    training_order,
    usable_rows,
    write_rows,
)


def trajectory(*segments: Segment) -> Trajectory:
    return Trajectory("i1", "d1", 1, "shop", 3, "gold", segments, (), None, "max_messages")


def model(*ids: int) -> Segment:
    return Segment("model", ids, (-0.5,) * len(ids))


def test_labels_start_at_the_first_token_of_the_answer():
    """Case ma-first-answer-token: unshifted labels hold the answer from its first token on, and nothing else."""
    row = row_from_trajectory(trajectory(Segment("prompt", (7, 7, 7)), model(4, 5, 2)))

    assert [-100, -100, -100, 4, 5, 2] == row.labels
    assert 3 == row.trained_tokens


def test_tool_tokens_have_no_label():
    """
    Case ma-tool-tokens: labels cover the model's own messages with their stop tokens, whatever the tool reply says;
    another reply changes no label of the model's tokens.
    """
    first, second = model(11, 12, 2), model(13, 2)

    def labels(*reply: int) -> list[int]:
        segments = (Segment("prompt", (7, 7)), first, Segment("environment", reply), second)
        return row_from_trajectory(trajectory(*segments)).labels

    assert [-100, -100, 11, 12, 2, -100, -100, -100, 13, 2] == labels(11, 12, 2)
    assert [-100, -100, 11, 12, 2, -100, -100, -100, 13, 2] == labels(9, 9, 9)


def test_messages_that_are_left_out_are_seen_but_not_trained():
    """A planted mistake stays in the row, so that its correction makes sense, and has no label itself."""
    played = trajectory(Segment("prompt", (7,)), model(11, 2), Segment("environment", (9,)), model(13, 2))

    row = row_from_trajectory(played, left_out={0})

    assert (7, 11, 2, 9, 13, 2) == row.input_ids
    assert [-100, -100, -100, -100, 13, 2] == row.labels


def test_reading_a_dialogue_trains_the_answers_in_its_prompt():
    """The SQL of earlier turns has labels wherever it stands in the prompt; with share 0 no other token of it has."""
    played = trajectory(
        Segment("prompt", (7, 21, 22, 8, 21, 9)), model(11, 2), Segment("environment", (21, 22)), model(13, 2)
    )

    row = row_for_reading(played, {1}, [(21, 22)], share=0.0)

    assert [-100, 21, 22, -100, -100, -100, 11, 2, -100, -100, -100, -100] == row.labels


def test_reading_a_dialogue_trains_a_share_of_the_other_tokens():
    """With share 1 prompt and environment count as well; a planted mistake counts at no share."""
    played = trajectory(Segment("prompt", (7, 8) * 200), model(11, 2), Segment("environment", (9,)), model(13, 2))

    assert [*(7, 8) * 200, -100, -100, 9, 13, 2] == row_for_reading(played, {0}, [], share=1.0).labels
    assert 60 < row_for_reading(played, {0}, [], share=0.25).trained_tokens < 140


def test_row_holds_the_sampled_ids():
    """Case ma-thinking-lost-in-sft: the ids of the row are those of the rollout, thinking of every message included."""
    think_and_call, reply, think_and_answer = model(50, 21, 51, 60), Segment("environment", (61,)), model(50, 22, 51)
    sampled = trajectory(Segment("prompt", (7,)), think_and_call, reply, think_and_answer)

    row = row_from_trajectory(sampled)

    assert sampled.token_ids == list(row.input_ids)
    assert {50, 21, 51, 22} <= set(row.labels)


def test_trajectory_whose_logprobs_do_not_fit_is_refused():
    """Case ma-mask-longer-than-ids: ids, mask and logprobs of different lengths are refused, with the item's id."""
    with pytest.raises(TrajectoryError, match="i1 sample 3"):
        row_from_trajectory(trajectory(Segment("prompt", (7,)), Segment("model", (1, 2), (-0.5,))))


def test_mask_of_another_length_is_refused():
    """Case ma-mask-longer-than-ids: a row whose mask outgrows its ids cannot be made; the message names the row."""
    with pytest.raises(TrajectoryError, match="i1#0: 2 token ids and a loss mask of 3"):
        TrainingRow("i1#0", (1, 2), (0, 1, 1))


def test_rows_that_cannot_be_trained_are_set_aside_and_named():
    """Rows over the limit and rows without a trained token are set aside whole; nothing is cut."""
    fine = TrainingRow("fine", (1, 2, 3), (0, 0, 1))
    long = TrainingRow("long", (1, 2, 3, 4), (0, 0, 1, 1))
    silent = TrainingRow("silent", (1, 2), (0, 0))

    usable = usable_rows([fine, long, silent], max_tokens=3, vocabulary=10)

    assert ([fine], ["long"], ["silent"]) == (usable.rows, usable.too_long, usable.untrained)


def test_ids_of_another_tokenizer_are_refused():
    """A token id that the policy does not have stops the training and names the row."""
    with pytest.raises(TrainingError, match="row odd holds token ids from 1 to 99"):
        usable_rows([TrainingRow("odd", (1, 99), (0, 1))], max_tokens=10, vocabulary=50)


def test_order_visits_every_row_once_per_epoch_and_sorts_within_a_step():
    """Each epoch is a full shuffle; within one optimizer step the longest rows come first; equal seeds, equal order."""
    lengths = [*range(80)]

    order = training_order(lengths, epochs=2, rows_per_step=4, seed=1)

    assert order == training_order(lengths, epochs=2, rows_per_step=4, seed=1)
    assert list(range(80)) == sorted(order[:80]) == sorted(order[80:])
    assert order[:80] != order[80:]
    for start in range(0, 160, 4):
        step = [lengths[index] for index in order[start : start + 4]]
        assert sorted(step, reverse=True) == step


def test_steps_hold_rows_of_like_length():
    """Rows are shared out by length over some steps at a time, so that little of a step is padding; every row once."""
    rng = random.Random(0)
    lengths = [rng.randrange(50, 400) for _ in range(202)]

    order = training_order(lengths, epochs=1, rows_per_step=4, seed=0)

    steps = [[lengths[index] for index in order[start : start + 4]] for start in range(0, 202, 4)]
    assert sorted(order) == list(range(202))
    assert sum(len(step) * max(step) for step in steps) < 1.15 * sum(lengths)
    assert steps != sorted(steps, reverse=True)


def test_an_epoch_begins_in_the_last_step_of_the_one_before():
    """Rows that do not fill their last step share it with the next epoch; still each row comes once in each epoch."""
    order = training_order([5, 3, 8, 1, 4], epochs=3, rows_per_step=2, seed=0)

    assert dict.fromkeys(range(5), 3) == {index: order.count(index) for index in sorted(set(order))}


def test_part_of_an_epoch_can_be_trained():
    """Half an epoch is half of the rows."""
    assert 5 == len(training_order([1] * 10, epochs=0.5, rows_per_step=4, seed=0))


def test_rows_survive_the_file(tmp_path):
    """What is written is read back unchanged."""
    rows = [TrainingRow("é#0", (1, 2), (0, 1)), TrainingRow("b#1", (3,), (1,))]
    path = tmp_path / "rows.jsonl"

    assert 2 == write_rows(rows, path)
    assert rows == read_rows(path)


def test_broken_line_names_file_and_line(tmp_path):
    """A line that is no row is an error with its place."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"row_id": "a", "input_ids": [1], "loss_mask": [1]}\n{"row_id": "b"}\n', encoding="utf-8")

    with pytest.raises(TrajectoryError, match=r"rows\.jsonl line 2"):
        read_rows(path)
