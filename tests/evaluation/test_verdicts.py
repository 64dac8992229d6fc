"""The judge and its command line."""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from evaluation.verdicts import Pair, Scorer, judge_pairs, read_pairs
from text2sql.errors import DatabaseError, DataError
from text2sql.executor import Executor, Limits

SINGER = (
    "CREATE TABLE singer(name TEXT, age INTEGER, country TEXT);"
    "INSERT INTO singer VALUES ('Ana', 31, 'Norway'), ('Bo', 25, 'Italy'), ('Cy', 31, 'Italy')"
)


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor(Limits(timeout_seconds=1), workers=2) as running:
        yield running


@pytest.fixture
def root(make_release: Callable[..., Path]) -> Path:
    return make_release(databases={"singer": SINGER})


@pytest.fixture
def scorer(root: Path, executor: Executor) -> Scorer:
    return Scorer(root / "database", root / "tables.json", executor)


def test_pair_is_judged_by_every_measure(scorer: Scorer) -> None:
    """EM, sound EM, EX with and without DISTINCT, hardness and partial scores in one verdict."""
    verdict = scorer.verdict("singer", "SELECT DISTINCT age FROM singer", "SELECT age FROM singer")

    assert (verdict.em, verdict.em_sound, verdict.ex, verdict.ex_keep_distinct) == (True, True, True, False)
    assert (verdict.hardness, verdict.status, verdict.reason) == ("easy", "right", None)
    assert verdict.partial is not None
    assert verdict.partial["select"] == [1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    "pred", ["SELECT age FROM singer", "SELECT a.age FROM singer a", "SELECT name FROM singer", "SELECT nope", "", None]
)
@pytest.mark.parametrize("gold", ["SELECT DISTINCT age FROM singer", "SELECT age FROM nowhere"])
@pytest.mark.parametrize("verdict_first", [True, False])
def test_an_outcome_is_the_verdict_in_what_both_say(
    root: Path, executor: Executor, gold: str, pred: str | None, verdict_first: bool
) -> None:
    """What rewards are made of is what reports show, whichever of the two was asked first."""
    scorer = Scorer(root / "database", root / "tables.json", executor)
    ask = [scorer.verdict, scorer.outcome] if verdict_first else [scorer.outcome, scorer.verdict]
    one, other = (judge("singer", gold, pred) for judge in ask)

    assert (one.em, one.ex, one.hardness, one.status) == (other.em, other.ex, other.hardness, other.status)


def test_right_query_that_official_em_cannot_read_is_told_apart(scorer: Scorer) -> None:
    """EM false for its spelling, sound EM and EX true, and the reason says why."""
    verdict = scorer.verdict(
        "singer", "SELECT name FROM singer WHERE age > 30", "SELECT s.name FROM singer s WHERE s.age > 30"
    )

    assert (verdict.em, verdict.em_sound, verdict.ex) == (False, True, True)
    assert verdict.reason is not None
    assert "not readable" in verdict.reason


@pytest.mark.parametrize("pred", [None, "", "  "])
def test_no_answer_is_wrong(scorer: Scorer, pred: str | None) -> None:
    """Giving no SQL is a wrong answer and not an ungradable item."""
    verdict = scorer.verdict("singer", "SELECT name FROM singer", pred)

    assert (verdict.em, verdict.em_sound, verdict.ex, verdict.ex_keep_distinct) == (False, False, False, False)
    assert verdict.status == "no_answer"


def test_gold_that_fails_is_no_verdict_on_the_prediction(scorer: Scorer) -> None:
    """ex is None with the database's words; the gold's own execution says the same."""
    verdict = scorer.verdict("singer", "SELECT nmae FROM singer", "SELECT name FROM singer")

    assert (verdict.ex, verdict.status) == (None, "gold_failed")
    assert "no such column: nmae" in (verdict.reason or "")
    assert scorer.gold_execution("singer", "SELECT nmae FROM singer").status == "error"
    assert scorer.plain_execution_match("singer", "SELECT nmae FROM singer", "SELECT name FROM singer") is False


