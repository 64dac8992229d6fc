"""What can be launched."""

from typing import Any

import dagster as dg

from assets.lineage import EXPERIMENTS

LINEAGE_JOB = "mtsql_lineage"


def lineage_job() -> Any:
    """Everything, for one experiment (Dagster does not export the type of a job that is yet to be resolved)."""
    return dg.define_asset_job(
        LINEAGE_JOB,
        selection=dg.AssetSelection.all(),
        partitions_def=EXPERIMENTS,
        description="The whole lineage of MTSQL-R1 for one experiment (partition). Complete artifacts are reused.",
    )
