"""
Exact set match on what two queries mean, whatever their spelling: the sound companion of official EM.

The official evaluator refuses many right predictions for their spelling and reads others wrongly. Here both queries are
read with sqlglot (`evaluation.sound_reader`) and compared by the same rules (`evaluation.set_match`): values, DISTINCT
and the order of select items do not count. It never replaces official EM; a report gives both.

Where the two differ, on the recorded pairs and by construction:

Official false, sound true (the same query in another spelling): alias without AS or equal to a table's name; column
aliases, also in ORDER BY; comma, CROSS, INNER, USING joins; join conditions in WHERE and filters in ON; `<>`, `a=3`,
`T1 . name`, quoted names, an apostrophe in a string; comments; parentheses around conditions; a literal on the left;
lists of IN against OR, BETWEEN against two conditions; count(1); numbers in ORDER BY and GROUP BY; DISTINCT in IN;
a derived table that only chooses rows; other order of conditions or tables in a subquery; the letters `value`.

Official true, sound false (another query, or none): ON dropped or on other columns; another direction of one ORDER BY
item; a comparison with a column against one with a value; AND and OR that bind otherwise; what the official parser
swallows after a column or ignores after the end, so that SQLite refuses the query (words, an extra parenthesis).

Both true although the results differ, as values and DISTINCT do not count: another literal or LIMIT. Parentheses around
a query or around an operand of a set operation are read, although SQLite refuses them.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from sqlglot import Dialect, Token, TokenType

from evaluation.official_parser import Query
from evaluation.schema_index import EvaluatorSchema
from evaluation.set_match import queries_match
from evaluation.sound_reader import read

MAX_CHARACTERS = 20_000
MAX_DEPTH = 60  # brackets; deeper text is no answer to a question, and a recursive reader must stop somewhere

_SQLITE = Dialect.get_or_raise("sqlite")
_STRING = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*")""")
_SPLIT_OPERATOR = re.compile(r"([><!])\s+=")
_START = re.compile(r"\s*(?:--[^\n]*\n\s*|/\*.*?\*/\s*|\(\s*)*(?:select|with)\b", re.IGNORECASE | re.DOTALL)

_CLAUSES = {
    TokenType.SELECT: 0,
    TokenType.WHERE: 1,
    TokenType.GROUP_BY: 2,
    TokenType.HAVING: 3,
    TokenType.ORDER_BY: 4,
    TokenType.LIMIT: 5,
}
_SET_OPERATORS = {TokenType.UNION, TokenType.INTERSECT, TokenType.EXCEPT}


def exact_match_sound(gold: str, pred: str, schema: EvaluatorSchema) -> bool:
    """Whether both queries have the same clauses. False when sqlglot cannot read one of them. Never raises."""
    gold_query = read_text(gold, schema)
    pred_query = read_text(pred, schema) if gold_query is not None else None
    if gold_query is None or pred_query is None:
        return False
    try:
        return sorted(map(str, gold_query.tables)) == sorted(map(str, pred_query.tables)) and queries_match(
            gold_query, pred_query
        )
    except RecursionError:
        return False


@lru_cache(maxsize=32_768)
def read_text(text: str, schema: EvaluatorSchema) -> Query | None:
    """
    The structure of the first statement of a text, None when it cannot be read. Operators that the data sets split
    (`> =`) are joined, as the official evaluator joins them.
    """
    if len(text) > MAX_CHARACTERS or text.count("(") > 4 * MAX_DEPTH or _depth(text) > MAX_DEPTH:
        return None
    if not _START.match(text):
        return None
    pieces = _STRING.split(text)
    pieces[::2] = [_SPLIT_OPERATOR.sub(r"\1=", piece) for piece in pieces[::2]]
    try:
        sql = "".join(pieces)
        tokens = _SQLITE.tokenize(sql)
        end = next((at for at, token in enumerate(tokens) if token.token_type == TokenType.SEMICOLON), len(tokens))
        if not _in_order(tokens[:end]):
            return None
        statement = _SQLITE.parser().parse(tokens[:end], sql)[0]
        return read(statement, schema) if statement is not None else None
    except Exception:  # sqlglot raises errors of many kinds on broken text; for all of them the text is unreadable
        return None


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        if character == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif character == ")":
            depth -= 1
    return deepest


def _in_order(tokens: Sequence[Token]) -> bool:
    """Whether clauses come in SQL's order; sqlglot also reads others, SQLite does not."""
    ranks = [-1]
    for token in tokens:
        if token.token_type == TokenType.L_PAREN:
            ranks.append(-1)
        elif token.token_type == TokenType.R_PAREN and len(ranks) > 1:
            ranks.pop()
        elif token.token_type in _SET_OPERATORS:
            ranks[-1] = -1
        elif token.token_type in _CLAUSES:
            rank = _CLAUSES[token.token_type]
            if rank <= ranks[-1]:
                return False
            ranks[-1] = rank
    return True
