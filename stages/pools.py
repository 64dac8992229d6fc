"""
Which train items are for what. A scratch policy is bootstrapped on a share of the train dialogues; everything after it
practises on the others, as a pretrained policy meets a benchmark that it has not seen.
"""

import random

from stages.context import StageContext
from text2sql.dialogue import Item


def bootstrap_items(context: StageContext) -> list[Item]:
    """The train items that the bootstrap may see: whole dialogues, drawn with the profile's seed."""
    items = context.items("train")
    seen = _bootstrap_dialogues(context, items)
    return [item for item in items if item.dialogue_id in seen]


def practice_items(context: StageContext) -> list[Item]:
    """
    The train items for the rounds, the curriculum, GRPO and the baselines: those that the bootstrap has not seen. All of
    them for a pretrained policy, and where the bootstrap has seen everything.
    """
    items = context.items("train")
    if context.profile.model.init == "pretrained":
        return items
    seen = _bootstrap_dialogues(context, items)
    return [item for item in items if item.dialogue_id not in seen] or items


def _bootstrap_dialogues(context: StageContext, items: list[Item]) -> set[str]:
    dialogues = list(dict.fromkeys(item.dialogue_id for item in items))
    share = context.profile.model.bootstrap.share_of_train
    return set(random.Random(context.profile.seed).sample(dialogues, max(1, round(share * len(dialogues)))))
