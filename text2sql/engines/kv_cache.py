"""
Where the decode loop keeps keys and values: slots for the rows being generated, and sequences kept for later.

Both exist because an episode asks several times for the continuation of almost the same tokens. `SlotCache` is one
padded tensor that rows join and leave at any step. `KeptSequences` holds the keys and values of prompts (samples of one
item share them, and questions over one database share the schema in front) and of finished messages (the next message
of an episode continues them), so that only tokens that are new to the model are computed.

A forward pass takes the tokens of all rows in one line, without padding: (1, T). Only attention looks at rows apart.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, Cache, PreTrainedConfig

CAPACITY_STEP = 256
"""Slots grow by this many tokens."""
BLOCK = 32
"""A kept prompt can be shared up to any multiple of this many tokens."""


@dataclass(frozen=True)
class Span:
    """Several new tokens of one row: tokens first..last-1 of the line. `mask`: (1, 1, last - first, L), additive."""

    slot: int
    first: int
    last: int
    mask: torch.Tensor


@dataclass(frozen=True)
class Line:
    """
    The tokens of one forward pass, row after row. The rows in slots 0..single-1 come first with one token each, which
    sees what `single_mask` (single, 1, 1, L) lets it; the others follow as `spans`.
    """

    slots: torch.Tensor  # (T,)
    positions: torch.Tensor  # (T,)
    ends: torch.Tensor  # (rows,) index of each row's last token
    single: int
    single_mask: torch.Tensor
    spans: tuple[Span, ...]


class SlotCache(Cache):
    """
    Keys and values of up to `slots` rows in one tensor (2, layers, slots, heads, capacity, head width); row i occupies
    positions 0..length-1 of its slot. `line_up` prepares a forward pass, whose layers then call `update`.
    """

    def __init__(self, config: PreTrainedConfig, slots: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(layers=[])
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.store = torch.zeros(
            (2, config.num_hidden_layers, slots, heads, CAPACITY_STEP, width), device=device, dtype=dtype
        )

    def reserve(self, length: int) -> None:
        """Make room for rows of `length` tokens."""
        missing = length - self.store.shape[4]
        if missing > 0:
            shape = list(self.store.shape)
            shape[4] = -(-missing // CAPACITY_STEP) * CAPACITY_STEP
            # zeros, not empty: a masked value has weight 0, and 0 times a leftover NaN would still be NaN
            self.store = torch.cat([self.store, self.store.new_zeros(shape)], dim=4)

    def line_up(self, cached: Sequence[int], new: Sequence[int]) -> Line:
        """The next forward pass: the row in slot i has `cached[i]` tokens in the cache and `new[i]` to be computed."""
        device = self.store.device
        self.reserve(max(map(sum, zip(cached, new, strict=True))))
        starts, counts = torch.tensor(cached), torch.tensor(new)
        ends = counts.cumsum(0) - 1
        slots = torch.repeat_interleave(counts)
        positions = torch.arange(len(slots)) + (starts - ends + counts - 1)[slots]
        single = next((slot for slot, count in enumerate(new) if count > 1), len(new))
        longest = max(cached[:single], default=0) + 1
        spans = []
        for slot in range(single, len(new)):
            last = int(ends[slot]) + 1
            first = last - new[slot]
            mask = self._mask(positions[first:last, None], cached[slot] + new[slot])
            spans.append(Span(slot, first, last, mask[None, None]))
        single_mask = self._mask(positions[:single, None], longest)[:, None, None]
        self._line = Line(slots.to(device), positions.to(device), ends.to(device), single, single_mask, tuple(spans))
        return self._line

    def _mask(self, positions: torch.Tensor, length: int) -> torch.Tensor:
        """A token sees its row up to and with its own position: (N, 1) positions to an additive (N, length)."""
        hidden = torch.arange(length) > positions
        return (
            torch.zeros(hidden.shape, dtype=self.store.dtype).masked_fill_(hidden, float("-inf")).to(self.store.device)
        )

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by each layer with new states (1, heads, T, width); returns its part of the store."""
        keys, values = self.store[0, layer_idx], self.store[1, layer_idx]
        keys[self._line.slots, :, self._line.positions] = key_states[0].transpose(0, 1)
        values[self._line.slots, :, self._line.positions] = value_states[0].transpose(0, 1)
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0  # positions are always given, so nothing is derived from this

    def read(self, slot: int, length: int) -> torch.Tensor:
        """A copy of the first `length` tokens of a row: (2, layers, heads, length, width)."""
        return self.store[:, :, slot, :, :length].clone()

    def write(self, slot: int, states: torch.Tensor) -> None:
        self.reserve(states.shape[3])
        self.store[:, :, slot, :, : states.shape[3]] = states

    def move(self, source: int, target: int, length: int) -> None:
        self.store[:, :, target, :, :length] = self.store[:, :, source, :, :length]


