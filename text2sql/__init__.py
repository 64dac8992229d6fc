"""The domain shared by every system: dialogues, databases, queries, trajectories, engines. Imports nothing of ours."""
