"""
Trajectories: all that the model and the environment said for one item.

A trajectory is kept twice over, each form for its own readers: as `segments` of token ids exactly as they were
generated (training reads these: token in, token out), and as `events` (rewards, selection and error analysis read
these, never text). `validate` states what must hold between them.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from text2sql.errors import TrajectoryError

Author = Literal["prompt", "model", "environment"]
EventKind = Literal[
    "propose",  # the model's first SQL (in a tool call, or an answer without any call)
    "self_correct",  # a later SQL of the model that differs from the one before it
    "execute",  # the environment ran an SQL: status, columns, rows
    "recall",  # the environment answered a memory call
    "e_verify",  # the model's verdict on the last execution: pass | no_pass
    "m_verify",  # the model's verdict on coherence with the memory: pass | no_pass
    "malformed",  # a message the environment could not act on; `message` is the reason, `fault` its class
    "finalize",  # the model's final SQL
]
Verdict = Literal["pass", "no_pass"]
StopReason = Literal[
    "answered",  # a well-formed <answer_sql>
    "max_tool_calls",  # another call was asked for after the budget of executed calls was spent
    "max_messages",  # too many messages without an answer (malformed ones included)
    "max_episode_tokens",  # the token budget of the episode is spent
    "max_message_tokens",  # one message ran into its own limit without ending
    "prompt_too_long",  # the prompt alone exceeds its budget: nothing was generated
]


@dataclass(frozen=True)
class Event:
    """
    One action in an episode. `message_index` counts the model's messages from 0. `sql` for propose, self_correct,
    execute, recall, finalize; `status`, `columns`, `rows`, `row_count`, `seconds` for execute (`rows` is the snippet
    the model was shown, `row_count` all rows returned); `verdict` for e_verify and m_verify; `fault` and `message`
    for malformed, `message` also for a failed execute (the database's own words).
    """

    kind: EventKind
    message_index: int
    sql: str | None = None
    status: str | None = None
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    row_count: int = 0
    seconds: float = 0.0
    verdict: Verdict | None = None
    fault: str | None = None
    message: str | None = None


@dataclass(frozen=True)
class Segment:
    """A run of tokens by one author. `logprobs` has one value per token for `model` segments, else is empty."""

    author: Author
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    text: str = ""


@dataclass(frozen=True)
class Trajectory:
    """
    One episode. `sample` numbers the samples of an item from 0. `final_sql` is the SQL of the `finalize` event,
    None when there was no answer. `prior` says whose SQL the history held.
    """

    item_id: str
    dialogue_id: str
    turn: int
    db_id: str
    sample: int
    prior: str
    segments: tuple[Segment, ...]
    events: tuple[Event, ...]
    final_sql: str | None
    stop_reason: StopReason
    seconds: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def token_ids(self) -> list[int]:
        return [token for segment in self.segments for token in segment.token_ids]

    @property
    def loss_mask(self) -> list[int]:
        """1 for tokens that the model itself produced, 0 for the prompt's and the environment's."""
        return [int(segment.author == "model") for segment in self.segments for _ in segment.token_ids]

    @property
    def prompt_ids(self) -> list[int]:
        return list(self.segments[0].token_ids) if self.segments else []

    @property
    def completion(self) -> tuple[list[int], list[int], list[float]]:
        """Token ids after the prompt, their loss mask, and their logprobs (0.0 for tokens of the environment)."""
        ids: list[int] = []
        mask: list[int] = []
        logprobs: list[float] = []
        for segment in self.segments[1:]:
            ids.extend(segment.token_ids)
            mask.extend([int(segment.author == "model")] * len(segment.token_ids))
            logprobs.extend(segment.logprobs or [0.0] * len(segment.token_ids))
        return ids, mask, logprobs

    def events_of(self, *kinds: EventKind) -> list[Event]:
        return [event for event in self.events if event.kind in kinds]

    @property
    def tool_calls(self) -> int:
        """Executed tool calls: SQL runs and memory look-ups. This is the paper's number of interactions."""
        return len(self.events_of("execute", "recall"))

    @property
    def completion_tokens(self) -> int:
        return sum(len(segment.token_ids) for segment in self.segments[1:])

    def validate(self) -> None:
        """Raise TrajectoryError unless ids, mask and logprobs line up and the first segment is the prompt."""
        where = f"trajectory {self.item_id} sample {self.sample}"
        if not self.segments or self.segments[0].author != "prompt":
            raise TrajectoryError(f"{where}: expected a prompt as first segment")
        for index, segment in enumerate(self.segments):
            if index and segment.author == "prompt":
                raise TrajectoryError(f"{where}: segment {index} is a second prompt")
            expected = len(segment.token_ids) if segment.author == "model" else 0
            if len(segment.logprobs) != expected:
                raise TrajectoryError(
                    f"{where}: segment {index} ({segment.author}) has {len(segment.token_ids)} token ids and "
                    f"{len(segment.logprobs)} logprobs; expected {expected}. The row is refused."
                )
        finals = self.events_of("finalize")
        if (finals[-1].sql if finals else None) != self.final_sql:
            raise TrajectoryError(f"{where}: final_sql differs from its finalize event")

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> "Trajectory":
        data = json.loads(line)
        data["segments"] = tuple(
            Segment(s["author"], tuple(s["token_ids"]), tuple(s["logprobs"]), s["text"]) for s in data["segments"]
        )
        data["events"] = tuple(
            Event(**{**e, "columns": tuple(e["columns"]), "rows": tuple(tuple(row) for row in e["rows"])})
            for e in data["events"]
        )
        return cls(**data)


def write_trajectories(trajectories: Iterable[Trajectory], path: Path) -> int:
    """Write one JSON line per trajectory, each validated first; the file appears whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    count = 0
    with partial.open("w", encoding="utf-8") as file:
        for trajectory in trajectories:
            trajectory.validate()
            file.write(trajectory.to_json() + "\n")
            count += 1
    partial.replace(path)
    return count


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """Trajectories of one JSON Lines file, or of every `*.jsonl` in a folder in the order of their names."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    for file in files:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    yield Trajectory.from_json(line)
                except (ValueError, KeyError, TypeError) as error:
                    raise TrajectoryError(f"{file.name} line {number} is no trajectory: {error}") from error
