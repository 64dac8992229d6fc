"""
The clauses of a query as sets of elements, and F1 between two queries clause by clause.

Three readers share it: the memory shows an earlier query's elements, the propose reward is the mean clause F1 against
gold, and error analysis compares constraints. The paper speaks of the average clause F1 over SELECT, WHERE, JOIN,
GROUP and ORDER and does not define the elements. Here they are:

select  each selected expression, and DISTINCT
where   each condition; one further element per OR, naming the columns on its sides
join    each table in FROM, and each join condition (a column = column condition of WHERE between two tables too)
group   each grouping expression, and each HAVING condition
order   each sort key with its direction, LIMIT and OFFSET with their numbers

How two spellings become one element: identifiers are lower case, table aliases are replaced by table names, names of
select items by what they stand for, `ORDER BY 2` by the second item, sides of `=` are sorted, `5 < a` is `a > 5`.
Literals and aggregates stay. The order of elements never matters, their repetition does.

1. A nested query leaves `(query)` in the element that holds it, and its own elements, each in parentheses after its
   clause's keyword, join the clause in which it stands. CTEs and derived tables stand in FROM.
2. Of a set operation, the first query's elements are plain and those of the others start with the operator.
3. Columns without a table take the only table of their query. Among several tables `tables` (columns by table)
   decides, as SQLite does; without it such a column stays bare.
4. A double-quoted word that names no column is text, as in SQLite. Without `tables` it is text where it stands to the
   right of an operator.

Reading is by sqlglot in SQLite's dialect, which reads more than the exact match evaluator does.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from evaluation.clause_reader import CLAUSES, Tables, read_elements

# No gold query of the benchmarks has 1,000 characters; a degenerate sample can have 20,000 and takes seconds to read.
MAX_CHARACTERS = 5_000

__all__ = ["CLAUSES", "ClauseView", "Tables", "clause_f1", "clause_view", "mean_clause_f1"]


@dataclass(frozen=True)
class ClauseView:
    """
    What a query asks for. `clauses` has the sorted elements of each clause that the query has. `tables`, `columns`
    and `literals` are its entities, `aggregates` its aggregate calls, COUNT(*) included; each sorted, without
    repetition, nested queries included.
    """

    clauses: Mapping[str, tuple[str, ...]]
    tables: tuple[str, ...]
    columns: tuple[str, ...]
    literals: tuple[str, ...]
    aggregates: tuple[str, ...]

    @property
    def entities(self) -> tuple[str, ...]:
        return self.tables + self.columns + self.literals

    @property
    def constraints(self) -> tuple[str, ...]:
        """What narrows the answer: the WHERE elements, HAVING and LIMIT."""
        group = [element for element in self.clauses.get("group", ()) if "HAVING " in element]
        order = [element for element in self.clauses.get("order", ()) if "LIMIT " in element]
        return (*self.clauses.get("where", ()), *group, *order)


def clause_f1(gold: str, pred: str, tables: Tables | None = None) -> dict[str, float]:
    """
    F1 over elements for each clause that either query has. A clause on one side only scores 0, one on neither side
    is left out. An unreadable `pred` scores 0 on gold's clauses; {} when gold is unreadable.
    """
    expected = clause_view(gold, tables)
    if expected is None:
        return {}
    found = clause_view(pred, tables)
    actual = found.clauses if found else {}
    return {
        clause: _f1(expected.clauses.get(clause, ()), actual.get(clause, ()))
        for clause in CLAUSES
        if clause in expected.clauses or clause in actual
    }


def mean_clause_f1(gold: str, pred: str, tables: Tables | None = None) -> float:
    """Mean of `clause_f1`, 0.0 when gold is unreadable (ask `clause_view` to tell that apart)."""
    scores = clause_f1(gold, pred, tables)
    return sum(scores.values()) / len(scores) if scores else 0.0


@lru_cache(maxsize=20_000)
def clause_view(sql: str, tables: Tables | None = None) -> ClauseView | None:
    """The clauses of the first statement in `sql`; None when it is no query that can be read. Never raises."""
    if len(sql) > MAX_CHARACTERS:
        return None
    try:
        read = read_elements(sql, tables)
    except Exception:  # model text reaches every corner of the parser, which raises more than its own errors
        return None
    if read is None or not read.elements["select"]:
        return None
    clauses = {clause: tuple(sorted(read.elements[clause])) for clause in CLAUSES if read.elements[clause]}
    return ClauseView(
        clauses=MappingProxyType(clauses),
        tables=tuple(sorted(read.tables)),
        columns=tuple(sorted(read.columns)),
        literals=tuple(sorted(read.literals)),
        aggregates=tuple(sorted(read.aggregates)),
    )


def _f1(gold: tuple[str, ...], pred: tuple[str, ...]) -> float:
    common = sum((Counter(gold) & Counter(pred)).values())
    return 2 * common / (len(gold) + len(pred))
