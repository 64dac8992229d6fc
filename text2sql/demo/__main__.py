"""`python -m text2sql.demo OUT --seed 7` writes the demo benchmark; `--show N` prints N of its dialogues."""

import argparse
import json
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from text2sql.demo.generate import generate_demo

SPLITS = ("train", "dev", "dev_phrasing")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m text2sql.demo", description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", help="folder to write to (with --show: a temporary one)")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print N dialogues of train")
    arguments = parser.parse_args()
    if arguments.out is None and not arguments.show:
        parser.error("give the folder to write to, or --show N")
    with tempfile.TemporaryDirectory() as temporary:
        out = arguments.out or Path(temporary)
        generate_demo(out, arguments.seed)
        splits = {split: json.loads((out / f"{split}.json").read_text(encoding="utf-8")) for split in SPLITS}
    if arguments.show:
        show(random.Random(arguments.seed).sample(splits["train"], arguments.show))
    else:
        print_counts(splits)


def show(dialogues: list[dict[str, Any]]) -> None:
    for dialogue in dialogues:
        print(f"\n[{dialogue['database_id']}]")
        for turn in dialogue["interaction"]:
            print(f"  {turn['utterance']}\n      {turn['query']}")


def print_counts(splits: dict[str, list[dict[str, Any]]]) -> None:
    train = pairs(splits["train"])
    for split, dialogues in splits.items():
        depths = Counter(len(dialogue["interaction"]) for dialogue in dialogues)
        turns = pairs(dialogues)
        unseen = sum(pair not in set(train) for pair in turns) / len(turns) if split != "train" else None
        print(
            f"{split}: {len(dialogues)} dialogues, {len(turns)} turns ({len(set(turns))} different gold), by depth "
            + ", ".join(f"{depth}: {depths[depth]}" for depth in sorted(depths))
            + (f", unseen gold {unseen:.1%}" if unseen is not None else "")
        )


def pairs(dialogues: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(d["database_id"], turn["query"]) for d in dialogues for turn in d["interaction"]]


if __name__ == "__main__":
    main()
