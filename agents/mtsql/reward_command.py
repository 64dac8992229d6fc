"""
Rewards of stored episodes from the shell.

    python -m agents.mtsql.rewards TRAJECTORIES.jsonl --database DIR --tables tables.json [--variant paper]

reads one JSON object a line (`-`: standard input). Two forms, which may be mixed:

    the authors' text    {"solution": TEXT, "ground_truth": "SQL<TAB>db_id"}      other keys are ignored
    our trajectories     a line of trajectories.jsonl with its gold beside it: {"gold": SQL, ...}, or in `details`

and writes one object a line, in order. `--variant paper`: {"line", "score", "execution_match", "exact_match",
"propose", "e_verify", "m_verify", "status", "reason"}, parts unweighted, score null when the sample is set aside.
`--variant authors_code`: {"line", "score", "outcome_reward", "exec_verify_reward", "coherence_reward",
"process_reward_for_generate", "status", "reason"}, parts weighted, as the released code names them. Progress and the
counts go to standard error. Exit status: 0 scored; 1 the input cannot be read; 2 wrong usage; 3 there was no line;
4 no line could be scored because the machine failed.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.mtsql.actions import EXEC_SQL, Answer, Call, Message
from agents.mtsql.authors_code import authors_score, decoded_text, split_ground_truth
from agents.mtsql.authors_code import final_sql as authors_final_sql
from agents.mtsql.authors_text import read_messages, rebuild_events
from agents.mtsql.rewards import PARTS, Reward, final_sql, reward
from evaluation.verdicts import Scorer
from text2sql.config import RewardSettings
from text2sql.errors import DatabaseError, DataError, InfrastructureError
from text2sql.executor import Executor, Limits, Query
from text2sql.textfiles import json_line
from text2sql.trajectory import Trajectory

Output = dict[str, Any]


@dataclass(frozen=True)
class Episode:
    """One line of input: as the authors' text (`messages` are the model's, read), or as a trajectory of ours."""

    line: int
    db_id: str
    gold: str
    solution: str = ""
    messages: tuple[Message, ...] = ()
    trajectory: Trajectory | None = None

    @property
    def final(self) -> str | None:
        if self.trajectory:
            return final_sql(self.trajectory.events)
        action = self.messages[-1].action if self.messages else None
        return action.sql if isinstance(action, Answer) else None

    @property
    def executed(self) -> list[str]:
        actions = [message.action for message in self.messages]
        return [action.code for action in actions if isinstance(action, Call) and action.tool == EXEC_SQL]


def read_episodes(lines: Iterable[str], variant: str) -> Iterator[Episode]:
    """Raises DataError: names the line and what is missing."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            if not isinstance(value, dict):
                raise DataError("no JSON object")
            episode = _own(value, number) if "events" in value else _authors(value, number, variant)
        except (ValueError, KeyError, TypeError, DataError) as error:
            raise DataError(
                f"line {number} cannot be scored: {error!s}. Expected solution and ground_truth (query<TAB>db_id), or "
                "a stored trajectory with its gold."
            ) from None
        yield episode


def _authors(value: dict[str, Any], number: int, variant: str) -> Episode:
    for key in ("solution", "ground_truth"):
        if not isinstance(value[key], str):
            raise DataError(f"{key} is no text")
    gold, db_id = split_ground_truth(value["ground_truth"])
    messages = tuple(read_messages(value["solution"])) if variant == "paper" else ()
    return Episode(number, db_id, gold, value["solution"], messages)


def _own(value: dict[str, Any], number: int) -> Episode:
    details = value["details"] = value.get("details") or {}
    if not isinstance(details, dict):
        raise DataError("details is no object")
    gold = value.pop("gold", None) or details.get("gold")
    if not isinstance(gold, str):
        raise DataError("the trajectory has no gold")
    trajectory = Trajectory.from_json(json.dumps(value))
    return Episode(number, trajectory.db_id, gold, decoded_text(trajectory.segments), trajectory=trajectory)


