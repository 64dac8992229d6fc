"""Rows in, policy out. Knows nothing of Dagster, MLflow or of a system's prompts."""
