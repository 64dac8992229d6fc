"""
From a planned step to a sentence.

An utterance is a frame (`text2sql.demo.frames`) said in one of five styles; the style decides which of a column's
forms and which synonyms are used, whether a courtesy comes first, and whether the sentence is typed carelessly. One
combination of frame and style in five is held out: the training data and the first dev set never use it, the phrasing
dev set uses nothing else, and there only where it makes a sentence that training could not have said.
"""

import random
from collections.abc import Sequence

from text2sql.demo.domain import Column, Domain, Table, predicate, singular
from text2sql.demo.draw import Step
from text2sql.demo.frames import FRAMES
from text2sql.demo.query import Condition, Field, column_of, label_of

STYLES = 5
STYLE_WEIGHTS = (3, 3, 1, 2, 1)
TYPED_STYLES = (2, 4)  # a small first letter, no stop or question mark at the end
COURTEOUS_STYLES = (3, 4)
GREETINGS = ("Hi", "Hello", "Good morning", "Hi there")
COURTESIES = ("Okay", "Thanks", "Good", "Thank you", "Great")
CHANGES = ("Something else: ", "Another question. ", "Now a different question. ", "Next: ")


def held_out(frame: int, style: int) -> bool:
    """Whether a combination is kept for the phrasing dev set. Every frame and every style occurs in training."""
    return (frame + style) % STYLES == 0


class Wording:
    """Says steps about one domain. `only_held_out` says them in the combinations that training never uses."""

    def __init__(self, domain: Domain, rng: random.Random, only_held_out: bool = False) -> None:
        self.domain = domain
        self.rng = rng
        self.only_held_out = only_held_out

    def say(self, step: Step, position: int) -> str:
        """The utterance of a step at `position` (from 0) in its dialogue."""
        frame, style = self._combination(step)
        text = self._sentence(step, frame, style)
        if style in COURTEOUS_STYLES:
            courtesy = self.rng.choice(GREETINGS if position == 0 else COURTESIES)
            return courtesy + ". " + text if style not in TYPED_STYLES else courtesy.lower() + ", " + text
        if position and step.before is None and style not in TYPED_STYLES:
            return self.rng.choice(CHANGES) + text
        return text

    def _combination(self, step: Step) -> tuple[int, int]:
        """Frame and style."""
        every = [(frame, style) for frame in range(len(frames_of(step, self.domain))) for style in range(STYLES)]
        options = [one for one in every if held_out(*one) == self.only_held_out]
        if self.only_held_out:
            trained = {self._surface(step, *one) for one in every if not held_out(*one)}
            options = [one for one in options if self._surface(step, *one) not in trained]
        return self.rng.choices(options, [STYLE_WEIGHTS[style] for _, style in options])[0]

    def _surface(self, step: Step, frame: int, style: int) -> tuple[str, bool]:
        """What is said, apart from which courtesy is chosen."""
        return self._sentence(step, frame, style), style in COURTEOUS_STYLES

    def _sentence(self, step: Step, frame: int, style: int) -> str:
        text = frames_of(step, self.domain)[frame].format_map(slots(step, self.domain, style))
        return text[0].lower() + text[1:].rstrip(".?") if style in TYPED_STYLES else text[0].upper() + text[1:]


def frames_of(step: Step, domain: Domain) -> tuple[str, ...]:
    """The frames that can say a step."""
    table = domain.table(step.query.main)
    if table.person and f"{step.intent}.person" in FRAMES:
        return FRAMES[f"{step.intent}.person"]
    if not table.label and f"{step.intent}.event" in FRAMES:
        return FRAMES[f"{step.intent}.event"]
    return FRAMES[step.intent]


def slots(step: Step, domain: Domain, style: int) -> dict[str, str]:
    """What the frames of this step may need."""
    query, table = step.query, domain.table(step.query.main)
    label = label_of(domain, table.name)
    plain = [condition for condition in query.where if condition.query is None]
    filled = {
        "thing": table.noun,
        "things": table.nouns,
        "label": noun(domain, table, label),
        "labels": noun(domain, table, label, plural=True),
        "np": noun_phrase(domain, table, plain, query.connector, style),
        "one": noun_phrase(domain, table, plain, query.connector, style, plural=False),
        "n": str(step.number),
        "bound": f"at least {step.number}" if step.aggregate == ">=" else f"more than {step.number}",
        "x": step.name,
        "most": "most" if query.descending else "fewest",
        "extreme": "highest" if query.descending else "lowest",
    }
    if step.field:
        filled |= _column_slots(domain, table, step, style)
    if step.key:
        filled |= {"key": noun(domain, table, step.key), "keys": noun(domain, table, step.key, plural=True)}
    if step.condition and step.condition.query is None:
        filled |= {
            "ones": ones(domain, table, step.condition, style),
            "clause": clause(domain, table, step.condition, style),
        }
        filled["v"] = str(step.condition.value)
    if step.condition and step.other:
        filled["np1"] = noun_phrase(domain, table, (step.condition,), "AND", style)
        filled["np2"] = noun_phrase(domain, table, (step.other,), "AND", style)
    if step.child:
        filled |= _child_slots(domain, step, style)
    return filled