def row_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    line: Line,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """
    Attention of a line of queries (1, H, T, d) to the rows in `key` and `value` (slots, K, capacity, d): (1, T, H, d).
    The H/K query heads that share a key head are laid out as further query positions, which gives the same result as
    repeating the keys but does not copy the cache at every step.
    """
    heads, shared, width = query.shape[1], key.shape[1], query.shape[3]
    output = query.new_empty(query.shape[2], heads, width)
    if line.single:
        length = line.single_mask.shape[3]
        queries = query[0, :, : line.single].transpose(0, 1).reshape(line.single, shared, -1, width)
        keys, values = key[: line.single, :, :length], value[: line.single, :, :length]
        found = scaled_dot_product_attention(queries, keys, values, attn_mask=line.single_mask, scale=scaling)
        output[: line.single] = found.reshape(line.single, heads, width)
    for span in line.spans:
        length = span.mask.shape[3]
        queries = query[0, :, span.first : span.last].reshape(1, shared, -1, width)
        mask = span.mask.repeat(1, 1, heads // shared, 1)
        keys, values = key[span.slot, None, :, :length], value[span.slot, None, :, :length]
        found = scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scaling)
        output[span.first : span.last] = found.reshape(heads, -1, width).transpose(0, 1)
    return output[None], None


ATTENTION = "text2sql_rows"
AttentionInterface.register(ATTENTION, row_attention)


@dataclass(frozen=True)
class Beginning:
    """The first `length` tokens of a request, computed earlier; `continued`: they are a finished message of its own."""

    length: int
    continued: bool
    states: torch.Tensor | None = None  # (2, layers, heads, length, width)


@dataclass(eq=False)
class _Kept:
    token_ids: tuple[int, ...]
    states: torch.Tensor  # (2, layers, heads, tokens, width)
    keys: tuple[int, ...]
    once: bool

    @property
    def bytes(self) -> int:
        return self.states.numel() * self.states.element_size()


class KeptSequences:
    """Keys and values by token ids, the least recently used ones dropped when `limit_bytes` is reached."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.bytes = 0
        self._entries: OrderedDict[_Kept, None] = OrderedDict()
        self._index: dict[int, _Kept] = {}

    def keep(self, token_ids: Sequence[int], states: torch.Tensor, *, once: bool) -> None:
        """`once`: a finished message, which one request will continue; else a prompt, which many may share."""
        hashes = prefix_hashes(token_ids)
        if not hashes:
            return
        keys = hashes[-1:] if once else [*hashes[BLOCK - 1 :: BLOCK], hashes[-1]]
        entry = _Kept(tuple(token_ids), states, tuple(keys), once)
        self._entries[entry] = None
        self._index.update(dict.fromkeys(keys, entry))
        self.bytes += entry.bytes
        while self.bytes > self.limit_bytes:
            self._drop(next(iter(self._entries)))

    def longest(self, token_ids: Sequence[int], hashes: Sequence[int]) -> Beginning:
        """The longest kept beginning of `token_ids`; `hashes` are its `prefix_hashes`."""
        for length in range(len(hashes), 0, -1):
            entry = self._index.get(hashes[length - 1])
            if entry is not None and entry.token_ids[:length] == tuple(token_ids[:length]):
                if entry.once:
                    self._drop(entry)
                else:
                    self._entries.move_to_end(entry)
                return Beginning(length, entry.once, entry.states[:, :, :, :length])
        return Beginning(0, False)

    def clear(self) -> None:
        self._entries.clear()
        self._index.clear()
        self.bytes = 0

    def _drop(self, entry: _Kept) -> None:
        del self._entries[entry]
        self.bytes -= entry.bytes
        for key in entry.keys:
            if self._index.get(key) is entry:
                del self._index[key]


def prefix_hashes(token_ids: Sequence[int]) -> list[int]:
    """One hash per beginning of `token_ids`, each made from the one before."""
    return list(accumulate(token_ids, lambda before, token: hash((before, token)), initial=0))[1:]
