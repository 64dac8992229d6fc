"""The one Definitions object: what `dagster dev` and the job's command line load."""

import dagster as dg

from assets.checks import lineage_checks
from assets.lineage import lineage_assets
from pipelines.jobs import lineage_job
from text2sql.config import Settings

settings = Settings.from_environment()
defs = dg.Definitions(
    assets=lineage_assets(settings),
    asset_checks=lineage_checks(settings),
    jobs=[lineage_job()],
    # One process for the steps of a run: model stages are processes of their own already, and each further
    # Python with Dagster in it costs seconds and memory on a small machine.
    executor=dg.in_process_executor,
)