def test_empty_results_are_marked(scorer: Scorer) -> None:
    """Case ev-both-results-empty: reports count such matches apart."""
    gold = "SELECT name FROM singer WHERE age > 99"

    matched = scorer.verdict("singer", gold, "SELECT 1 WHERE 0")
    missed = scorer.verdict("singer", gold, "SELECT 1")

    assert (matched.ex, matched.both_empty, matched.gold_empty) == (True, True, True)
    assert (missed.ex, missed.both_empty, missed.gold_empty) == (False, False, True)


def test_letters_value_become_1_except_for_the_authors_copy(
    make_release: Callable[..., Path], executor: Executor
) -> None:
    """The official replacement holds for EM and EX; MTSQL-R1's copy of the evaluator leaves it out."""
    root = make_release(databases={"market": "CREATE TABLE market(value INTEGER); INSERT INTO market VALUES (3)"})
    scorer = Scorer(root / "database", root / "tables.json", executor)

    assert scorer.verdict("market", "SELECT value FROM market", "SELECT value FROM market").ex is False
    assert scorer.plain_execution_match("market", "SELECT value FROM market", "SELECT value FROM market") is True


def test_other_sqlite_files_of_the_folder_are_a_test_suite(
    make_release: Callable[..., Path], executor: Executor
) -> None:
    """Case data-archive-litter-as-database: every real database in the folder counts, stubs and empty files do not."""
    root = make_release(databases={"shop": "CREATE TABLE t(a); INSERT INTO t VALUES (1)", "x": "CREATE TABLE t(a)"})
    folder = root / "database" / "shop"
    (root / "database" / "x" / "x.sqlite").rename(folder / "shop_random.sqlite")
    (folder / "._shop.sqlite").write_bytes(b"\x00\x05\x16\x07" + b"x" * 159)
    (folder / "empty.sqlite").write_bytes(b"")
    (folder / "notes.txt").write_text("shop.sqlite", encoding="utf-8")
    scorer = Scorer(root / "database", root / "tables.json", executor)

    assert [path.name for path in scorer.databases("shop")] == ["shop.sqlite", "shop_random.sqlite"]
    assert scorer.verdict("shop", "SELECT a FROM t", "SELECT 1").ex is False


def test_missing_database_is_named(scorer: Scorer) -> None:
    """A database that is not there raises: it is no wrong answer."""
    with pytest.raises(DatabaseError, match=r"shop\.sqlite"):
        scorer.verdict("shop", "SELECT 1", "SELECT 1")


def test_clause_f1_settles_names_by_the_databases_columns(scorer: Scorer) -> None:
    """A bare and a qualified column are one element."""
    scores = scorer.clause_f1("singer", "SELECT name FROM singer", "SELECT singer.name FROM singer WHERE age = 1")

    assert scores == {"select": 1.0, "where": 0.0, "join": 1.0}


def test_verdict_is_computed_once(scorer: Scorer) -> None:
    """The same pair gives the same object again; a time-out is tried anew, since a busy machine may be the reason."""
    endless = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n FROM r) SELECT max(n) FROM r"

    assert scorer.verdict("singer", "SELECT 1", "SELECT 1") is scorer.verdict("singer", "SELECT 1", "SELECT 1")
    assert scorer.verdict("singer", "SELECT 1", endless) is not scorer.verdict("singer", "SELECT 1", endless)


def line(**keys: Any) -> str:
    return json.dumps(
        {"id": "1", "db_id": "singer", "gold": "SELECT 1", "pred": "SELECT 1", **keys}, ensure_ascii=False
    )


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([line(), line()], "line 2: id '1' occurs twice"),
        (['{"id": "1", "db_id": "x", "gold": "y"}'], "line 1: pred is 'missing'"),
        ([line(), line(id="2", gold=None)], "line 2: gold is None"),
        (["{"], "line 1 is no JSON"),
        (["[1]"], "line 1 is no JSON object"),
        ([line(id=None)], "line 1: id None is missing"),
    ],
)
def test_broken_input_is_named_by_line(lines: list[str], said: str) -> None:
    """Case ev-pairing-by-position: ids tell which verdict is whose, so a repeated or missing one stops the run."""
    with pytest.raises(DataError, match=said):
        read_pairs(lines)


