"""
Splits SQL text into the tokens that the official evaluator's parser sees.

The official evaluator hands the text to a tokenizer for English prose. For SQL that comes down to the rules below, so
neither that tokenizer nor its language model is needed. The rules matter: what is glued to its neighbour (`a=3`,
`T1.id=T2.id`) cannot be read later, and a prediction that cannot be read is wrong for exact match.

1. Every `'` is a `"`. Quotes are paired from the left; each pair with its contents is one word. An odd number of
   quotes is unreadable. A string that touches a letter, a digit or an operator stays glued to it and is lost.
2. `( ) [ ] { } < > * ; % & @ # $ ? !`, the pair `--`, back-ticks, curly quotes and long dashes stand alone;
   `,` and `:` stand alone unless a digit follows at once; two or more full stops stand together.
3. `= + - / | ^ ~` and a single `.` stay glued to what they touch. A full stop that ends a sentence is split off:
   at the end of the text, and before a bracket or a blank; after a number only if no lower-case letter and no
   punctuation follows (`> 3. AND x` loses the number, `> 3. and x` and `> 3.;` keep it).
4. Everything outside strings is lower-cased; `cannot`, `gonna`, `gotta`, `gimme`, `lemme`, `wanna` are two words.
5. A token `=` joins a token `>`, `<` or `!` right before it.

Behaviour verified against: taoyds/test-suite-sql-eval at e97acc54 with nltk 3.10.4.
"""

import re

END = ""  # stands after the last token, so that looking one token ahead never fails

_ALONE = "][(){}<>*;%&@#$?!«“‘„»”’\u2012-\u2015"
_TOKEN = re.compile(rf"(?:[^{_ALONE}`,:.\s-]++|[,:](?=\d)|-(?!-)|\.(?!\.))+|[{_ALONE}]|``|`|--|\.\.+|[,:]")
_STOP = re.compile(r"\.(?!\w)")
_FINAL_STOP = re.compile(r"""(?<=[^.])\.(?=[\])}>'"»”’ ]*$)""")
_INNER_STOP = re.compile(r"([^\s()\[\]{}*@;:!?,&#`-]*[^\s()\[\]{}*@;:!?,&#`.-])\.(?=([)\]}*@(\[{;:!?])|\s+(\S))")
_NUMBER_OR_LETTER = re.compile(r"[.\d][\d.]*|[a-zA-Z]")
_ABBREVIATIONS = frozenset("cdefghklmnprstvw")  # the single letters that its language model knows as abbreviations
_CONTRACTIONS = ("cannot", "gimme", "gonna", "gotta", "lemme", "wanna")
_CONTRACTION = re.compile(r"\b(?:(can)(not)|(gim|lem)(me)|(gon|wan)(na)|(got)(ta))\b")


class UnreadableError(Exception):
    """The official parser cannot read a text. The message says what stands in its way and at which token."""


def tokenize(text: str) -> list[str]:
    """
    The tokens of one query, `END` after the last. Strings keep their quotes (always `"`) and their case.
    Raises UnreadableError for an odd number of quotes.
    """
    pieces = text.replace("'", '"').split('"')
    if len(pieces) % 2 == 0:
        raise UnreadableError("odd number of quotes")
    strings: dict[str, str] = {}
    if len(pieces) > 1:
        for number in range(1, len(pieces), 2):
            key = f"__string_{number}__"
            strings[key] = f'"{pieces[number]}"'
            pieces[number] = key
        text = "".join(pieces)

    tokens = _words(text)
    if strings:
        tokens = [strings.get(word, word) for word in tokens]
    if "=" in tokens:
        tokens = _join_operators(tokens)
    tokens.append(END)
    return tokens


def _words(text: str) -> list[str]:
    if _STOP.search(text):
        text = _FINAL_STOP.sub(" . ", _INNER_STOP.sub(_split_stop, text))
    text = text.lower()
    if any(word in text for word in _CONTRACTIONS):
        text = _CONTRACTION.sub(lambda match: " ".join(filter(None, match.groups())), text)
    return _TOKEN.findall(text)


def _split_stop(match: re.Match[str]) -> str:
    word, beside, beyond = match.groups()
    following = beside or beyond
    if word.lower() in _ABBREVIATIONS:
        return match.group()
    if _NUMBER_OR_LETTER.fullmatch(word) and (following.islower() or following in ";:,.!?"):
        return match.group()
    return f"{word} . "


def _join_operators(tokens: list[str]) -> list[str]:
    joined: list[str] = []
    for word in tokens:
        if word == "=" and joined and joined[-1] in ("!", ">", "<"):
            joined[-1] += "="
        else:
            joined.append(word)
    return joined
