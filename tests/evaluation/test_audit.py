"""The audit: which turns are set aside and why, which are only remarked on, and that nothing is lost."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

from evaluation.audit import audit, audit_summary, set_aside
from evaluation.database_audit import database_facts, database_table
from text2sql.config import BenchmarkSettings
from text2sql.datasets import Benchmark, load_benchmark
from text2sql.executor import Executor, Limits

MakeRelease = Callable[..., Path]
SHOP = (
    "CREATE TABLE staff(id INTEGER PRIMARY KEY, name TEXT, city TEXT); "
    "INSERT INTO staff VALUES (1,'Ana','Graz'),(2,'Bo','Linz');"
)
BUS = (
    "CREATE TABLE bus(code TEXT, seats INTEGER, fare REAL); "
    "INSERT INTO bus VALUES ('b7',40,2.5),('b1',52,1.5),('b3',40,3.0);"
)
DEMO = BenchmarkSettings(name="demo")


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor(workers=2) as pool:
        yield pool


def load(root: Path) -> Benchmark:
    return load_benchmark(DEMO, root)


def audit_golds(
    make_release: MakeRelease, executor: Executor, script: str, *golds: str, limits: Limits | None = None
) -> pl.DataFrame:
    """The audit of one dialogue with these golds over one database."""
    root = make_release(dev=[("db", [(f"turn {n}", gold) for n, gold in enumerate(golds)])], databases={"db": script})
    return audit(load(root), executor, limits=limits or Limits())


def flags(table: pl.DataFrame) -> list[list[str]]:
    return table["flags"].to_list()


def test_empty_select_list_is_set_aside_and_later_turns_keep_their_number(
    make_release: MakeRelease, executor: Executor
) -> None:
    """Case data-empty-select-list: turn 2 is gold_invalid with SQLite's message; turn 3 is still turn 3."""
    table = audit_golds(
        make_release,
        executor,
        SHOP,
        "SELECT * FROM staff",
        'SELECT  FROM staff AS T1 WHERE T1.city = "Graz"',
        'SELECT count(*) FROM staff WHERE city = "Graz"',
    )

    assert [1, 2, 3] == table["turn"].to_list()
    assert ["", "gold_invalid", ""] == table["fault"].to_list()
    assert 'near "FROM": syntax error' == table["message"][1]
    assert {"turns": 3, "gradable": 2}.items() <= audit_summary(table)["splits"]["dev"].items()
    assert ["dev/0/2"] == set_aside(table)["item_id"].to_list()


def test_unbalanced_parenthesis_is_a_fault_of_its_own_and_the_run_goes_on(
    make_release: MakeRelease, executor: Executor
) -> None:
    """Case data-unbalanced-parenthesis-gold: set aside with SQLite's message, though exact match can read it."""
    table = audit_golds(
        make_release,
        executor,
        "CREATE TABLE land(id INTEGER, name TEXT, area INTEGER); INSERT INTO land VALUES (1,'A',1),(2,'B',4);",
        "SELECT name FROM land WHERE area > 5 OR area < 2 )",
        "SELECT name FROM land WHERE area > 1",
    )

    assert ["gold_invalid", ""] == table["fault"].to_list()
    assert 'near ")": syntax error' == table["message"][0]
    assert table["hardness"][0] is not None
    assert "gold_not_official_readable" not in flags(table)[0]


def test_alias_outside_its_scope_is_reported_in_sqlites_words(make_release: MakeRelease, executor: Executor) -> None:
    """Case data-alias-used-outside-its-scope: "no such column: T1.id", and the rest is audited."""
    table = audit_golds(
        make_release,
        executor,
        "CREATE TABLE fight(id INTEGER, name TEXT); CREATE TABLE vessel(fight_id INTEGER, sea TEXT); "
        "INSERT INTO fight VALUES (1,'X'),(2,'Y'); INSERT INTO vessel VALUES (1,'North');",
        "SELECT T1.id FROM fight EXCEPT SELECT T1.id FROM fight AS T1 JOIN vessel AS T2 ON T1.id = T2.fight_id",
        "SELECT id FROM fight",
    )

    assert ["no such column: T1.id", ""] == table["message"].to_list()
    assert ["set_aside", "ok"] == table["severity"].to_list()


