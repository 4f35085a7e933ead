"""On what kind of filesystem a path is."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.store.mounts import filesystem_of, is_network, kind_of, parse_mounts

TABLE = r"""/dev/vda / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
server:/home /home nfs4 rw,vers=4.2 0 0
/dev/vdb /home/ada/fast ext4 rw 0 0
server:/wide /mnt/my\040data lustre rw 0 0
tmpfs /tmp tmpfs rw 0 0
host:/tmp /tmp fuse.sshfs rw 0 0
half a

"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/runs", "ext4"),
        ("/home", "nfs4"),
        ("/home/bob/runs", "nfs4"),
        ("/homes/bob", "ext4"),
        ("/home/ada/fast/runs", "ext4"),
        ("/home/ada/faster", "nfs4"),
        ("/mnt/my data/runs", "lustre"),
        ("/tmp/runs", "fuse.sshfs"),
        ("/", "ext4"),
    ],
)
def test_the_longest_mount_point_tells_and_the_last_of_two_at_one_place(path: str, kind: str) -> None:
    assert kind_of(path, parse_mounts(TABLE)) == kind


def test_without_mounts_nothing_is_known() -> None:
    assert kind_of("/runs", ()) == ""
    assert not is_network("")


def test_filesystems_that_other_machines_may_have_open_are_known() -> None:
    assert all(map(is_network, ["nfs", "nfs4", "cifs", "lustre", "ceph", "fuse.sshfs", "fuse.gcsfuse", "fuse"]))
    assert not any(
        map(is_network, ["ext4", "xfs", "tmpfs", "overlay", "btrfs", "zfs", "fuseblk", "fuse.fuse-overlayfs"])
    )


def test_a_link_is_followed_to_where_its_folder_really_is(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    table = tmp_path / "mounts"
    far = str(tmp_path / "far").replace(" ", "\\040")  # as the kernel writes it
    table.write_text(f"/dev/vda / ext4 rw 0 0\nserver:/x {far} nfs rw 0 0\n", encoding="utf-8")
    assert filesystem_of(tmp_path / "near", table) == "nfs"
    assert filesystem_of(tmp_path, tmp_path / "no table") == ""
