"""
What a demo database is made of: tables and columns, with the words people use for them.

A `Domain` is data: `text2sql/demo/domains_*.py` hold twelve of them. Each column brings its noun and a few ways to say a
condition on it, so that the generator can talk about any database without knowing it.

How words are written
- noun: `"page count|page counts"`, singular and plural.
- forms: what follows a plural noun, `{v}` the value: `"from {v}"` (books from Norway). A form that begins with
  `with` is spoken as `have` in a clause, one that begins with `who` or `that` loses that word, any other gets `be`
  before it: `predicate` does this.
- adjective: the value stands before the noun (`crime books`).
- through: how rows say which parent rows they belong to, `{np}` the parent's noun phrase (`by {np}`: by authors
  from Norway).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

PRESENT_VERBS = ("come", "cost", "earn", "end", "involve", "live", "play", "run", "work")

Kind = Literal["key", "reference", "label", "category", "number"]


@dataclass(frozen=True)
class Column:
    """
    One column. `values`: what a category may hold, or the pool a label draws from. `bounds`: lowest, highest and step
    of a number. `over` and `under`: forms for more and less than `{v}`. `top` and `bottom`: superlatives of a row
    (longest book), `high` and `low`: of the number itself (highest price). `ask`: questions about the row named `{x}`.
    `total`: a sum of it makes sense. `nulls`: share of rows without a value.
    """

    name: str
    kind: Kind
    noun: str = ""
    nouns: str = ""
    values: tuple[str, ...] = ()
    bounds: tuple[float, float, float] = (0, 0, 1)
    forms: tuple[str, ...] = ()
    adjective: bool = False
    be: str = "are"
    over: tuple[str, ...] = ()
    under: tuple[str, ...] = ()
    top: str = ""
    bottom: str = ""
    high: str = "highest"
    low: str = "lowest"
    ask: tuple[str, ...] = ()
    total: bool = False
    nulls: float = 0.0
    parent: str = ""
    through: str = ""


@dataclass(frozen=True)
class Table:
    """One table. `person`: rows are people (who, their). `shown`: for rows without a name, the parent that names them."""

    name: str
    noun: str
    nouns: str
    rows: int
    columns: tuple[Column, ...]
    person: bool = False
    shown: str = ""

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def of_kind(self, *kinds: Kind) -> list[Column]:
        return [column for column in self.columns if column.kind in kinds]

    @property
    def label(self) -> Column | None:
        labels = self.of_kind("label")
        return labels[0] if labels else None


@dataclass(frozen=True)
class Domain:
    """One database: its tables, parents before the tables that refer to them."""

    name: str
    tables: tuple[Table, ...]

    @cached_property
    def by_name(self) -> dict[str, Table]:
        return {table.name: table for table in self.tables}

    def table(self, name: str) -> Table:
        return self.by_name[name]

    def references(self, table: str) -> list[Column]:
        return self.table(table).of_kind("reference")

    def children(self, parent: str) -> Iterator[tuple[Table, Column]]:
        """Tables that refer to `parent`, each with the referring column."""
        for table in self.tables:
            for reference in table.of_kind("reference"):
                if reference.parent == parent:
                    yield table, reference

    def path(self, start: str, goal: str) -> list[tuple[str, Column]]:
        """References that lead from `start` up to `goal`, each as (child table, reference); [] when start is goal."""
        trails: list[tuple[str, list[tuple[str, Column]]]] = [(start, [])]
        while trails:
            here, trail = trails.pop(0)
            if here == goal:
                return trail
            trails.extend((ref.parent, [*trail, (here, ref)]) for ref in self.references(here))
        raise KeyError(f"{self.name}: no reference leads from {start} to {goal}")

    def ancestors(self, table: str) -> list[str]:
        """Tables that `table` refers to, directly or over others, nearest first."""
        found: list[str] = []
        queue = [table]
        while queue:
            for reference in self.references(queue.pop(0)):
                if reference.parent not in found:
                    found.append(reference.parent)
                    queue.append(reference.parent)
        return found


def _nouns(text: str) -> tuple[str, str]:
    singular, _, plural = text.partition("|")
    return singular, plural or singular + "s"


def key() -> Column:
    return Column("id", "key", "id", "ids")


def label(name: str, noun: str, values: tuple[str, ...]) -> Column:
    """The column that names a row; its values are unique in the table."""
    return Column(name, "label", *_nouns(noun), values=values)


def category(
    name: str,
    noun: str,
    values: str,
    *forms: str,
    adjective: bool = False,
    be: str = "are",
    ask: tuple[str, ...] = (),
    nulls: float = 0.0,
) -> Column:
    """A text column with few values, given as one text with commas."""
    held = tuple(part.strip() for part in values.split(","))
    return Column(
        name, "category", *_nouns(noun), values=held, forms=forms, adjective=adjective, be=be, ask=ask, nulls=nulls
    )


def number(
    name: str,
    noun: str,
    bounds: tuple[float, float, float],
    over: tuple[str, ...],
    under: tuple[str, ...],
    extremes: tuple[str, str],
    *,
    words: tuple[str, str] = ("highest", "lowest"),
    be: str = "are",
    ask: tuple[str, ...] = (),
    total: bool = False,
    nulls: float = 0.0,
) -> Column:
    """A numeric column; `extremes` are the superlatives of the row with the highest and the lowest number."""
    singular, plural = _nouns(noun)
    return Column(
        name,
        "number",
        singular,
        plural,
        bounds=bounds,
        over=over,
        under=under,
        top=extremes[0],
        bottom=extremes[1],
        high=words[0],
        low=words[1],
        be=be,
        ask=ask,
        total=total,
        nulls=nulls,
    )


def reference(name: str, parent: str, through: str, *forms: str, be: str = "are") -> Column:
    """A foreign key to `parent`'s id. `forms` name the parent row by its label `{v}`."""
    return Column(name, "reference", parent=parent, through=through, forms=forms, be=be)


def predicate(form: str, be: str = "are") -> str:
    """A form as the rest of a clause: `with 3 seats` is `have 3 seats`, `from Oslo` is `are from Oslo`."""
    first, _, rest = form.partition(" ")
    if first == "with":
        return f"have {rest}"
    if first in ("who", "that"):
        return rest
    return f"{be} {form}"


def singular(form: str) -> str:
    """A form as it follows a singular noun: `who live in Oslo` becomes `who lives in Oslo`."""
    pronoun, _, rest = form.partition(" ")
    verb, _, rest = rest.partition(" ")
    return f"{pronoun} {verb}s {rest}" if pronoun in ("who", "that") and verb in PRESENT_VERBS else form