def test_verdicts_keep_the_order_of_the_pairs(scorer: Scorer) -> None:
    """However long each takes: one verdict per pair, under its id; a reordered input gives the same verdicts."""
    pairs = [
        Pair(str(n), "singer", "SELECT name FROM singer LIMIT 2", f"SELECT name FROM singer LIMIT {n}")
        for n in range(5)
    ]

    forward = list(judge_pairs(pairs, scorer))
    backward = list(judge_pairs(list(reversed(pairs)), scorer))

    assert [(one["id"], one["ex"]) for one in forward] == [(str(n), n == 2) for n in range(5)]
    assert forward == list(reversed(backward))


def test_verdicts_are_the_same_when_queries_run_ahead(root: Path) -> None:
    """
    Right, wrong, failing, missing and repeated predictions, golds that fail and a database that is not there: judging
    one after the other what `ahead` gives out, in its order, says what it says without.
    """
    golds = ["SELECT name FROM singer", "SELECT DISTINCT age FROM singer", "SELECT nmae FROM singer"]
    predictions = [
        "SELECT name FROM singer",
        "SELECT age FROM singer",
        "SELECT 1",
        "SELEC",
        None,
        "",
        "DROP TABLE singer",
    ]
    pairs = [("singer", gold, pred) for gold in golds for pred in predictions] * 5 + [("missing", "SELECT 1", None)]

    def judged(ahead: bool) -> tuple[list[tuple[str, str, str | None]], list[Any]]:
        with Executor(Limits(timeout_seconds=1), workers=2) as executor:
            scorer = Scorer(root / "database", root / "tables.json", executor)
            seen, verdicts = [], []
            for pair in scorer.ahead(pairs, lambda pair: pair) if ahead else pairs:
                seen.append(pair)
                try:
                    verdicts.append(scorer.verdict(*pair))
                except DatabaseError as error:
                    verdicts.append(str(error))
        return seen, verdicts

    assert judged(ahead=True) == judged(ahead=False)


@contextmanager
def workers_at_rest() -> Iterator[None]:
    """Meanwhile no worker answers: who needs one gets a time-out."""
    workers = psutil.Process().children()
    for worker in workers:
        worker.suspend()
    yield
    for worker in workers:
        worker.resume()


def test_what_is_given_out_has_been_run_and_the_rest_need_not_be_there_yet(root: Path) -> None:
    """Gold and prediction of a pair have run when it is given out; an endless source is read only as far as needed."""
    pairs = (("singer", "SELECT name FROM singer", f"SELECT {number}") for number in itertools.count())

    with Executor(Limits(timeout_seconds=1), workers=2) as executor:
        scorer = Scorer(root / "database", root / "tables.json", executor)
        for pair in itertools.islice(scorer.ahead(pairs, lambda pair: pair), 100):
            with workers_at_rest():
                assert scorer.verdict(*pair).status == "wrong"


def command(root: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [
            sys.executable,
            *("-m", "evaluation.verdicts", "-", "--database", str(root / "database")),
            *("--tables", str(root / "tables.json"), *arguments),
        ],
        input=text.encode(),
        capture_output=True,
        check=False,
    )


def test_command_line_judges_standard_input(root: Path) -> None:
    """JSON Lines in and out; null where the official evaluator would stop; the counts come last on standard error."""
    gold = "SELECT name FROM singer WHERE country <> 'Où\u2028大阪'"
    pairs = [
        line(gold=gold, pred="SELECT name FROM singer"),
        line(id=2, gold="SELECT nmae FROM singer"),
        line(id="3", pred=None),
        line(id="4", db_id="missing"),
    ]

    ran = command(root, "\n".join(pairs))
    verdicts = [json.loads(text) for text in ran.stdout.decode().split("\n") if text]

    assert ran.returncode == 0
    assert [(one["id"], one["ex"], one["status"]) for one in verdicts] == [
        ("1", True, "right"),
        (2, None, "gold_failed"),
        ("3", None, "no_answer"),
        ("4", None, "database"),
    ]
    assert set(verdicts[0]) >= {
        "id",
        "em",
        "em_sound",
        "ex",
        "ex_keep_distinct",
        "hardness",
        "partial",
        "status",
        "reason",
    }
    assert ran.stderr.decode().splitlines()[-1] == (
        "4 pairs: EM 0, EX 1; database 1, gold_failed 1, no_answer 1, right 1"
    )


