"""The embedded demo benchmark: databases and dialogues made by a seeded generator."""
