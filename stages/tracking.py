"""
MLflow, for the whole project: the one file that imports it.

One MLflow experiment per benchmark. A lineage run is a parent run; every stage that does work is a child run with its
parameters, metrics over steps, the profile, its datasets (fingerprint as digest) and, for a policy, a logged model. Tag
`artifact` is the folder it makes; a dataset's source is the folder of an input: from a score to its trajectories. A
stage that is resumed goes on in the run it began (`tracking.json` in its folder remembers which); metrics carry the
attempt as a tag of the run, and a repeated step is logged again, so that the last attempt's value is the current one.
"""

import contextlib
import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from filelock import FileLock

from stages.plan import Stage, stage_slice
from text2sql.artifacts import Artifact, ArtifactStore
from text2sql.config import Profile, Settings
from text2sql.errors import TrackingError

_CHECK_SECONDS = 5.0
_RECORD = "tracking.json"
UI_ADDRESS = "http://127.0.0.1:5000"
DAGSTER_ADDRESS = "http://127.0.0.1:3000"


def check(settings: Settings) -> None:
    """Raise TrackingError at once when the MLflow store cannot be used; creates a SQLite store that is not there."""
    uri = settings.mlflow_uri
    if uri.startswith(("http://", "https://")):
        try:
            response = httpx.get(f"{uri.rstrip('/')}/health", timeout=_CHECK_SECONDS)
            response.raise_for_status()
        except httpx.HTTPError as error:
            raise TrackingError(
                f"MLflow does not answer at {uri} ({type(error).__name__}: {error}). Start the server, or unset "
                "MLFLOW_TRACKING_URI to use the SQLite file of this checkout."
            ) from None
        return
    try:
        _create_store(settings)
    except Exception as error:  # whatever the store's driver raises, the user is told before the work starts
        raise TrackingError(
            f"The MLflow store {uri} cannot be opened ({error}). Set MLFLOW_TRACKING_URI to a server or to "
            "sqlite:///<file in a folder that can be written>."
        ) from None


def run_url(settings: Settings, experiment_id: str, run_id: str) -> str:
    """The page of a run: on the tracking server, or where `make ui` serves the SQLite store."""
    uri = settings.mlflow_uri
    server = uri.rstrip("/") if uri.startswith(("http://", "https://")) else UI_ADDRESS
    return f"{server}/#/experiments/{experiment_id}/runs/{run_id}"


def _lock(settings: Settings, name: str) -> FileLock:
    folder = settings.artifacts / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    return FileLock(folder / f"{name}.lock", timeout=300)


def _create_store(settings: Settings) -> None:
    """SQLite tables are created by one process at a time; two that start together would both try."""
    import mlflow

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with _lock(settings, "mlflow"):
        mlflow.set_tracking_uri(settings.mlflow_uri)
        mlflow.MlflowClient().search_experiments(max_results=1)


