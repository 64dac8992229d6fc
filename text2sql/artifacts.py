"""
Artifacts: what stages leave on disk, addressed by fingerprint.

    artifacts/<stage>/<fingerprint>/            complete: data and manifest.json
    artifacts/<stage>/<fingerprint>.partial/    being made, or left by a run that died: finished shards are kept

The fingerprint is a hash of the slice of the profile that the stage reads, of the fingerprints of its inputs and of the
stage's code version. A folder gets its final name only when it is complete, so a half-written artifact is never read.
Each completion also draws a new `build` id; a stage records the builds of its inputs, so that an artifact made from an
earlier build of its input (deleted, changed by hand, made again) is known to be stale although no setting changed.
"""

import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from text2sql.errors import ArtifactError
from text2sql.textfiles import write_whole

State = Literal["complete", "stale", "partial", "missing"]
MANIFEST = "manifest.json"
INPUTS = "inputs.json"
"""The builds that a partial folder's work is made from."""
WORK = "work"
"""A folder for what an interrupted attempt goes on from; no part of the artifact."""


def fingerprint(value: Any) -> str:
    """16 hex digits of the SHA-256 of `value` as canonical JSON."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextmanager
def _locked(path: Path, what: str) -> Iterator[None]:
    """
    Holds the lock file `path`, or raises ArtifactError. Whoever is done removes the file before the lock is free, so a
    lock on a file that no longer has its name is worth nothing and is taken anew.
    """
    while True:
        with path.open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ArtifactError(
                    f"{what} is being made by another process. Wait for it, or stop it, then run again."
                ) from None
            if _is_at(path, lock.fileno()):
                yield
                return


def _read_inputs(folder: Path) -> Any:
    """What the folder's record of its inputs holds, None where there is none. Raises ArtifactError."""
    path = folder / INPUTS
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ArtifactError(f"{path} is damaged ({error}); delete its folder to begin the artifact again.") from None


def _write_inputs(folder: Path, inputs: Mapping[str, str]) -> None:
    """The record appears whole or not at all: work without it is thrown away."""
    write_whole(folder / INPUTS, json.dumps(dict(inputs)))


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Artifact:
    """A complete artifact: where it lies and what its manifest says."""

    stage: str
    fingerprint: str
    path: Path
    manifest: Mapping[str, Any]

    @property
    def build(self) -> str:
        return str(self.manifest["build"])

    @property
    def metrics(self) -> Mapping[str, Any]:
        return dict(self.manifest.get("metrics", {}))


class ArtifactStore:
    """All artifacts below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, stage: str, fingerprint: str) -> Path:
        return self.root / stage / fingerprint

    def partial_folder(self, stage: str, fingerprint: str) -> Path:
        return self.root / stage / f"{fingerprint}.partial"

    def find(self, stage: str, fingerprint: str) -> Artifact | None:
        """The complete artifact, or None. Raises ArtifactError when its manifest cannot be read."""
        folder = self.folder(stage, fingerprint)
        path = folder / MANIFEST
        if not path.is_file():
            return None
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ArtifactError(f"{path} is damaged ({error}); delete its folder to make the artifact again.") from None
        return Artifact(stage, fingerprint, folder, manifest)

    def state(self, stage: str, fingerprint: str, inputs: Mapping[str, str | None]) -> State:
        """
        `inputs` maps each input to its current build (None: not there). `complete`: intact and made from those builds;
        `stale`: made from others, or a file was changed since; `partial`: begun; `missing`: nothing there.
        """
        artifact = self.find(stage, fingerprint)
        if artifact is not None:
            current = dict(inputs) == artifact.manifest["inputs"] and self._intact(artifact)
            return "complete" if current else "stale"
        return "partial" if self.partial_folder(stage, fingerprint).is_dir() else "missing"

    def _intact(self, artifact: Artifact) -> bool:
        """Sizes and times as recorded; a file whose time differs is hashed before it is called changed."""
        for name, record in artifact.manifest["files"].items():
            path = artifact.path / name
            if not path.is_file() or path.stat().st_size != record["bytes"]:
                return False
            if path.stat().st_mtime_ns != record["mtime_ns"] and file_digest(path) != record["sha256"]:
                return False
        return True

    @contextmanager
    def building(
        self, stage: str, fingerprint: str, inputs: Mapping[str, str], *, reopen: bool = False
    ) -> Iterator[Path]:
        """
        The folder to work in, locked against other processes; the lock ends with the process that holds it. Work that
        an earlier attempt left is kept if it was made from the same builds of the same inputs, else it is thrown away.
        `reopen`: a complete artifact becomes such work, to be completed anew. Raises ArtifactError when another process
        holds the folder, or the record of its inputs cannot be read.
        """
        folder = self.partial_folder(stage, fingerprint)
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock_path = folder.with_name(folder.name + ".lock")
        with _locked(lock_path, f"{stage} ({fingerprint})"):
            complete = self.find(stage, fingerprint) if reopen else None
            if complete:
                shutil.rmtree(folder, ignore_errors=True)
                _write_inputs(complete.path, complete.manifest["inputs"])  # whenever this ends, no work is without it
                complete.path.rename(folder)
                (folder / MANIFEST).unlink()
            if folder.is_dir() and _read_inputs(folder) != dict(inputs):
                shutil.rmtree(folder)
            if not folder.is_dir():
                folder.mkdir()
                _write_inputs(folder, inputs)
            yield folder
            lock_path.unlink(missing_ok=True)  # while it is held: see _locked

    def complete(
        self, stage: str, fingerprint: str, manifest: Mapping[str, Any], inputs: Mapping[str, str]
    ) -> Artifact:
        """
        Write the manifest, then give the folder its final name (replacing a stale artifact of the same name). Until then
        it is work that the next attempt goes on with, whatever ends this one.
        """
        partial = self.partial_folder(stage, fingerprint)
        own = (partial / INPUTS, partial / MANIFEST)  # the latter of an attempt that ended just before its last step
        files = {}
        for path in sorted(partial.rglob("*")):
            if path.is_file() and path not in own and not path.is_relative_to(partial / WORK):
                stat = path.stat()
                files[path.relative_to(partial).as_posix()] = {
                    "bytes": stat.st_size,
                    "mtime_ns": stat.st_mtime_ns,
                    "sha256": file_digest(path),
                }
        full = {
            **manifest,
            "stage": stage,
            "fingerprint": fingerprint,
            "build": uuid.uuid4().hex[:12],
            "inputs": dict(inputs),
            "files": files,
        }
        text = json.dumps(full, indent=1, ensure_ascii=False, allow_nan=False, default=str)
        (partial / MANIFEST).write_text(text + "\n", encoding="utf-8")
        final = self.folder(stage, fingerprint)
        if final.exists():
            old = final.with_name(f"{final.name}.old-{os.getpid()}")
            final.rename(old)
            partial.rename(final)
            shutil.rmtree(old)
        else:
            partial.rename(final)
        (final / INPUTS).unlink(missing_ok=True)  # left behind, it would do no harm, nor would this:
        shutil.rmtree(final / WORK, ignore_errors=True)
        return Artifact(stage, fingerprint, final, full)
