"""The one Dagster home."""

import dagster as dg
from filelock import FileLock

from assets.lineage import add_experiments
from text2sql.config import Settings
from text2sql.errors import Text2SqlError


def dagster_instance(settings: Settings, *experiments: str) -> dg.DagsterInstance:
    """
    The instance of the one home folder, always absolute; a missing dagster.yaml is an error, not a new home. It knows
    every experiment that has a file, and `experiments`, as a partition. One process at a time, since two that make the
    SQLite databases of a new home at once leave them marked twice, and unusable.
    """
    if not (settings.dagster_home / "dagster.yaml").is_file():
        raise Text2SqlError(
            f"DAGSTER_HOME is {settings.dagster_home}, where no dagster.yaml lies. Unset it to use dagster_home/ of "
            "this checkout, or put a dagster.yaml there."
        )
    with FileLock(settings.dagster_home / ".open.lock"):
        instance = dg.DagsterInstance.from_config(str(settings.dagster_home))
        add_experiments(instance, settings, *experiments)
        return instance