def test_half_a_surrogate_pair_spoils_no_verdict(root: Path) -> None:
    """JSON can say it and UTF-8 cannot: the pairs after it are judged, too."""
    half = {"id": "1", "db_id": "singer", "gold": "SELECT name FROM singer", "pred": "SELECT name FROM \ud800"}

    ran = command(root, "\n".join([json.dumps(half), line(id="2")]))

    assert ran.returncode == 0
    assert [json.loads(text)["ex"] for text in ran.stdout.decode().splitlines()] == [False, True]


def test_command_line_can_keep_distinct(root: Path) -> None:
    """--keep-distinct lets `ex` follow the official switch of that name."""
    pair = line(gold="SELECT DISTINCT age FROM singer", pred="SELECT age FROM singer")

    assert json.loads(command(root, pair).stdout)["ex"] is True
    assert json.loads(command(root, pair, "--keep-distinct").stdout)["ex"] is False


def test_command_line_asks_the_neighbours_on_request(root: Path, tmp_path: Path) -> None:
    """
    --suite adds the second judge's fields and its count, and changes nothing else; the neighbours are kept where
    --suite-cache says and never lie in the database's folder, where they would become part of EX.
    """
    gold = "SELECT name FROM singer WHERE age > 40"
    pairs = "\n".join(
        [
            line(gold=gold, pred="SELECT name FROM singer WHERE age > 41"),
            line(id="2", gold=gold, pred="SELECT singer.name FROM singer WHERE 40 < age"),
            line(id="3", gold=gold, pred="SELECT count(*) FROM singer"),
            line(id="4", gold=gold, pred=None),
            line(id="5", db_id="missing"),
            line(
                id="6",
                gold="SELECT name FROM singer WHERE age > 40 AND age < 2",
                pred="SELECT name FROM singer WHERE 0",
            ),
        ]
    )
    plain = command(root, pairs)
    ran = command(root, pairs, "--suite", "--suite-cache", str(tmp_path / "neighbours"))
    verdicts = [json.loads(text) for text in ran.stdout.decode().splitlines()]
    suite_keys = ("ex_suite", "suite_status", "suite_gold", "suite_left_out", "suite_reason")

    assert [tuple(one[key] for key in suite_keys[:4]) for one in verdicts] == [
        (False, "wrong", "varies", 0),
        (True, "right", "varies", 0),
        (False, "ex_wrong", "varies", 0),
        (None, "ex_null", "varies", 0),
        (None, None, None, None),
        (True, "right", "empty", 0),
    ]
    assert verdicts[0]["suite_reason"].startswith("neighbour ")
    assert [{key: one[key] for key in one if key not in suite_keys} for one in verdicts] == [
        json.loads(text) for text in plain.stdout.decode().splitlines()
    ]
    assert ran.stderr.decode().splitlines()[-1].startswith("6 pairs: EM 1, EX 3, suite EX 2; ")
    assert list((tmp_path / "neighbours").glob("*/*.sqlite"))
    assert [path.name for path in (root / "database" / "singer").iterdir()] == ["singer.sqlite"]


def test_help_keeps_suite_and_test_suites_apart(root: Path) -> None:
    """--suite generates neighbours; further .sqlite files in a database's folder are the official test suites."""
    said = " ".join(command(root, "", "--help").stdout.decode().split())

    assert "generated neighbour databases" in said
    assert "Not the official test suites" in said


def test_exit_status_tells_success_from_nothing_done(root: Path) -> None:
    """Case cl-success-that-was-none: no pair, no pair that could be judged, broken input and all wrong differ."""
    nowhere = "\n".join(line(id=number, db_id="missing") for number in range(10))
    wrong = "\n".join(line(id=number, pred="SELECT 2") for number in range(10))

    assert command(root, "").returncode == 3
    assert command(root, nowhere).returncode == 4
    assert command(root, wrong).returncode == 0
    assert command(root, "{").returncode == 1
    assert command(root, "", "--unknown").returncode == 2
