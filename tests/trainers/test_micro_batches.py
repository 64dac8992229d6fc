"""Micro-batches of a step: the same episodes with less padding."""

import torch

from trainers.micro_batches import by_length, has_signal


def batches() -> list[dict[str, torch.Tensor]]:
    """Four episodes, prompt and completion lengths (1, 2), (3, 4), (2, 1), (3, 3), padded to 3 and 4, in two batches."""
    episodes = []
    for number, (prompt, completion) in enumerate([(1, 2), (3, 4), (2, 1), (3, 3)], start=1):
        episodes.append(
            {
                "prompt_ids": torch.tensor([[0] * (3 - prompt) + [number] * prompt]),
                "prompt_mask": torch.tensor([[0] * (3 - prompt) + [1] * prompt]),
                "completion_ids": torch.tensor([[number] * completion + [0] * (4 - completion)]),
                "completion_mask": torch.tensor([[1] * completion + [0] * (4 - completion)]),
                "tool_mask": torch.ones(1, 4, dtype=torch.long),
                "advantages": torch.tensor([0.0 if number == 2 else float(number)]),
            }
        )
    joined = [
        {name: torch.cat([one[name] for one in episodes[start : start + 2]]) for name in episodes[0]}
        for start in (0, 2)
    ]
    return [{**batch, "num_items_in_batch": torch.tensor(10)} for batch in joined]


def test_long_episodes_share_a_batch_and_padding_goes():
    """Batches keep their size; the batch of short episodes is as narrow as its longest one."""
    first, second = by_length(batches(), keep_silent_last=False)

    assert [0.0, 4.0] == first["advantages"].tolist()
    assert ((2, 3), (2, 4)) == (first["prompt_ids"].shape, first["completion_ids"].shape)
    assert ((2, 2), (2, 2)) == (second["prompt_ids"].shape, second["completion_ids"].shape)
    assert 10 == int(second["num_items_in_batch"])


def test_no_token_is_lost():
    """Every token of every episode is still there, once."""
    before = [int(batch[name].sum()) for batch in batches() for name in ("prompt_ids", "completion_ids")]
    after = [
        int(batch[name].sum())
        for batch in by_length(batches(), keep_silent_last=True)
        for name in ("prompt_ids", "completion_ids")
    ]

    assert sum(before) == sum(after)


def test_episodes_without_signal_come_last():
    """What carries no advantage is put together at the end, however long it is."""
    _, second = by_length(batches(), keep_silent_last=True)

    assert 0.0 == second["advantages"][-1]


def test_batch_without_advantage_or_without_trained_tokens_has_no_signal():
    """Such a batch can be left out: its policy loss is zero whatever the model says."""
    batch = batches()[0]
    masked = {**batch, "tool_mask": torch.zeros(2, 4, dtype=torch.long)}
    flat = {**batch, "advantages": torch.zeros(2)}

    assert has_signal(batch)
    assert not has_signal(masked)
    assert not has_signal(flat)
