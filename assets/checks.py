"""The lineage's checks as Dagster asset checks."""

import dagster as dg

from assets.lineage import widest_profile
from assets.metadata import metadata_of
from stages.checks import Check, lineage_check_list
from stages.plan import Plan
from text2sql.config import Settings, load_profile

PARTITION_NAME_TAG = "dagster/partition"


def lineage_checks(settings: Settings) -> list[dg.AssetChecksDefinition]:
    return [asset_check(check) for check in lineage_check_list(widest_profile(settings).rounds)]


def asset_check(check: Check) -> dg.AssetChecksDefinition:
    """One check of one asset, for the experiment of the run. A failed check that does not block is a warning."""

    @dg.asset_check(
        asset=dg.AssetKey(check.stage.split("/")),
        name=check.name,
        blocking=check.blocking,
        description=" ".join(check.description.split()),
    )
    def run_check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        settings = Settings.from_environment()
        # Checks are not partitioned (in Dagster 1.13 that is a preview): the experiment is the run's partition.
        experiment = context.run.tags[PARTITION_NAME_TAG]
        plan = Plan(load_profile(experiment, settings.experiments), settings)
        artifact = plan.find(check.stage) if check.stage in plan.stages else None
        if artifact is None:
            return dg.AssetCheckResult(passed=True, metadata={"note": "this stage is not in this experiment"})
        result = check.function(plan, artifact)
        severity = dg.AssetCheckSeverity.ERROR if check.blocking else dg.AssetCheckSeverity.WARN
        return dg.AssetCheckResult(
            passed=result.passed,
            severity=severity,
            description=result.description,
            metadata=metadata_of(result.figures),
        )

    return run_check
