"""The stages of the lineage as plain functions over artifacts, runnable from a shell; Dagster only calls them."""
