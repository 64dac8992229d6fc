"""The lineage as Dagster assets; thin."""
