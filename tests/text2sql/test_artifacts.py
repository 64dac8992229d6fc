"""Artifacts: complete or not there, addressed by fingerprint, stale when an input was made again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from text2sql.artifacts import WORK, ArtifactStore, fingerprint
from text2sql.errors import ArtifactError

STAGE, PRINT = "round_1/policy", "00aa"


def make(store: ArtifactStore, inputs: dict[str, str] | None = None, text: str = "data") -> None:
    with store.building(STAGE, PRINT, inputs or {}) as out:
        (out / "data.txt").write_text(text, encoding="utf-8")
        store.complete(STAGE, PRINT, {"metrics": {}}, inputs or {})


def test_fingerprints_do_not_depend_on_the_order_of_keys():
    """The same settings give the same fingerprint, another value gives another."""
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


def test_work_in_progress_never_has_the_final_name(tmp_path: Path):
    """Case da-upstream-failed-old-file-used: an attempt that fails leaves a partial folder and no artifact."""
    store = ArtifactStore(tmp_path)

    with pytest.raises(RuntimeError), store.building(STAGE, PRINT, {}) as out:
        (out / "shard").write_text("1", encoding="utf-8")
        raise RuntimeError

    assert store.find(STAGE, PRINT) is None
    assert "partial" == store.state(STAGE, PRINT, {})


def test_the_next_attempt_finds_what_the_last_one_finished(tmp_path: Path):
    """Finished shards stay, as long as the inputs are the same builds."""
    store = ArtifactStore(tmp_path)
    with pytest.raises(RuntimeError), store.building(STAGE, PRINT, {"turns": "b1"}) as out:
        (out / "shard").write_text("1", encoding="utf-8")
        raise RuntimeError

    with store.building(STAGE, PRINT, {"turns": "b1"}) as out:
        same_inputs = (out / "shard").exists()
    with store.building(STAGE, PRINT, {"turns": "b2"}) as out:
        other_inputs = (out / "shard").exists()

    assert (True, False) == (same_inputs, other_inputs)


def test_an_artifact_made_from_an_earlier_build_of_its_input_is_stale(tmp_path: Path):
    """Case da-downstream-not-stale: an input that was made again is seen although no setting changed."""
    store = ArtifactStore(tmp_path)
    make(store, {"turns": "build1"})

    assert "complete" == store.state(STAGE, PRINT, {"turns": "build1"})
    assert "stale" == store.state(STAGE, PRINT, {"turns": "build2"})
    assert "stale" == store.state(STAGE, PRINT, {"turns": None})


def test_a_file_changed_by_hand_makes_the_artifact_stale(tmp_path: Path):
    """Same size or not: the content counts. A file that was only touched is still the same."""
    store = ArtifactStore(tmp_path)
    make(store)
    file = store.folder(STAGE, PRINT) / "data.txt"

    file.touch()
    touched = store.state(STAGE, PRINT, {})
    file.write_text("dato", encoding="utf-8")
    changed = store.state(STAGE, PRINT, {})

    assert ("complete", "stale") == (touched, changed)


def test_making_an_artifact_again_replaces_it_whole_under_a_new_build(tmp_path: Path):
    """The fingerprint stays, the build changes, nothing of the old one is left behind."""
    store = ArtifactStore(tmp_path)
    make(store, text="old")
    first = store.find(STAGE, PRINT)
    make(store, text="new")
    second = store.find(STAGE, PRINT)

    assert first is not None
    assert second is not None
    assert first.build != second.build
    assert "new" == (second.path / "data.txt").read_text(encoding="utf-8")
    assert [PRINT] == sorted(path.name for path in (tmp_path / STAGE).iterdir())


def test_two_processes_cannot_make_the_same_artifact(tmp_path: Path):
    """The second is told to wait; the lock ends with the process that held it."""
    store = ArtifactStore(tmp_path)
    program = (
        "import sys, pathlib; from text2sql.artifacts import ArtifactStore\n"
        f"with ArtifactStore(pathlib.Path(sys.argv[1])).building({STAGE!r}, {PRINT!r}, {{}}):\n"
        "    print('in', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    other.stdout.readline()

    with pytest.raises(ArtifactError, match="being made by another process"), store.building(STAGE, PRINT, {}):
        pass
    other.kill()
    other.wait()
    with store.building(STAGE, PRINT, {}) as out:
        entered = out.is_dir()

    assert entered


def test_a_complete_artifact_can_be_gone_on_with(tmp_path: Path):
    """Case cl-run-twice-into-one-folder: reopened, it is work in progress with all its files; made anew if inputs changed."""
    store = ArtifactStore(tmp_path)
    make(store, {"turns": "b1"})
    with store.building(STAGE, PRINT, {"turns": "b1"}, reopen=True) as out:
        same_inputs = sorted(path.name for path in out.iterdir()), store.state(STAGE, PRINT, {"turns": "b1"})
        store.complete(STAGE, PRINT, {}, {"turns": "b1"})
    with store.building(STAGE, PRINT, {"turns": "b2"}, reopen=True) as out:
        other_inputs = sorted(path.name for path in out.iterdir())

    assert (["data.txt", "inputs.json"], "partial") == same_inputs
    assert ["inputs.json"] == other_inputs


def full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("ending", ["a metric that is no number", "file_digest", "rename"])
def test_an_end_in_the_very_last_step_loses_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str):
    """
    Whatever stops the completion, the next attempt has all shards, and what lies in the folder for work, which is no part
    of the artifact.
    """
    store = ArtifactStore(tmp_path)
    with pytest.raises((OSError, ValueError)), monkeypatch.context() as broken, store.building(STAGE, PRINT, {}) as out:
        (out / "shard").write_text("1", encoding="utf-8")
        (out / WORK).mkdir()
        (out / WORK / "checkpoint").touch()
        if ending == "file_digest":
            broken.setattr("text2sql.artifacts.file_digest", full_disk)
        if ending == "rename":
            broken.setattr(Path, "rename", full_disk)
        metrics = {"loss": float("nan")} if ending.startswith("a metric") else {}
        store.complete(STAGE, PRINT, {"metrics": metrics}, {})
    with store.building(STAGE, PRINT, {}) as out:
        kept = [(out / "shard").is_file(), (out / WORK / "checkpoint").is_file()]
        artifact = store.complete(STAGE, PRINT, {}, {})

    assert [True, True] == kept
    assert ["shard"] == list(artifact.manifest["files"])
    assert ["manifest.json", "shard"] == sorted(path.name for path in artifact.path.iterdir())
    assert "complete" == store.state(STAGE, PRINT, {})


def test_reopening_that_ends_half_way_loses_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The artifact is work in progress by then, and the next attempt goes on with it."""
    store = ArtifactStore(tmp_path)
    make(store, {"turns": "b1"})
    with monkeypatch.context() as broken, pytest.raises(OSError, match="No space"):
        broken.setattr(Path, "unlink", full_disk)
        with store.building(STAGE, PRINT, {"turns": "b1"}, reopen=True):
            pass
    with store.building(STAGE, PRINT, {"turns": "b1"}, reopen=True) as out:
        kept = (out / "data.txt").is_file()
        store.complete(STAGE, PRINT, {}, {"turns": "b1"})

    assert kept
    assert "complete" == store.state(STAGE, PRINT, {"turns": "b1"})


