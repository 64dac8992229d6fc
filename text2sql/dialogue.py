"""
Dialogues, turns and items.

A dialogue is a conversation over one database; a turn is one utterance with its gold SQL; an item is one turn to
answer, together with the turns before it. A single-turn question is a dialogue of one turn.
"""

from dataclasses import dataclass, field
from typing import Literal

Split = Literal["train", "validation", "dev", "dev_phrasing"]
"""`validation` is drawn from train; `dev_phrasing` is dev in words that train never joins, which only the demo has."""

Prior = Literal["gold", "predicted"]


@dataclass(frozen=True)
class Turn:
    """One utterance and its gold SQL, `gold` with split operators (`> =`) repaired, `gold_as_released` untouched."""

    utterance: str
    gold: str
    gold_as_released: str


@dataclass(frozen=True)
class Dialogue:
    """A conversation over one database. `dialogue_id` is `<split>/<position in its file>`, positions from 0."""

    dialogue_id: str
    db_id: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class PriorTurn:
    """An earlier turn as the agent may see it: `sql` is gold or the agent's own, by the rollout's `prior`."""

    utterance: str
    sql: str


@dataclass(frozen=True)
class Question:
    """
    What an agent gets to see of an item. It holds no gold for the turn that is asked; `history` holds the
    earlier turns with whichever SQL the rollout's `prior` allows.
    """

    item_id: str
    dialogue_id: str
    turn: int
    db_id: str
    utterance: str
    schema_text: str
    history: tuple[PriorTurn, ...] = field(default=())


@dataclass(frozen=True)
class Item:
    """
    One turn to answer, with its gold. `turn` counts from 1 and keeps its number when earlier turns are set aside.
    `fault` is empty for a gradable item, else the audit's reason for setting it aside (never a training target).
    """

    item_id: str
    split: Split
    dialogue_id: str
    turn: int
    turns_in_dialogue: int
    db_id: str
    utterance: str
    gold: str
    history: tuple[PriorTurn, ...]
    schema_text: str
    hardness: str | None
    fault: str = ""

    @property
    def gradable(self) -> bool:
        return not self.fault

    def question(self, predicted: tuple[str | None, ...] | None = None) -> Question:
        """
        The item as the agent sees it. With `predicted` (the agent's own SQL of turns 1..turn-1, None where it gave
        no answer) the history holds those instead of gold.
        """
        history = self.history
        if predicted is not None:
            if len(predicted) != len(history):
                raise ValueError(f"{self.item_id}: {len(history)} earlier turns, {len(predicted)} predictions")
            history = tuple(PriorTurn(turn.utterance, sql or "") for turn, sql in zip(history, predicted, strict=True))
        return Question(
            self.item_id, self.dialogue_id, self.turn, self.db_id, self.utterance, self.schema_text, history
        )
