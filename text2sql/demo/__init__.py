"""The embedded demo benchmark: databases and dialogues made by a seeded generator."""

from text2sql.demo.generate import generate_demo

__all__ = ["generate_demo"]
