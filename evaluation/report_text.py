"""The report as Markdown, for readers; every number is taken from the report's JSON."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NAMED = 20  # ids that are listed before the rest is only counted


def markdown(report: Mapping[str, Any]) -> str:
    """One page: totals, by turn, by hardness, parts of EM, errors, what was left out, what made the numbers."""
    totals = report["totals"]
    sections = [
        ["# Report on predicted SQL", "", *_headline(totals)],
        ["## By turn", "", *_groups(totals["by_turn"])],
        ["## By hardness", "", *_groups(totals["by_hardness"])],
        ["## Parts of exact match", "", *_partial(totals["partial"]["all"])],
        ["## Wrong predictions", "", *_table(["class", "turns"], report["errors"].items())],
        ["## Pairing", "", *_pairing(report["pairing"])],
        ["## Turns without a verdict", "", *_ungraded(report["ungraded"])],
        ["## Made with", "", *_made_with(report)],
    ]
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _headline(totals: Mapping[str, Any]) -> list[str]:
    rows = [
        ("question match", "", ""),
        ("question match, ungraded turns counted as wrong", "", "_all"),
        ("interaction match", "interaction_", ""),
        ("interaction match, ungraded turns counted as wrong", "interaction_", "_all"),
    ]
    measures = _measures(totals)
    cells = [(name, *(share(totals.get(f"{before}{key}{after}")) for key in measures)) for name, before, after in rows]
    return [
        *_table(["", *measures.values()], cells),
        "",
        f"{totals['turns']} turns in {totals['dialogues']} dialogues; {totals['no_answer']} without an answer. "
        f"Ungraded: {totals['ex_ungraded']} by EX, {totals['em_ungraded']} by EM.",
        f"EM by meaning (sound): {share(totals['em_sound'])}. EX with DISTINCT kept: "
        f"{share(totals['ex_keep_distinct'])}.",
        f"Golds that return nothing: {totals['gold_empty']}; EX without them: {share(totals['ex_gold_not_empty'])}; "
        f"matches of two empty results: {totals['both_empty']}.",
        *_suite(totals),
    ]


def _measures(totals: Mapping[str, Any]) -> dict[str, str]:
    """Key of a measure to its heading; suite EX stands beside EX where the turns carry it."""
    return {"ex": "EX", **({"ex_suite": "suite EX"} if "ex_suite" in totals else {}), "em": "EM"}


def _suite(totals: Mapping[str, Any]) -> list[str]:
    if "ex_suite" not in totals:
        return []
    return [
        f"Right by EX and wrong on a neighbour of the database: {totals['ex_unmasked']}. On all neighbours "
        f"{totals['suite_gold_empty']} golds return nothing and {totals['suite_gold_constant']} always the same: these "
        "turns tell no right query from a wrong one.",
    ]


def _groups(groups: Mapping[str, Mapping[str, Any]]) -> list[str]:
    measures = _measures(next((group for group in groups.values() if "ex_suite" in group), {}))
    headings = {**measures, "em_sound": "EM sound", "ex_all": "EX, all", "em_all": "EM, all"}
    rows = [(name, group["turns"], *(share(group.get(key)) for key in headings)) for name, group in groups.items()]
    return _table(["", "turns", *headings.values()], rows)


def _partial(parts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    keys = ("accuracy", "accuracy_count", "recall", "recall_count", "f1")
    rows = [
        (name, *(part[key] if key.endswith("_count") else share(part[key]) for key in keys))
        for name, part in parts.items()
    ]
    return _table(["part", "accuracy", "of", "recall", "of", "f1"], rows)


def _pairing(pairing: Mapping[str, Any]) -> list[str]:
    meaning = {"missing": "no prediction, counted as wrong", "unknown": "left out", "repeated": "the first one counts"}
    lines = [f"{pairing['asked']} turns were asked."]
    for name, said in meaning.items():
        lines.append(f"{name} ({said}): {_named(pairing[name])}.")
    return [f"- {line}" for line in lines]


def _ungraded(turns: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [(turn["id"], turn["status"], _cell(turn["reason"] or "")) for turn in turns[:NAMED]]
    more = [f"\nand {len(turns) - NAMED} more, in the JSON report"] if len(turns) > NAMED else []
    return [*_table(["id", "status", "reason"], rows), *more] if turns else ["None."]


def _made_with(report: Mapping[str, Any]) -> list[str]:
    made = report["made_with"]
    files = [f"{role}: {source['file']}, sha256 {source['sha256']}" for role, source in _files(report).items()]
    limits = [
        f"limits of a {whose}: {limit['timeout_seconds']:g} s, {limit['max_rows']:,} rows, "
        f"{limit['max_result_bytes'] // 2**20:,} MiB of result, {limit['memory_bytes'] // 2**20:,} MiB of memory"
        for whose, limit in made["limits"].items()
    ]
    rules = [f"rule of {name}: {rule}" for name, rule in made["rules"].items()]
    versions = f"SQLite {made['sqlite']}, Python {made['python']}, sqlglot {made['sqlglot']}"
    return [f"- {line}" for line in (versions, *limits, *rules, f"corrections: {made['corrections']}", *files)]


def _files(report: Mapping[str, Any]) -> Mapping[str, Mapping[str, str]]:
    files: Mapping[str, Mapping[str, str]] = report.get("made_from", {})
    return files


def _named(ids: Sequence[str]) -> str:
    if not ids:
        return "none"
    rest = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
    return f"{len(ids)}: {', '.join(map(_cell, ids[:NAMED]))}{rest}"


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    return [_row(header), _row(["---"] * len(header)), *map(_row, rows)]


def _row(cells: Iterable[Any]) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def share(value: float | None) -> str:
    """A share with its three decimals, as the official evaluator prints it; a dash where there is none."""
    return "–" if value is None else f"{value:.3f}"