def test_gold_that_does_not_fit_its_database_is_listed(make_release: MakeRelease, executor: Executor) -> None:
    """Case data-gold-does-not-fit-database: each gold runs once; the one that cannot is listed, the other is used."""
    table = audit_golds(
        make_release,
        executor,
        "CREATE TABLE OrderDetails(order_id INTEGER, qty INTEGER); INSERT INTO OrderDetails VALUES (1,3);",
        "SELECT sum(qty) FROM `Order Details`",
        "SELECT sum(qty) FROM OrderDetails",
    )

    assert ["gold_invalid", ""] == table["fault"].to_list()
    assert [None, 1] == table["rows"].to_list()


def test_gold_without_text_too_slow_or_too_large_has_a_fault_of_its_own(
    make_release: MakeRelease, executor: Executor
) -> None:
    """The faults name what is wrong with a gold that cannot be graded."""
    endless = "WITH RECURSIVE walk(n) AS (VALUES (0) UNION ALL SELECT n + 1 FROM walk) SELECT max(n) FROM walk"

    table = audit_golds(
        make_release,
        executor,
        BUS,
        "  ",
        endless,
        "SELECT * FROM bus AS a JOIN bus AS b",
        "DELETE FROM bus",
        limits=Limits(timeout_seconds=0.3, max_rows=5),
    )

    assert ["gold_empty_text", "gold_timeout", "gold_too_large", "gold_invalid"] == table["fault"].to_list()
    assert "0.3 s" in table["message"][1]
    assert "5 rows" in table["message"][2]


def test_gold_that_returns_nothing_is_flagged_and_stays(make_release: MakeRelease, executor: Executor) -> None:
    """An empty result is a remark, not a fault."""
    table = audit_golds(make_release, executor, BUS, "SELECT code FROM bus WHERE seats > 100")

    assert [("", "flagged", 0)] == table.select("fault", "severity", "rows").rows()
    assert [["gold_returns_nothing"]] == flags(table)


def test_gold_that_the_official_parser_cannot_read_is_flagged(make_release: MakeRelease, executor: Executor) -> None:
    """It runs, so it can be graded by execution; it has no hardness."""
    table = audit_golds(make_release, executor, BUS, "SELECT code FROM bus WHERE fare IS NULL OR seats IN (40, 52)")

    assert [["gold_not_official_readable"]] == flags(table)
    assert table["hardness"][0] is None


def test_missing_and_broken_databases_set_their_turns_aside_and_are_named(
    make_release: MakeRelease, executor: Executor
) -> None:
    """Case data-archive-litter-as-database: found by db_id; a stub or an empty file is named, litter is ignored."""
    turns = [("q", "SELECT count(*) FROM staff")]
    root = make_release(dev=[(name, turns) for name in ("shop", "lost", "empty", "stub")], databases={"shop": SHOP})
    stub = bytes.fromhex("00051607") + b"\0" * 159
    for name, content in {
        "shop/._shop": stub,
        "__MACOSX/shop/._shop": stub,
        "empty/empty": b"",
        "stub/stub": stub,
    }.items():
        path = root / "database" / f"{name}.sqlite"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    benchmark = load(root)
    facts = database_facts(benchmark)

    table = audit(benchmark, executor, facts=facts)
    summary = audit_summary(table, database_table(benchmark, facts), benchmark)

    assert ["", "database_missing", "database_broken", "database_broken"] == table["fault"].to_list()
    assert "empty.sqlite" in table["message"][2]
    assert "no SQLite database" in table["message"][2]
    assert (["lost"], ["empty", "stub"]) == (summary["databases_missing"], summary["databases_broken"])