def score_episodes(episodes: Iterable[Episode], scorer: Scorer, variant: str) -> Iterator[Output]:
    """The output objects, in order. While some episodes are scored, the database already works on the next."""
    score = _paper_output if variant == "paper" else _authors_output
    for episode in scorer.executor.ahead(episodes, lambda episode: _queries(episode, scorer, variant)):
        yield _guarded(score, episode, scorer)


def _queries(episode: Episode, scorer: Scorer, variant: str) -> list[Query]:
    """What scoring asks the executor for."""
    final = episode.final if variant == "paper" else authors_final_sql(episode.solution)
    queries = scorer.queries(episode.db_id, episode.gold, final, replace_value=variant == "paper")
    if queries and episode.executed:
        queries += [(sql, scorer.database(episode.db_id), None) for sql in episode.executed]
    return queries


def _guarded(score: Callable[[Episode, Scorer], Output], episode: Episode, scorer: Scorer) -> Output:
    try:
        return {"line": episode.line, **score(episode, scorer)}
    except DatabaseError as error:
        return {"line": episode.line, "score": None, "status": "database", "reason": str(error)}
    except InfrastructureError as error:
        return {"line": episode.line, "score": None, "status": "infrastructure", "reason": str(error)}


def _paper_output(episode: Episode, scorer: Scorer) -> Output:
    paid = _paper_reward(episode, scorer)
    return {
        "score": paid.total,
        **{part: paid.parts[part] for part in PARTS},
        "status": paid.status,
        "reason": paid.reason,
    }


def _paper_reward(episode: Episode, scorer: Scorer) -> Reward:
    trajectory = episode.trajectory
    if trajectory is None:
        database = scorer.database(episode.db_id)
        events = rebuild_events(episode.messages, lambda sql: scorer.executor.execute(sql, database))
        trajectory = Trajectory(
            f"line {episode.line}", "", 0, episode.db_id, 0, "gold", (), events, episode.final, "answered"
        )
    return reward(trajectory, episode.gold, scorer, RewardSettings(variant="paper"))


def _authors_output(episode: Episode, scorer: Scorer) -> Output:
    published = authors_score(episode.solution, episode.gold, episode.db_id, scorer).as_published()
    return {**published, "status": "ok", "reason": ""}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m agents.mtsql.rewards", description="Rewards of stored episodes.")
    parser.add_argument("trajectories", help="JSON Lines; - for standard input")
    parser.add_argument("--variant", choices=("paper", "authors_code"), default="paper")
    parser.add_argument("--database", type=Path, required=True, metavar="DIR", help="holds <db_id>/<db_id>.sqlite")
    parser.add_argument("--tables", type=Path, required=True, metavar="tables.json")
    parser.add_argument("--timeout", type=float, default=Limits.timeout_seconds, metavar="SECONDS")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="processes that run queries")
    arguments = parser.parse_args()
    try:
        with Executor(Limits(timeout_seconds=arguments.timeout), workers=arguments.workers) as executor:
            scorer = Scorer(arguments.database, arguments.tables, executor)
            episodes = read_episodes(_lines(arguments.trajectories), arguments.variant)
            counts = _write(score_episodes(episodes, scorer, arguments.variant))
    except (DataError, OSError) as error:
        _say(str(error))
        return 1
    total = sum(counts.values())
    _say(f"{total:,} episodes: {', '.join(f'{status} {n:,}' for status, n in sorted(counts.items())) or 'none'}")
    if not total:
        return 3
    return 4 if counts["infrastructure"] + counts["database"] == total else 0


def _lines(name: str) -> Iterator[str]:
    with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise DataError(f"line {number} is not UTF-8: {error}") from None


def _write(outputs: Iterable[Output]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for number, output in enumerate(outputs, start=1):
        sys.stdout.buffer.write(json_line(output))
        counts[output["status"]] += 1
        if number % 1000 == 0:
            sys.stdout.buffer.flush()
            _say(f"{number:,} episodes")
    sys.stdout.buffer.flush()
    return counts


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
