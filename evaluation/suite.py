"""
Suite EX: is a prediction right on the neighbours of its database, too? A second judge beside EX, against luck.

Not to be mixed up with the official evaluator's test suites, which are further SQLite files in a database's folder and
part of EX itself. Neighbours are made here (`evaluation.neighbours`), for each pair, and never lie in that folder.

    status       ex_suite   when
    right        True       EX is true, and the prediction equals the gold on every neighbour that can tell
    wrong        False      EX is true, and on some neighbour it gives something else
    pred_error   False      EX is true, and the database refuses it on some neighbour
    ex_wrong     False      EX is false; nothing is run
    ex_null      None       EX is null; nothing is run
    no_neighbour None       EX is true, but no neighbour can tell (`left_out` says how many could not)

A neighbour cannot tell when the gold fails on it, or when gold or prediction runs into a limit. On a neighbour,
predictions are right by rule `official` of `evaluation.execution_match`, and also

    - by its rule `tie_aware`: neighbours have many ties, and the official rule takes DISTINCT away;
    - with all rows that tie with the last one that the gold's LIMIT keeps, as `= (SELECT max(…))` gives them: which of
      them are kept is chance;
    - where one side returns no row and the other a row of NULLs: nothing was found, asked by ORDER BY or by MIN.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from evaluation.execution_match import (
    GOLD_LIMITS,
    ExecutionVerdict,
    asked_for,
    execution_match,
    official_prediction,
    official_text,
)
from evaluation.neighbours import COUNT, RULES, Neighbours
from evaluation.query_focus import read_focus
from evaluation.result_match import UndecidedError
from evaluation.ties import admits_all_tied, order_probe
from text2sql.executor import Executor, Limits
from text2sql.schema import Schema

SuiteStatus = Literal["right", "wrong", "pred_error", "ex_wrong", "ex_null", "no_neighbour"]
GoldSays = Literal["varies", "constant", "empty", "fails"]

# Of suite EX, neighbours included; part of the fingerprint of stages that report it: raise the 1 when a verdict can change.
SUITE_RULES = f"1.{RULES}"

_CANNOT_TELL = frozenset(
    {"gold_failed", "gold_timeout", "gold_too_large", "pred_timeout", "pred_too_large", "undecided", "no_answer"}
)


@dataclass(frozen=True)
class SuiteVerdict:
    """
    See the module's table. `gold`: what the gold alone returns on neighbours made for it alone: nothing on all of them
    (`empty`), the same rows on all (`constant`), or it `varies`; `fails`: it runs on none. An item whose gold does not
    vary cannot tell right from wrong, whatever its verdict. `left_out`: neighbours that could not tell.
    """

    ex_suite: bool | None
    status: SuiteStatus
    gold: GoldSays
    left_out: int = 0
    reason: str | None = None


class Suite:
    """
    Judges pairs on neighbours that it writes below `folder`. A verdict depends on database, gold, prediction, seed and
    count, not on what else is judged. Safe to use from threads.
    """

    def __init__(
        self,
        executor: Executor,
        folder: Path,
        *,
        seed: int = 0,
        count: int = COUNT,
        gold_limits: Limits = GOLD_LIMITS,
    ) -> None:
        self.executor = executor
        self.folder = folder
        self.seed = seed
        self.count = count
        self.gold_limits = gold_limits
        self._neighbours: dict[Path, Neighbours] = {}
        self._golds: dict[tuple[Path, str], GoldSays] = {}

    def verdict(
        self, schema: Schema, gold: str, pred: str | None, ex: bool | None, *, keep_distinct: bool = False
    ) -> SuiteVerdict:
        """
        The verdict on a pair whose EX on the original is `ex`; the candidate is run only where that is true. Raises
        DatabaseError and InfrastructureError, never for the SQL.
        """
        says = self.gold_says(schema, gold)
        if ex is not True or not pred:
            return SuiteVerdict(None if ex is None else False, "ex_null" if ex is None else "ex_wrong", says)
        paths = self._of(schema).write(read_focus(official_text(gold), pred, schema))
        self.executor.start_many(asked_for(gold, pred, paths, gold_limits=self.gold_limits)).finish()
        left_out = 0
        for number, path in enumerate(paths, start=1):
            found = self._judge(gold, pred, path, keep_distinct)
            if found.status in _CANNOT_TELL:
                left_out += 1
            elif not found.ex:
                status: SuiteStatus = "pred_error" if found.status == "pred_error" else "wrong"
                return SuiteVerdict(False, status, says, left_out, f"neighbour {number}: {found.message}")
        if left_out == len(paths):
            return SuiteVerdict(None, "no_neighbour", says, left_out)
        return SuiteVerdict(True, "right", says, left_out)

    def gold_says(self, schema: Schema, gold: str) -> GoldSays:
        """Whether the gold can tell queries apart at all."""
        key = (schema.database, gold)
        if key not in self._golds:
            paths = self._of(schema).write(read_focus(official_text(gold), "", schema))
            runs = self.executor.execute_many([(official_text(gold), path) for path in paths], limits=self.gold_limits)
            results = [run.rows for run in runs if run.status in ("ok", "empty")]
            if not results:
                says: GoldSays = "fails"
            elif not any(results):
                says = "empty"
            else:
                says = "varies" if any(rows != results[0] for rows in results) else "constant"
            self._golds[key] = says
        return self._golds[key]

    def _of(self, schema: Schema) -> Neighbours:
        known = self._neighbours.get(schema.database)
        if known is None:
            known = Neighbours(schema, self.folder, seed=self.seed, count=self.count)
            self._neighbours[schema.database] = known
        return known

    def _judge(self, gold: str, pred: str, path: Path, keep_distinct: bool) -> ExecutionVerdict:
        found = execution_match(
            gold, pred, [path], self.executor, keep_distinct=keep_distinct, gold_limits=self.gold_limits
        )
        if found.status == "wrong":
            admitted = execution_match(
                gold, pred, [path], self.executor, rule="tie_aware", gold_limits=self.gold_limits
            )
            if admitted.ex or self._both_nothing(gold, pred, path) or self._gives_all_tied(gold, pred, path):
                return ExecutionVerdict(True, "right")
        return found

    def _both_nothing(self, gold: str, pred: str, path: Path) -> bool:
        runs = (
            self.executor.execute(official_text(gold), path, limits=self.gold_limits),
            self.executor.execute(official_prediction(pred), path),
        )
        return all(len(run.rows) <= 1 and all(cell is None for row in run.rows for cell in row) for run in runs)

    def _gives_all_tied(self, gold: str, pred: str, path: Path) -> bool:
        probe = order_probe(official_text(gold))
        if probe is None:
            return False
        rows = self.executor.execute(probe.sql, path, limits=self.gold_limits).rows
        given = self.executor.execute(official_prediction(pred), path).rows
        try:
            return admits_all_tied(probe, rows, given)
        except UndecidedError:
            return False