def _column_slots(domain: Domain, table: Table, step: Step, style: int) -> dict[str, str]:
    assert step.field
    column = column_of(domain, step.field)
    high, low = (
        (column.high, column.low) if step.query.descending or not step.query.order else (column.low, column.high)
    )
    top, bottom = (column.top, column.bottom) if step.query.descending else (column.bottom, column.top)
    if step.intent.removeprefix("re").startswith("sort") or step.intent == "range":
        high, low, top, bottom = column.high, column.low, column.top, column.bottom
    if step.intent == "opposite":
        top, bottom = bottom, top
    words = {"AVG": ("average", "mean")[style % 2], "MAX": column.high, "MIN": column.low, "SUM": "total"}
    filled = {
        "col": noun(domain, table, step.field),
        "a_col": f"{_article(noun(domain, table, step.field))} {noun(domain, table, step.field)}",
        "cols": noun(domain, table, step.field, plural=True),
        "high": high,
        "low": low,
        "top": top,
        "bottom": bottom,
        "agg": words.get(step.aggregate, ""),
    }
    if step.condition and step.condition.query is not None:
        filled["side"] = "above" if step.condition.op == ">" else "below"
    if column.ask:
        filled["ask"] = column.ask[style % len(column.ask)].format(x=step.name)
    return filled


def _child_slots(domain: Domain, step: Step, style: int) -> dict[str, str]:
    if step.before is not None and step.intent.endswith("children_of_row"):
        parent = domain.table(step.before.main)
        child = domain.table(step.child)
        return {"thing": parent.noun, "child": child.noun, "children": child.nouns}
    child = domain.table(step.child)
    inner = step.condition.query.where if step.condition and step.condition.query else ()
    return {
        "child": child.noun,
        "children": child.nouns,
        "childnp": noun_phrase(domain, child, inner, "AND", style),
    }


def noun(domain: Domain, table: Table, field: Field, plural: bool = False) -> str:
    """A field in words, seen from rows of `table`: title; author for the author's name; author country."""
    column = column_of(domain, field)
    word = column.nouns if plural else column.noun
    if field.table == table.name:
        return word
    parent = domain.table(field.table)
    if column.kind == "label":
        return parent.nouns if plural else parent.noun
    return f"{parent.noun} {word}"


def noun_phrase(
    domain: Domain, table: Table, conditions: Sequence[Condition], connector: str, style: int, plural: bool = True
) -> str:
    """Rows of `table` with conditions: "crime books by authors from Norway"."""
    if connector == "OR":
        first = conditions[0]
        joined = " or ".join(str(condition.value) for condition in conditions)
        conditions = (Condition(first.field, "=", joined),)
    said = [describe(domain, table, condition, style) for condition in sorted(conditions, key=_numbers_last)]
    before = [adjective for adjective, _ in said if adjective]
    after = [form if plural else singular(form) for adjective, form in said if not adjective]
    return " ".join([*before, table.nouns if plural else table.noun, *after])


def _numbers_last(condition: Condition) -> bool:
    return not isinstance(condition.value, str)


def describe(domain: Domain, table: Table, condition: Condition, style: int) -> tuple[str, str]:
    """A condition as an adjective ("" when it has none) and as what follows the noun."""
    column = column_of(domain, condition.field)
    if condition.field.table != table.name:
        return "", _through(domain, table, condition, style)
    if condition.op == "LIKE":
        return "", f"with '{str(condition.value).strip('%')}' in the {column.noun}"
    if condition.op == "BETWEEN":
        return "", _between(column, condition)
    if column.kind == "number":
        forms = column.over if condition.op == ">" else column.under
        return "", forms[style % len(forms)].format(v=condition.value)
    if column.kind == "label":
        return "", f"called {condition.value}"
    adjective = str(condition.value) if column.adjective else ""
    return adjective, column.forms[style % len(column.forms)].format(v=condition.value)


def _between(column: Column, condition: Condition) -> str:
    bounds = f"{condition.value} and {condition.upper}"
    for form in column.over:
        if "more than {v}" in form:
            return form.replace("more than {v}", f"between {bounds}")
        if "after {v}" in form:
            return form.replace("after {v}", f"between {bounds}")
    return f"with {_article(column.noun)} {column.noun} between {bounds}"


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeio" else "a"


def _through(domain: Domain, table: Table, condition: Condition, style: int) -> str:
    """A condition on a table that `table` refers to: "by Mina Roth", "by authors from Norway"."""
    _, reference = domain.path(table.name, condition.field.table)[0]
    parent = domain.table(reference.parent)
    if condition.field == label_of(domain, parent.name):
        return reference.forms[style % len(reference.forms)].format(v=condition.value)
    return reference.through.format(np=noun_phrase(domain, parent, (condition,), "AND", style))


def ones(domain: Domain, table: Table, condition: Condition, style: int) -> str:
    """Rows meant by a condition alone: "the crime ones", "the ones from Norway"."""
    adjective, form = describe(domain, table, condition, style)
    if adjective and style % 2 == 0:
        return f"the {adjective} ones"
    return f"{('the ones', 'those')[style % 2]} {form}"


def clause(domain: Domain, table: Table, condition: Condition, style: int) -> str:
    """A condition as the rest of a sentence about several rows: "are from Norway"."""
    _, form = describe(domain, table, condition, style)
    if condition.field.table == table.name:
        be = column_of(domain, condition.field).be
    else:
        be = domain.path(table.name, condition.field.table)[0][1].be
    return predicate(form, "are" if form.startswith(("in ", "by ", "of ")) else be)
