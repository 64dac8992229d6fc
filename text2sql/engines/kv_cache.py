"""
Where the decode loop keeps keys and values: slots for the rows being generated, and sequences kept for later.

Both exist because an episode asks several times for the continuation of almost the same tokens. `SlotCache` is one
padded tensor that rows join and leave at any step. `KeptSequences` holds the keys and values of prompts (samples of one
item share them, and questions over one database share the schema in front) and of finished messages (the next message
of an episode continues them), so that only tokens that are new to the model are computed.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from transformers import AttentionInterface, Cache, PreTrainedConfig

CAPACITY_STEP = 256
"""Slots grow by this many tokens."""
BLOCK = 32
"""A kept prompt can be shared up to any multiple of this many tokens."""


class SlotCache(Cache):
    """
    Keys and values of up to `slots` rows in one tensor (2, layers, slots, heads, capacity, head width); row i occupies
    positions 0..length-1 of its slot. `aim` says which slots and positions the next forward pass writes and reads.
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

    def aim(self, first: int, positions: torch.Tensor) -> torch.Tensor:
        """
        Point the next forward pass at slots first.. and token `positions` (B, S). Returns the additive attention mask
        (B, 1, S, L): a token sees its own row up to and with its own position.
        """
        length = int(positions.max()) + 1
        self.reserve(length)
        self._slots = torch.arange(first, first + len(positions), device=positions.device)[:, None]  # (B, 1)
        self._positions = positions
        self._view = (slice(first, first + len(positions)), slice(None), slice(length))
        hidden = torch.arange(length, device=positions.device) > positions[:, None, :, None]
        return torch.zeros(hidden.shape, device=positions.device, dtype=self.store.dtype).masked_fill_(
            hidden, float("-inf")
        )

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by each layer with new states (B, heads, S, width); returns those of the whole rows."""
        keys, values = self.store[0, layer_idx], self.store[1, layer_idx]
        keys[self._slots, :, self._positions] = key_states.transpose(1, 2)
        values[self._slots, :, self._positions] = value_states.transpose(1, 2)
        return keys[self._view], values[self._view]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0  # positions are always given, so nothing is derived from this

    def read(self, slot: int, length: int) -> torch.Tensor:
        """A copy of the first `length` tokens of a row: (2, layers, heads, length, width)."""
        return self.store[:, :, slot, :, :length].clone()

    def write(self, slot: int, states: torch.Tensor | None) -> None:
        if states is None:
            return
        self.reserve(states.shape[3])
        self.store[:, :, slot, :, : states.shape[3]] = states

    def move(self, source: int, target: int, length: int) -> None:
        self.store[:, :, target, :, :length] = self.store[:, :, source, :, :length]


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """
    Attention of query heads (B, H, S, d) over fewer key heads (B, K, L, d) without repeating the keys: the H/K queries
    that share a key head are laid out as further query positions. Repeating them, as transformers does when there is a
    mask, copies the whole cache at every step.
    """
    batch, heads, length, width = query.shape
    groups = heads // key.shape[1]
    mask = attention_mask.repeat(1, 1, groups, 1) if length > 1 else attention_mask
    output = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(batch, key.shape[1], groups * length, width), key, value, attn_mask=mask, scale=scaling
    )
    return output.reshape(batch, heads, length, width).transpose(1, 2).contiguous(), None


ATTENTION = "text2sql_grouped"
AttentionInterface.register(ATTENTION, grouped_attention)


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
        hashes = _prefix_hashes(token_ids)
        keys = hashes[-1:] if once else [*hashes[BLOCK - 1 :: BLOCK], hashes[-1]]
        entry = _Kept(tuple(token_ids), states, tuple(keys), once)
        self._entries[entry] = None
        self._index.update(dict.fromkeys(keys, entry))
        self.bytes += entry.bytes
        while self.bytes > self.limit_bytes:
            self._drop(next(iter(self._entries)))

    def longest(self, token_ids: Sequence[int]) -> Beginning:
        """The longest kept beginning of `token_ids`."""
        hashes = _prefix_hashes(token_ids)
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


def _prefix_hashes(token_ids: Sequence[int]) -> list[int]:
    """One hash per beginning of `token_ids`, each made from the one before."""
    return list(accumulate(token_ids, lambda before, token: hash((before, token)), initial=0))[1:]
