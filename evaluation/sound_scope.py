"""Names in a query as SQLite resolves them: which table an alias stands for, which column a name means."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sqlglot import exp


@dataclass(frozen=True)
class Source:
    """
    One entry of a FROM list. `columns`: the name of a column to what stands for it everywhere ("table.column", or the
    expression of a derived table). None: a table that the database does not have, which may have any column.
    """

    alias: str
    table: str
    columns: Mapping[str, str] | None

    def find(self, name: str) -> str | None:
        if self.columns is None:
            return f"{self.table}.{name}"
        return self.columns.get(name)


@dataclass(frozen=True)
class Common:
    """A WITH query, and those before it, which it may use."""

    query: exp.Expr
    earlier: Mapping[str, "Common"]


@dataclass
class Scope:
    """
    One SELECT: the scope around it, the WITH queries in reach, its sources and column aliases. `nested`: a query in a
    condition or in FROM, where DISTINCT counts. `values`: a derived table, where values count. `renamed`: columns that
    joins make equal, to the one that stands for them.
    """

    parent: "Scope | None"
    common: Mapping[str, Common]
    nested: bool = False
    values: bool = False
    sources: list[Source] = field(default_factory=list)
    aliases: dict[str, exp.Expr] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)

    def resolve(self, column: exp.Column) -> str | exp.Expr | None:
        """
        What a column stands for: its name, the expression that it is an alias of, or None for a quoted word that is
        no column and therefore a string, as SQLite has it. A name that nothing offers keeps its own text.
        """
        qualifier, name = column.table.lower(), column.name.lower()
        for scope in self.chain():
            found = scope.local(qualifier, name)
            if found is not None:
                return found
            if not qualifier and name in scope.aliases:
                return scope.aliases[name]
        if not qualifier and column.this.args.get("quoted"):
            return None
        return f"?{qualifier}.{name}" if qualifier else f"?{name}"

    def local(self, qualifier: str, name: str) -> str | None:
        """The column among this query's own sources, the first in written order that has it."""
        for source in self.sources:
            if qualifier and source.alias != qualifier:
                continue
            if not qualifier and source.columns is None and len(self.sources) > 1:
                continue
            found = source.find(name)
            if found is not None:
                return self.renamed.get(found, found)
        return None

    def chain(self) -> Iterator["Scope"]:
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent
