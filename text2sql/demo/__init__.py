"""The embedded demo benchmark: databases and dialogues made by a seeded generator."""

from text2sql.demo.generate import DEV_DIALOGUES, TRAIN_DIALOGUES, generate_demo

__all__ = ["DEV_DIALOGUES", "TRAIN_DIALOGUES", "generate_demo"]
