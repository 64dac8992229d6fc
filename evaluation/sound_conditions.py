"""Boolean expressions as flat lists of conditions, the form in which set match compares them."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from evaluation.official_parser import Condition, Conditions

Tree: TypeAlias = Condition | tuple[str, Sequence["Tree"]]  # a condition, or ("and" | "or", parts)


def flat(trees: Iterable[Tree]) -> Conditions:
    """
    Conditions that all hold, sorted, with connectors between them. One OR of simple conditions gives a list with `or`;
    any other group inside becomes one condition, so that what AND and OR bind is kept.
    """
    connector, parts = "and", _parts("and", trees)
    if len(parts) == 1 and not isinstance(parts[0], Condition):
        connector, parts = parts[0][0], _parts(*parts[0])
    found: list[Condition | str] = []
    for condition in sorted([_grouped(part) for part in parts], key=repr):
        found += [connector, condition] if found else [condition]
    return tuple(found)


def _parts(connector: str, trees: Iterable[Tree]) -> list[Tree]:
    found: list[Tree] = []
    for tree in trees:
        if isinstance(tree, Condition):
            found.append(tree)
        elif tree[0] == connector or len(tree[1]) == 1:
            found += _parts(connector, tree[1])
        else:
            found.append(tree)
    return found


def _grouped(tree: Tree) -> Condition:
    if isinstance(tree, Condition):
        return tree
    connector, parts = tree[0], _parts(*tree)
    members = sorted(repr(_grouped(part)) for part in parts)
    return Condition(False, connector, ("none", ("none", "; ".join(members), None), None), None)
