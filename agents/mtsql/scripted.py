"""
Scripted episodes: what a careful model would say, with mistakes that it finds and corrects.

They stand in for pretraining where the policy is made from scratch: a model that has never seen the protocol cannot be
sampled from. Each episode follows the paper's transitions (section 1 of the method): PROPOSE, EXECUTE, E-VERIFY, then
M-VERIFY when there are earlier turns, SELF-CORRECT after a no_pass, FINALIZE after both passes. Verdicts are honest: every
planted mistake is executed while the episode is written, an execution mistake must fail or return nothing and gets
an E-VERIFY no_pass, a coherence mistake must return other rows than gold, gets an E-VERIFY pass and an M-VERIFY no_pass.

What the environment answers is not written here: the messages are replayed through the real one.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from agents.mtsql.actions import EXEC_SQL, MEMORY_RETRIEVE, answer_text, call_text, e_verify_text, m_verify_text
from agents.mtsql.mistakes import coherence_mistakes, execution_mistakes
from text2sql.config import AgentSettings
from text2sql.dialogue import Item
from text2sql.executor import Execution
from text2sql.schema import Schema

Execute = Callable[[str], Execution]
ATTEMPTS = 8
EXECUTE, MEMORY = "execute", "memory"  # the tools, and what finds a mistake


@dataclass(frozen=True)
class ScriptedEpisode:
    """`messages` of the model in order; `mistaken` holds the places of those whose SQL is a planted mistake."""

    messages: tuple[str, ...]
    mistaken: frozenset[int] = frozenset()


@dataclass(frozen=True)
class _Mistake:
    sql: str
    found_by: str


def scripted_episode(
    item: Item,
    rng: random.Random,
    mistakes_per_episode: float,
    settings: AgentSettings,
    schema: Schema,
    execute: Execute,
) -> ScriptedEpisode:
    """
    One episode on `item` that ends with its gold. `mistakes_per_episode` is the expected number of mistakes; there are
    fewer where the budget of `settings` has no room for their correction, or where the query offers none. `execute`
    runs SQL on the item's database. The same `rng` state gives the same episode.
    """
    gold = item.gold.strip()
    tools = {EXECUTE: EXECUTE in settings.tools, MEMORY: MEMORY in settings.tools and bool(item.history)}
    budget = min(settings.max_tool_calls, settings.max_messages - 1)
    if settings.horizon == "short" or budget < 1 or not any(tools.values()):
        return ScriptedEpisode((answer_text(gold),))
    wanted = int(mistakes_per_episode) + (rng.random() < mistakes_per_episode % 1)
    mistakes: list[_Mistake] = []
    for _ in range(wanted):
        mistakes += _draw_mistake(item, rng, mistakes, budget, tools, schema, execute)
    return _write(gold, sorted(mistakes, key=lambda mistake: mistake.found_by), tools, budget)


def _draw_mistake(
    item: Item,
    rng: random.Random,
    before: list[_Mistake],
    budget: int,
    tools: dict[str, bool],
    schema: Schema,
    execute: Execute,
) -> list[_Mistake]:
    """One more mistake that does what it is meant to do, or none when nothing fits the budget or the query."""
    classes = [
        name
        for name in (EXECUTE, MEMORY)
        if tools[name] and _least_calls([*(mistake.found_by for mistake in before), name], tools) <= budget
    ]
    if not classes:
        return []
    found_by = rng.choice(classes)
    gold = execute(item.gold)
    queries = (
        execution_mistakes(item.gold, schema, rng)
        if found_by == EXECUTE
        else coherence_mistakes(item.gold, [turn.sql for turn in item.history], rng)
    )
    for sql in islice(queries, ATTEMPTS):
        if sql not in [mistake.sql for mistake in before] and _is_seen(execute(sql), gold, found_by):
            return [_Mistake(sql, found_by)]
    return []


def _is_seen(result: Execution, gold: Execution, found_by: str) -> bool:
    """Whether a query with this result is a mistake that its check can find."""
    if found_by == EXECUTE:
        return result.status == "error" or (result.status == "empty" and gold.status == "ok")
    return result.status == "ok" and sorted(map(repr, result.rows)) != sorted(map(repr, gold.rows))


def _least_calls(found_by: Sequence[str], tools: dict[str, bool]) -> int:
    """
    Calls of the shortest episode with mistakes found by these. One found by memory is executed and checked, gold is
    executed, and checked unless the memory was asked before.
    """
    executed = (len(found_by) + 1) * tools[EXECUTE]
    checked = max(found_by.count(MEMORY) + (not tools[EXECUTE]), 1) * tools[MEMORY]
    return executed + checked


def _write(gold: str, mistakes: list[_Mistake], tools: dict[str, bool], budget: int) -> ScriptedEpisode:
    """The messages, as many calls as the budget allows: a last memory check is left out where no call is left for it."""
    messages: list[str] = []
    mistaken: set[int] = set()
    verdict = ""
    for mistake in [*mistakes, None]:
        sql = mistake.sql if mistake else gold
        if tools[EXECUTE]:
            if mistake:
                mistaken.add(len(messages))
            messages.append(_joined(verdict, call_text(EXEC_SQL, sql)))
            verdict = e_verify_text("no_pass" if mistake and mistake.found_by == EXECUTE else "pass")
        if tools[MEMORY] and (mistake is None or mistake.found_by == MEMORY) and len(messages) < budget:
            if mistake:
                mistaken.add(len(messages))
            messages.append(_joined(verdict, call_text(MEMORY_RETRIEVE, sql)))
            verdict = m_verify_text("no_pass" if mistake else "pass")
    messages.append(_joined(verdict, answer_text(gold)))
    return ScriptedEpisode(tuple(messages), frozenset(mistaken))


def _joined(*parts: str) -> str:
    return "\n".join(part for part in parts if part)