@dataclass
class StageRun:
    """An open child run. `log` may be called from training; non-finite values are left out and counted."""

    client: Any
    run_id: str
    experiment_id: str
    skipped: int = 0

    def log(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric
        from mlflow.utils.time import get_current_time_millis

        now = get_current_time_millis()
        metrics = [
            Metric(name, float(value), now, step)
            for name, value in values.items()
            if isinstance(value, int | float) and math.isfinite(value)
        ]
        self.skipped += len(values) - len(metrics)
        if metrics:
            self.client.log_batch(self.run_id, metrics=metrics)


class Tracker:
    """
    Writes one lineage run. `lineage_run` names it (the Dagster run id when Dagster started it); stages of the same
    lineage run find the same parent, whichever process they run in.
    """

    def __init__(self, profile: Profile, settings: Settings, lineage_run: str, dagster_run: str | None = None) -> None:
        import mlflow

        check(settings)
        mlflow.set_tracking_uri(settings.mlflow_uri)
        self.profile = profile
        self.settings = settings
        self.lineage_run = lineage_run
        self.dagster_run = dagster_run
        self.client = mlflow.MlflowClient()
        self.experiment_id = self._experiment()

    @classmethod
    def opener(
        cls, profile: Profile, settings: Settings, lineage_run: str, dagster_run: str | None = None
    ) -> Callable[[], "Tracker"]:
        """A function that opens the tracker on first use: a stage that is complete already never asks MLflow."""
        return lambda: cls(profile, settings, lineage_run, dagster_run)

    def _experiment(self) -> str:
        name = self.profile.benchmark.name
        with _lock(self.settings, "mlflow"):
            found = self.client.get_experiment_by_name(name)
            if found is not None:
                return str(found.experiment_id)
            root = None
            if self.settings.mlflow_uri.startswith("sqlite:"):
                root = (self.settings.artifacts / "mlflow" / name).as_uri()
            return str(self.client.create_experiment(name, artifact_location=root))

    def parent(self) -> str:
        """The run id of this lineage run's parent, made once by whichever stage needs it first."""
        with _lock(self.settings, "mlflow"):
            found = self.client.search_runs(
                [self.experiment_id],
                filter_string=f"tags.lineage_run = '{self.lineage_run}' and tags.kind = 'lineage'",
                max_results=1,
            )
            if found:
                return str(found[0].info.run_id)
            tags = {"kind": "lineage", "experiment": self.profile.name, **self._links()}
            run = self.client.create_run(self.experiment_id, run_name=self.profile.name, tags=tags)
            run_id = str(run.info.run_id)
            self.client.log_text(run_id, profile_yaml(self.profile), "profile.yaml")
            self._log_params(run_id, {"experiment": self.profile.name, **_flat(self.profile.model_dump(mode="json"))})
            return run_id

    def _links(self) -> dict[str, str]:
        links = {"lineage_run": self.lineage_run}
        if self.dagster_run:
            links["dagster_run"] = self.dagster_run
            links["dagster_page"] = f"{DAGSTER_ADDRESS}/runs/{self.dagster_run}"
        return links

    def _log_params(self, run_id: str, values: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(key, str(value)[:500]) for key, value in values.items()]
        for start in range(0, len(params), 100):
            self.client.log_batch(run_id, params=params[start : start + 100])

    @contextlib.contextmanager
    def stage(self, stage: Stage, fingerprint: str, inputs: Mapping[str, Artifact], work: Path) -> Iterator[StageRun]:
        """The child run of a stage: begun, or gone on with after an attempt that died; ended with the outcome."""
        parent = self.parent()
        self.client.update_run(parent, status="RUNNING")
        run_id, attempt = self._begin_or_resume(stage, fingerprint, parent, work)
        run = StageRun(self.client, run_id, self.experiment_id)
        if attempt == 1:
            self._log_params(run_id, {"stage": stage.key, **_flat(stage_slice(self.profile, stage))})
            self.client.log_text(run_id, profile_yaml(self.profile), "profile.yaml")
            self._log_inputs(run_id, inputs)
        try:
            yield run
        except BaseException:
            self._end(run_id, parent, "FAILED")
            raise
        self._end(run_id, parent, "FINISHED")

    def _end(self, run_id: str, parent: str, status: str) -> None:
        """The parent ends with each stage and is opened again by the next: it never hangs when a later one is not run."""
        self.client.set_terminated(run_id, status)
        self.client.set_terminated(parent, status)

    def _begin_or_resume(self, stage: Stage, fingerprint: str, parent: str, work: Path) -> tuple[str, int]:
        from mlflow.exceptions import MlflowException

        record = work / _RECORD
        lost = None
        if record.is_file():
            earlier = json.loads(record.read_text(encoding="utf-8"))
            try:
                run = self.client.get_run(earlier["run_id"])
                if run.info.lifecycle_stage == "active":
                    attempt = earlier["attempt"] + 1
                    self.client.update_run(earlier["run_id"], status="RUNNING")
                    self.client.set_tag(earlier["run_id"], "attempt", str(attempt))
                    record.write_text(json.dumps({**earlier, "attempt": attempt}), encoding="utf-8")
                    return earlier["run_id"], attempt
            except MlflowException:
                pass
            lost = earlier["run_id"]
        tags = {
            "kind": "stage",
            "stage": stage.key,
            "fingerprint": fingerprint,
            "artifact": str(ArtifactStore(self.settings.artifacts).folder(stage.key, fingerprint)),
            "experiment": self.profile.name,
            "attempt": "1",
            "mlflow.parentRunId": parent,
            **self._links(),
        }
        if lost:
            tags["continues_deleted_run"] = lost
        created = self.client.create_run(self.experiment_id, run_name=stage.key, tags=tags)
        run_id = str(created.info.run_id)
        record.write_text(json.dumps({"run_id": run_id, "attempt": 1}), encoding="utf-8")
        return run_id, 1

    def _log_inputs(self, run_id: str, inputs: Mapping[str, Artifact]) -> None:
        """Input artifacts as MLflow datasets: the fingerprint is the digest, the folder the source."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        datasets = [
            DatasetInput(
                Dataset(artifact.stage, artifact.fingerprint, "local", json.dumps({"uri": artifact.path.as_uri()})),
                [InputTag("mlflow.data.context", role)],
            )
            for role, artifact in inputs.items()
        ]
        if datasets:
            self.client.log_inputs(run_id, datasets)

    def log_policy(self, run_id: str, stage: Stage, fingerprint: str, policy: str, metrics: Mapping[str, Any]) -> str:
        """The policy of a stage as a logged model that points to its folder or hub name; returns the model's id."""
        import mlflow

        model = mlflow.create_external_model(
            name=stage.key.replace("/", "_"),
            source_run_id=run_id,
            experiment_id=self.experiment_id,
            model_type="policy",
            tags={"fingerprint": fingerprint, "policy": policy, "stage": stage.key, "experiment": self.profile.name},
            params={key: str(value) for key, value in metrics.items() if not isinstance(value, dict | list)},
        )
        return str(model.model_id)

    def log_results(self, run_id: str, metrics: Mapping[str, Any], files: Mapping[str, Path]) -> None:
        """Final figures of a stage on its run, and small files as MLflow artifacts."""
        StageRun(self.client, run_id, self.experiment_id).log(_flat_numbers(metrics), 0)
        for path in files.values():
            self.client.log_artifact(run_id, str(path))

    def summarize(self, metrics: Mapping[str, Any]) -> None:
        """The report's figures on the parent run, so that lineage runs can be compared side by side."""
        StageRun(self.client, self.parent(), self.experiment_id).log(_flat_numbers(metrics), 0)


def _flat_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Numbers of a nested mapping under dotted names; MLflow's names allow no `>` and no brackets."""
    return {
        re.sub(r"[^\w./-]", "_", key.replace(">", "over_")): float(value)
        for key, value in _flat(values).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def profile_yaml(profile: Profile) -> str:
    return yaml.safe_dump(profile.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
