"""
The sentences: for each intent at least four frames with slots that `text2sql.demo.wording` fills.

An intent with `.person` is used instead when the rows are people, `.event` when they have no name of their own. Slots:
{np} plural noun phrase with all conditions, {one} the same in the singular, {thing} {things} bare nouns, {label}
{labels} what names a row, {col} {cols} the column asked for, {key} {keys} what is grouped by, {ones} "the ones from
Oslo", {clause} "are from Oslo", {agg} "average", {top} {bottom} superlatives, {high} of the number itself, {n}
{bound} "more than 3", {most} most or fewest, {x} a name, {v} a value, {child} {children} {childnp} rows that refer
to these, {parents}.
"""

from text2sql.demo.frames_followups import FOLLOWUP_FRAMES
from text2sql.demo.frames_openers import OPENER_FRAMES

FRAMES = OPENER_FRAMES | FOLLOWUP_FRAMES
