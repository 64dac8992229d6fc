"""
The decode loop: rows that are generated together, joining and leaving at any step.

A step is one forward pass over what is new in each row, and one drawn token per row. What is new is at first the prompt,
minus the beginning that is kept from an earlier request, and from then on the token drawn last. Plain and synchronous:
`TransformersEngine` gives it its rows.
"""

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from text2sql.engines.base import Generation, SamplingParams
from text2sql.engines.kv_cache import Beginning, KeptSequences, SlotCache, prefix_hashes
from text2sql.errors import EngineError

STEP_TOKENS = 2048
"""About how many prompt tokens one step computes beside the row that it generates for."""
SHARED_TOKENS = 64
"""A row waits one step when this much of its prompt is just being computed for another row."""


@dataclass(eq=False)
class Row:
    """One request. The first `cached` of its `token_ids` (prompt and generated) are in its slot."""

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
        """Tokens that the next step computes: what is new of the prompt at first, then the last drawn one."""
        return len(self.token_ids) - self.cached

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
        fresh = self._join()
        if self.active:
            self._advance()
        for slot, row in enumerate(self.active):
            if row in fresh:
                prompt = row.token_ids[: row.prompt_length - 1]
                self.kept.keep(prompt, self.cache.read(slot, len(prompt)), once=False)
        return self._leave()

    def _join(self) -> set[Row]:
        """Fill free slots, bringing in what is kept of each prompt. Returns the rows whose prompt others may share."""
        joining: list[tuple[Row, Beginning]] = []
        fresh: set[Row] = set()
        later: list[Row] = []
        computing: set[int] = set()
        tokens = 0
        while self.waiting and len(self.active) + len(joining) < self.slots and tokens < STEP_TOKENS:
            row = self.waiting.popleft()
            if row.abandoned:
                continue
            prompt = row.token_ids[:-1]
            hashes = prefix_hashes(prompt)
            found = self.kept.longest(prompt, hashes)
            if not found.continued:
                soon = next((n for n in range(len(hashes), 0, -1) if hashes[n - 1] in computing), 0)
                if soon >= found.length + SHARED_TOKENS:
                    later.append(row)
                    continue
                fresh.add(row)
                computing.update(hashes)
            row.cached = found.length
            tokens += row.pending
            joining.append((row, found))
        self.waiting.extendleft(reversed(later))
        joining.sort(key=lambda each: each[0].pending > 1)  # the cache wants rows with a single new token first
        for row, found in joining:
            if found.states is not None:
                self.cache.write(len(self.active), found.states)
            self.active.append(row)
        return fresh

    def _advance(self) -> None:
        """One forward pass over the pending tokens of all rows, and one drawn token for each."""
        pending = [token for row in self.active for token in row.token_ids[row.cached :]]
        line = self.cache.line_up([row.cached for row in self.active], [row.pending for row in self.active])
        output = self.model(
            input_ids=torch.tensor([pending], device=self.model.device),
            position_ids=line.positions[None],
            attention_mask=line.single_mask,  # given only so that none is made; `row_attention` reads the line
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=line.ends,
            line=line,
        )
        drawn, logprobs = draw(output.logits[0].float(), self.active)
        if not logprobs.isfinite().all():
            raise EngineError("the model's logits are not finite: its weights are damaged, or its training diverged")
        for row, token, logprob in zip(self.active, drawn.tolist(), logprobs.tolist(), strict=True):
            row.cached = len(row.token_ids)
            row.token_ids.append(token)
            row.logprobs.append(logprob)

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