def test_sort_keys_that_are_numbers_stored_as_text_are_flagged(make_release: MakeRelease, executor: Executor) -> None:
    """Case data-numbers-stored-as-text: ORDER BY, MIN and MAX on such a column, by alias too; not on other columns."""
    table = audit_golds(
        make_release,
        executor,
        "CREATE TABLE car(id INTEGER, hp TEXT, name TEXT); "
        "INSERT INTO car VALUES (1,'100','x'),(2,'95','y'),(3,'null','z'),(4,'9','w');",
        "SELECT max(hp) FROM car",
        "SELECT id FROM car ORDER BY hp DESC LIMIT 1",
        "SELECT T1.hp AS power FROM car AS T1 ORDER BY power",
        "SELECT id FROM car WHERE id IN (SELECT id FROM car ORDER BY hp LIMIT 2)",
        "SELECT count(*) FROM car WHERE hp IS NULL",
        "SELECT hp FROM car ORDER BY id",
        "SELECT id FROM car ORDER BY name",
    )

    flagged = ["order_by_numeric_text" in found for found in flags(table)]
    assert [True, True, True, True, False, False, False] == flagged


def test_limit_that_cuts_through_ties_is_flagged(make_release: MakeRelease, executor: Executor) -> None:
    """Case ev-limit-cuts-a-tie: b7 and b3 have equal seats, so LIMIT 1 by seats is not determined by the data."""
    table = audit_golds(
        make_release,
        executor,
        BUS,
        "SELECT code FROM bus ORDER BY seats LIMIT 1",
        "SELECT code FROM bus ORDER BY seats, code LIMIT 1",
        "SELECT code FROM bus ORDER BY seats LIMIT 2",
        "SELECT code FROM bus ORDER BY fare DESC LIMIT 1",
    )

    assert [["tie_cut_by_limit"], [], [], []] == flags(table)


def test_tie_between_groups_is_flagged(make_release: MakeRelease, executor: Executor) -> None:
    """Case ev-tie-in-order-by: the gold picks one of two groups of equal size."""
    table = audit_golds(
        make_release,
        executor,
        "CREATE TABLE member(team TEXT); INSERT INTO member VALUES ('red'),('blue'),('red'),('blue'),('green');",
        "SELECT team FROM member GROUP BY team ORDER BY count(*) DESC LIMIT 1",
        "SELECT team FROM member GROUP BY team ORDER BY count(*) LIMIT 1",
    )

    assert [["tie_cut_by_limit"], []] == flags(table)


def test_text_that_is_not_utf8_is_flagged_where_the_gold_reads_its_table(
    make_release: MakeRelease, executor: Executor
) -> None:
    """Undecodable bytes are found in the data and named by table and column."""
    script = (
        "CREATE TABLE town(name TEXT, size INTEGER); CREATE TABLE other(x); "
        "INSERT INTO town VALUES ('Graz', 1), (CAST(X'4DFC6E63' AS TEXT), 2);"
    )
    root = make_release(
        dev=[("db", [("a", "SELECT size FROM Town"), ("b", "SELECT x FROM other")])], databases={"db": script}
    )
    benchmark = load(root)
    facts = database_facts(benchmark)
    databases = database_table(benchmark, facts)

    table = audit(benchmark, executor, facts=facts)

    assert [["undecodable_bytes"], ["gold_returns_nothing"]] == flags(table)
    assert {"db": ["town.name"]} == audit_summary(table, databases)["undecodable_columns"]
    assert [["other"]] == databases["empty_tables"].to_list()


def test_repeated_dialogue_is_flagged_across_splits(make_release: MakeRelease, executor: Executor) -> None:
    """The later copy is flagged; the same words over another database, or with other gold, are no copy."""
    same = [("how many", "SELECT count(*) FROM staff")]
    root = make_release(
        train=[("a", same), ("b", same), ("a", same)],
        dev=[("a", same), ("a", [("how many", "SELECT 1")])],
        databases={"a": SHOP, "b": SHOP},
    )

    table = audit(load(root), executor)

    flagged = table.filter(pl.col("flags").list.contains("duplicate_dialogue"))["dialogue_id"].to_list()
    assert ["train/2", "dev/0"] == flagged


