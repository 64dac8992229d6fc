"""Find places that lie on a network disk, where SQLite and file locks cannot be relied on."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import psutil

from text2sql.config import Settings

_NETWORK = {
    *("9p", "afpfs", "afs", "beegfs", "ceph", "cifs", "davfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"),
    *("smb2", "smb3", "smbfs", "sshfs", "webdav"),
    *("fuse.ceph", "fuse.glusterfs", "fuse.juicefs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs"),
}


class Partition(Protocol):
    """What is read of psutil's partitions."""

    @property
    def mountpoint(self) -> str: ...
    @property
    def fstype(self) -> str: ...


def network_disk(path: Path, partitions: Iterable[Partition]) -> str | None:
    """`nfs4 at /home`, say, when that is the disk that the absolute `path` lies on; None on a disk of this machine."""
    found = None
    for partition in partitions:
        mount = Path(partition.mountpoint)
        if path.is_relative_to(mount) and (found is None or len(mount.parts) >= len(Path(found.mountpoint).parts)):
            found = partition  # the deepest, and of two at one place the later, which hides the other
    if found is None or found.fstype.lower() not in _NETWORK:
        return None
    return f"{found.fstype} at {found.mountpoint}"


def warn_of_network_disks(settings: Settings) -> None:
    """A line on standard error for each place of the settings that lies on a network disk."""
    places = {"DAGSTER_HOME": settings.dagster_home, "TEXT2SQL_ARTIFACTS": settings.artifacts}
    if settings.mlflow_uri.startswith("sqlite:///"):
        places["MLFLOW_TRACKING_URI"] = Path(settings.mlflow_uri.removeprefix("sqlite:///")).absolute()
    partitions = psutil.disk_partitions(all=True)
    for name, path in places.items():
        disk = network_disk(path.resolve(), partitions)
        if disk:
            print(
                f"Warning: {name} is {path}, on a network disk ({disk}). SQLite databases there can be locked or damaged, "
                "and locks may not hold between machines: set it to a folder on a disk of this machine "
                "(docs/operations.md).",
                file=sys.stderr,
                flush=True,
            )
