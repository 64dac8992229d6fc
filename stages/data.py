"""The first two stages: the benchmark with its audit, and the table of turns."""

from typing import Any, get_args

from evaluation.audit import audit, audit_summary, set_aside
from evaluation.database_audit import database_facts, database_table
from evaluation.items import build_items
from stages.context import StageContext, write_table
from text2sql.datasets import load_benchmark, source_files
from text2sql.demo import DEV_DIALOGUES, TRAIN_DIALOGUES, generate_demo
from text2sql.dialogue import Split


def make_benchmark(context: StageContext) -> dict[str, Any]:
    """
    Find (or generate) the dialogues and databases and run every gold query once. Writes benchmark.json (where things
    are), audit.parquet (one row per turn), databases.parquet (one per database), set_aside.json and audit_summary.json.
    """
    settings = context.profile.benchmark
    if settings.name == "demo":
        root = context.out / "data"
        generate_demo(
            root,
            settings.demo_seed,
            settings.train_dialogues or TRAIN_DIALOGUES,
            settings.dev_dialogues or DEV_DIALOGUES,
            settings.databases,
            settings.intents,
        )
    else:
        root = context.settings.data
    benchmark = load_benchmark(settings, root)
    facts = database_facts(benchmark)
    databases = database_table(benchmark, facts)
    with context.executor() as executor:
        table = audit(benchmark, executor, limits=context.gold_limits, facts=facts)
    write_table(table, context.out / "audit.parquet")
    write_table(databases, context.out / "databases.parquet")
    summary = audit_summary(table, databases)
    context.write_json("audit_summary.json", summary)
    context.write_json("set_aside.json", set_aside(table).to_dicts())

    def place(path: Any) -> str:
        """Generated data move with their artifact: their place is kept relative to it."""
        return str(path.relative_to(context.out)) if path.is_relative_to(context.out) else str(path)

    context.write_json(
        "benchmark.json",
        {
            "name": benchmark.name,
            "root": place(root),
            "database_root": place(benchmark.database_root),
            "tables_json": place(benchmark.tables_json),
            "train_dialogues": len(benchmark.train),
            "dev_dialogues": len(benchmark.dev),
            "files": len(source_files(benchmark)),
        },
    )
    context.say(f"{len(benchmark.train)} train and {len(benchmark.dev)} dev dialogues; audit: {summary}")
    return {"train_dialogues": len(benchmark.train), "dev_dialogues": len(benchmark.dev), **summary}


def make_turns(context: StageContext) -> dict[str, Any]:
    """One row per turn (item) in turns.parquet, with the split it belongs to."""
    import polars as pl

    profile = context.profile
    benchmark = load_benchmark(profile.benchmark, context.benchmark_root)
    table = pl.read_parquet(context.path("benchmark", "audit.parquet"))
    items = build_items(
        benchmark,
        table,
        profile.benchmark,
        schema_style=profile.agent.schema_style,
        sample_values=profile.agent.sample_values,
        seed=profile.seed,
    )
    write_table(items, context.out / "turns.parquet")
    counts = {f"{split}_turns": items.filter(pl.col("split") == split).height for split in get_args(Split)}
    return {**counts, "set_aside": items.filter(pl.col("fault") != "").height}