def test_repairs_are_counted_and_the_released_text_is_kept(make_release: MakeRelease, executor: Executor) -> None:
    """Case data-split-operator-gold: the audit counts joined operators and keeps both texts."""
    table = audit_golds(make_release, executor, BUS, "SELECT code FROM bus WHERE seats > = 52", "SELECT code FROM bus")

    assert [True, False] == table["repaired"].to_list()
    assert ("SELECT code FROM bus WHERE seats >= 52", "SELECT code FROM bus WHERE seats > = 52") == (
        table["gold"][0],
        table["gold_as_released"][0],
    )
    assert {"repaired_operator": 1} == audit_summary(table)["splits"]["dev"]["flags"]


def test_corrected_gold_is_flagged_and_its_file_hashed(
    make_release: MakeRelease, executor: Executor, tmp_path: Path
) -> None:
    """Case data-wrong-gold-corrections: the summary carries the hash of the corrections file, or none."""
    root = make_release(dev=[("db", [("q", "SELECT kode FROM bus")])], databases={"db": BUS})
    path = tmp_path / "corrections.yaml"
    entry = "{split: dev, dialogue: 0, turn: 1, old: SELECT kode FROM bus, new: SELECT code FROM bus, reason: typo}"
    path.write_text(f"corrections:\n  - {entry}\n", encoding="utf-8")
    benchmark = load_benchmark(BenchmarkSettings(name="demo", corrections=str(path)), root)

    table = audit(benchmark, executor)

    assert [["corrected_gold"]] == flags(table)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest == audit_summary(table, benchmark=benchmark)["corrections"]
    assert "none" == audit_summary(table, benchmark=load(root))["corrections"]


def test_databases_without_foreign_keys_are_listed(make_release: MakeRelease, executor: Executor) -> None:
    """Case data-foreign-keys-absent: the data report lists them."""
    keyed = "CREATE TABLE a(id INTEGER PRIMARY KEY); CREATE TABLE b(a_id INTEGER REFERENCES a(id));"
    turns = [("q", "SELECT 1")]
    benchmark = load(make_release(dev=[("keyed", turns), ("plain", turns)], databases={"keyed": keyed, "plain": SHOP}))
    facts = database_facts(benchmark)

    summary = audit_summary(audit(benchmark, executor, facts=facts), database_table(benchmark, facts))

    assert ["plain"] == summary["databases_without_foreign_keys"]


def test_summary_is_plain_json(make_release: MakeRelease, executor: Executor) -> None:
    """It is stored as asset metadata: JSON types only."""
    benchmark = load(make_release(dev=[("db", [("q", "SELECT 1")])], databases={"db": BUS}))
    facts = database_facts(benchmark)
    summary = audit_summary(audit(benchmark, executor, facts=facts), database_table(benchmark, facts), benchmark)

    assert summary == json.loads(json.dumps(summary, allow_nan=False))


def test_shared_dev_sets_agree_with_the_counts_of_their_readme(shared: Path, executor: Executor) -> None:
    """CoSQL dev: 947 run, 1 fails, 59 without database; SParC dev: 1,143, 1 and 59; the failures by name."""
    stats = json.loads((shared / "data" / "stats.json").read_text(encoding="utf-8"))
    for name in ("cosql", "sparc"):
        settings = BenchmarkSettings(name=name, train_dialogues=1)
        table = audit(load_benchmark(settings, shared / "data"), executor).filter(pl.col("split") == "dev")
        faults = dict(table.group_by("fault").len().iter_rows())
        expected = stats[f"{name}_dev"]

        assert {
            "": expected["execution"]["ok"],
            "gold_invalid": expected["execution"]["error"],
            "database_missing": expected["execution"]["no database"],
        } == faults
        failed = table.filter(pl.col("fault") == "gold_invalid")
        assert [
            (db_id, f"dev/{dialogue}/{turn + 1}", message)
            for db_id, dialogue, turn, message in expected["execution_errors"]
        ] == failed.select("db_id", "item_id", "message").rows()
