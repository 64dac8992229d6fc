"""
The decode loop: rows that are generated together, joining and leaving at any step.

A row's prompt is computed up to its last token, minus the beginning that is kept from an earlier request; from then on
each step feeds one token per row and draws the next. Plain and synchronous: `TransformersEngine` gives it its rows.
"""

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from text2sql.engines.base import Generation, SamplingParams
from text2sql.engines.kv_cache import KeptSequences, SlotCache

PREFILL_TOKENS = 4096
"""Prompt tokens, padding included, that one forward pass computes."""


@dataclass(eq=False)
class Row:
    """One request. `cached` of its `token_ids` (prompt and generated) are in its slot; the next step feeds the next."""

    prompt_length: int
    params: SamplingParams
    token_ids: list[int]
    random: random.Random
    logprobs: list[float] = field(default_factory=list)
    cached: int = 0
    abandoned: bool = False

    @classmethod
    def of(cls, prompt_ids: Sequence[int], params: SamplingParams, seed: int) -> "Row":
        return cls(len(prompt_ids), params, list(prompt_ids), random.Random(seed))

    @property
    def pending(self) -> int:
        """Prompt tokens that are still to be computed before the first step."""
        return len(self.token_ids) - 1 - self.cached

    @property
    def generated(self) -> list[int]:
        return self.token_ids[self.prompt_length :]

    @property
    def finished(self) -> bool:
        return self.stopped or len(self.logprobs) >= self.params.max_tokens

    @property
    def stopped(self) -> bool:
        return bool(self.logprobs) and self.token_ids[-1] in self.params.stop_token_ids

    def generation(self) -> Generation:
        return Generation(tuple(self.generated), tuple(self.logprobs), "stop" if self.stopped else "length")


class DecodeLoop:
    """Rows over one causal LM whose layers all attend to the whole sequence."""

    def __init__(self, model: Any, slots: int, keep_bytes: int) -> None:
        self.model = model
        self.slots = slots
        self.cache = SlotCache(model.config, slots, model.device, model.dtype)
        self.kept = KeptSequences(keep_bytes)
        self.waiting: deque[Row] = deque()
        self.active: list[Row] = []  # in the order of their slots

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.active)

    def reset(self) -> None:
        """Forget all rows and all keys and values: needed whenever the weights have changed."""
        self.waiting.clear()
        self.active.clear()
        self.kept.clear()

    @torch.no_grad()
    def step(self, arrived: Iterable[Row] = ()) -> list[Row]:
        """Let rows join, then generate one token for each. Returns the rows that are finished (or abandoned)."""
        self.waiting.extend(arrived)
        self._join()
        if self.active:
            self._decode()
        return self._leave()

    def _join(self) -> None:
        """Fill free slots. Of equal prompts one joins first, so that the others find it kept."""
        while self.waiting and len(self.active) < self.slots:
            joining: dict[tuple[int, ...], Row] = {}
            later: list[Row] = []
            while self.waiting and len(self.active) + len(joining) < self.slots:
                row = self.waiting.popleft()
                if row.abandoned:
                    continue
                if joining.setdefault(tuple(row.token_ids), row) is not row:
                    later.append(row)
            self.waiting.extendleft(reversed(later))
            self._prefill(list(joining.values()))

    def _prefill(self, rows: list[Row]) -> None:
        """Give `rows` the next free slots and bring their prompts, but for the last token, into the cache."""
        found = {row: self.kept.longest(row.token_ids[:-1]) for row in rows}
        for row in rows:
            row.cached = found[row].length
        rows.sort(key=lambda row: row.pending)  # neighbours of similar length waste little padding
        first = len(self.active)
        self.active.extend(rows)
        for slot, row in enumerate(rows, start=first):
            self.cache.write(slot, found[row].states)
        while first < len(self.active):
            last = first + 1
            while last < len(self.active) and (last + 1 - first) * self.active[last].pending <= PREFILL_TOKENS:
                last += 1
            self._compute(first, last)
            first = last
        for slot, row in enumerate(rows, start=len(self.active) - len(rows)):
            if not found[row].continued:
                self.kept.keep(row.token_ids[: row.cached], self.cache.read(slot, row.cached), once=False)

    def _compute(self, first: int, last: int) -> None:
        """One forward pass over the pending prompt tokens of slots first..last-1, padded on the right."""
        rows = self.active[first:last]
        width = max(row.pending for row in rows)
        if width == 0:
            return
        ids = [row.token_ids[row.cached : -1] + [0] * (width - row.pending) for row in rows]
        starts = torch.tensor([row.cached for row in rows], device=self.model.device)
        self._forward(first, torch.tensor(ids), starts[:, None] + torch.arange(width, device=starts.device))
        for row in rows:
            row.cached += row.pending  # what the padding wrote behind it is overwritten before it can be seen

    def _decode(self) -> None:
        device = self.model.device
        ids = torch.tensor([row.token_ids[-1] for row in self.active])[:, None]  # (B, 1)
        positions = torch.tensor([row.cached for row in self.active], device=device)[:, None]
        logits = self._forward(0, ids, positions)[:, -1].float()  # (B, V)
        drawn, logprobs = draw(logits, self.active)
        for row, token, logprob in zip(self.active, drawn.tolist(), logprobs.tolist(), strict=True):
            row.token_ids.append(token)
            row.logprobs.append(logprob)
            row.cached += 1

    def _forward(self, first: int, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        mask = self.cache.aim(first, positions)
        output = self.model(
            input_ids=ids.to(positions.device),
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: torch.Tensor = output.logits
        return logits

    def _leave(self) -> list[Row]:
        """Take finished rows out, keeping what they computed, and close the gaps with rows from the end."""
        gone = [(slot, row) for slot, row in enumerate(self.active) if row.finished or row.abandoned]
        for slot, row in reversed(gone):
            if not row.abandoned:
                self.kept.keep(row.token_ids[: row.cached], self.cache.read(slot, row.cached), once=True)
            last = self.active.pop()
            if last is not row:
                self.cache.move(len(self.active), slot, last.cached)
                self.active[slot] = last
        return [row for _, row in gone]


def draw(logits: torch.Tensor, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """
    One token per row from `logits` (B, V), and its log-probability: both (B,). Each row draws with its own random
    numbers, one per token, so a draw does not depend on which rows are generated together.
    """
    device = logits.device
    temperatures = torch.tensor([row.params.temperature for row in rows], device=device)
    greedy = temperatures == 0
    logprobs = (logits / torch.where(greedy, 1.0, temperatures)[:, None]).log_softmax(-1)
    if any(row.params.top_p < 1 and row.params.temperature > 0 for row in rows):
        tops = [row.params.top_p if row.params.temperature > 0 else 1.0 for row in rows]
        logprobs = _nucleus(logprobs, torch.tensor(tops, device=device))
    tokens = logits.argmax(-1)
    if not greedy.all():
        uniform = torch.tensor([row.random.random() for row in rows], device=device, dtype=torch.float64)
        cumulative = logprobs.double().exp().cumsum(-1)
        sampled = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True).squeeze(1)
        tokens = torch.where(greedy, tokens, sampled.clamp(max=logits.shape[1] - 1))
    return tokens, logprobs.gather(1, tokens[:, None]).squeeze(1)


def _nucleus(logprobs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Keep the fewest most likely tokens that together reach `top_p` (B,), and renormalize."""
    ordered, order = logprobs.sort(-1, descending=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    dropped = torch.zeros_like(logprobs, dtype=torch.bool).scatter(1, order, before >= top_p[:, None])
    return logprobs.masked_fill(dropped, float("-inf")).log_softmax(-1)
