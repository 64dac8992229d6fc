"""
Micro-batches of one GRPO step, sorted by length and without needless padding.

TRL pads the whole step to its longest episode and shuffles it. The loss is a sum over tokens with one denominator for
the step, so it does not matter which episodes share a forward pass; short episodes together save most of the padding.

Shapes: B episodes, P prompt tokens (padded on the left), C completion tokens (padded on the right).
"""

from collections.abc import Sequence

import torch

Batch = dict[str, torch.Tensor]


def by_length(batches: Sequence[Batch], *, keep_silent_last: bool) -> list[Batch]:
    """
    The same episodes in as many batches of the same size, longest first. With `keep_silent_last` the episodes that
    carry no signal come at the end, so that whole batches of them can be left out.
    """
    together = {
        name: torch.cat([batch[name] for batch in batches]) if first.ndim else first
        for name, first in batches[0].items()
    }
    lengths = together["prompt_mask"].sum(1) + together["completion_mask"].sum(1)  # (B,)
    silent = ~_signal(together) if keep_silent_last else torch.zeros_like(lengths, dtype=torch.bool)
    order = sorted(range(len(lengths)), key=lambda at: (bool(silent[at]), -int(lengths[at])))
    sizes = [len(batch["advantages"]) for batch in batches]
    parts = torch.split(torch.tensor(order, device=lengths.device), sizes)
    return [_trimmed({name: _pick(tensor, part) for name, tensor in together.items()}) for part in parts]


def has_signal(batch: Batch) -> bool:
    """False when the policy loss is zero whatever the model says: no episode has both advantage and trained tokens."""
    return bool(_signal(batch).any())


def _signal(batch: Batch) -> torch.Tensor:
    mask = batch["completion_mask"] * batch["tool_mask"]
    return (batch["advantages"] != 0) & (mask.sum(1) > 0)


def _pick(tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return tensor[rows] if tensor.ndim else tensor


def _trimmed(batch: Batch) -> Batch:
    """Without the columns that are padding in every row: (B, P) on the left, (B, C) on the right."""
    prompt = int(batch["prompt_mask"].sum(1).max())
    completion = max(1, int(batch["completion_mask"].sum(1).max()))
    trimmed = {}
    for name, tensor in batch.items():
        if tensor.ndim < 2:
            trimmed[name] = tensor
        elif name.startswith("prompt"):
            trimmed[name] = tensor[:, -prompt:]
        else:
            trimmed[name] = tensor[:, :completion]
    return trimmed
