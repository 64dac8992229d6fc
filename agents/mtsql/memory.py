"""
What M-VERIFY may remember of earlier turns.

The environment asks a `DialogueMemory` and shows the model what comes back; another backend (a vector store over many
dialogues, say) is another class with the same method. The default one is made from the question's own history and
keeps nothing between episodes. Whose SQL the history holds (gold or the agent's own) was decided when the question was
made; the gold SQL of the asked turn is in neither.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from evaluation.clauses import ClauseView, clause_view
from text2sql.dialogue import PriorTurn, Question
from text2sql.executor import Executor, render_result


@dataclass(frozen=True)
class RememberedTurn:
    """
    An earlier turn. `sql` is empty when no answer was given. `view` holds its clauses and entities, aggregates included;
    None when the SQL cannot be read. `result` is a snippet of its result, empty when the memory keeps none.
    """

    turn: int
    utterance: str
    sql: str
    view: ClauseView | None
    result: str = ""


class DialogueMemory(Protocol):
    async def recall(self, question: Question, sql: str) -> Sequence[RememberedTurn]:
        """The earlier turns to compare the proposed `sql` with, the oldest first."""
        ...


class HistoryMemory:
    """All earlier turns of the question, with results of up to `result_characters` (0: without results)."""

    def __init__(self, executor: Executor, database: Path, result_characters: int = 0) -> None:
        self.executor = executor
        self.database = database
        self.result_characters = result_characters

    async def recall(self, question: Question, sql: str) -> Sequence[RememberedTurn]:
        return [await self._remember(turn, prior) for turn, prior in enumerate(question.history, start=1)]

    async def _remember(self, turn: int, prior: PriorTurn) -> RememberedTurn:
        view = clause_view(prior.sql) if prior.sql else None
        result = ""
        if self.result_characters and prior.sql:
            execution = await self.executor.aexecute(prior.sql, self.database)
            result = render_result(execution, self.result_characters)
        return RememberedTurn(turn, prior.utterance, prior.sql, view, result)
