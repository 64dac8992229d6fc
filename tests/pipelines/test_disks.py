"""Network disks: told before a run, since SQLite does not bear them."""

from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from pipelines.disks import network_disk

Mount = namedtuple("Mount", "mountpoint fstype")
MOUNTS = [
    Mount("/", "ext4"),
    Mount("/home", "nfs4"),
    Mount("/home/me/local", "xfs"),
    Mount("/mnt/office", "cifs"),
    Mount("/mnt/far", "fuse.sshfs"),
    Mount("/scratch", "nfs"),
    Mount("/scratch", "tmpfs"),
]


@pytest.mark.parametrize(
    ("path", "disk"),
    [
        ("/srv/dagster_home", None),
        ("/home/me/dagster_home", "nfs4 at /home"),
        ("/home/me/local/dagster_home", None),  # a disk of this machine, mounted below
        ("/homework/dagster_home", None),  # the same letters, another folder
        ("/mnt/office", "cifs at /mnt/office"),
        ("/mnt/far/artifacts", "fuse.sshfs at /mnt/far"),
        ("/scratch/artifacts", None),  # mounted over by a later one
    ],
)
def test_a_place_on_a_network_disk_is_found(path: str, disk: str | None):
    """Case da-event-log-locked: the deepest mount above the place counts, and of two at one place the later."""
    assert disk == network_disk(Path(path), MOUNTS)


def test_the_mounts_of_this_machine_can_be_asked(tmp_path: Path):
    """A place without a mount above it does not exist; nothing is assumed of where this test runs."""
    partitions = psutil.disk_partitions(all=True)

    assert network_disk(tmp_path, [*partitions, Mount(str(tmp_path), "nfs")]) == f"nfs at {tmp_path}"