def test_the_record_of_inputs_is_not_written_again_for_the_same_inputs(tmp_path: Path):
    """No attempt puts it at risk: work without it would be thrown away."""
    store = ArtifactStore(tmp_path)
    with store.building(STAGE, PRINT, {"turns": "b1"}) as out:
        os.utime(out / "inputs.json", ns=(1, 1))
    with store.building(STAGE, PRINT, {"turns": "b1"}) as out:
        written = (out / "inputs.json").stat().st_mtime_ns

    assert 1 == written
    assert ["inputs.json"] == [path.name for path in out.iterdir()]


def test_a_damaged_record_of_inputs_says_what_to_delete(tmp_path: Path):
    """The error names the file, and the work beside it stays."""
    store = ArtifactStore(tmp_path)
    with store.building(STAGE, PRINT, {}) as out:
        (out / "shard").write_text("1", encoding="utf-8")
        (out / "inputs.json").write_text("{", encoding="utf-8")

    with pytest.raises(ArtifactError, match=r"inputs\.json is damaged.*delete"), store.building(STAGE, PRINT, {}):
        pass
    assert (out / "shard").is_file()


def test_no_lock_file_is_left_and_none_is_removed_by_who_was_refused(tmp_path: Path):
    """The file goes while its lock is held, so that nobody can take the lock of a file that is gone for the lock."""
    store = ArtifactStore(tmp_path)
    lock_path = tmp_path / STAGE / f"{PRINT}.partial.lock"
    with store.building(STAGE, PRINT, {}):
        held = lock_path.is_file()
    with store.building(STAGE, PRINT, {}), pytest.raises(ArtifactError), store.building(STAGE, PRINT, {}):
        pass

    assert held
    assert not lock_path.exists()


def test_a_damaged_manifest_says_what_to_delete(tmp_path: Path):
    """The error names the file and the way out."""
    store = ArtifactStore(tmp_path)
    make(store)
    (store.folder(STAGE, PRINT) / "manifest.json").write_text("{", encoding="utf-8")

    with pytest.raises(ArtifactError, match="delete its folder"):
        store.find(STAGE, PRINT)
