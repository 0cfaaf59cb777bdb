"""What messages of relayctl add, so that who reads them knows what to do."""

from relayfs_fuse.reading import source


def test_other_mounts_are_named_unless_the_user_has_named_one(monkeypatch):
    monkeypatch.setattr(source.mounts, "places", lambda: ["/mnt/a", "/mnt/b"])
    monkeypatch.setattr(source, "find_mount", lambda: "/mnt/a")
    monkeypatch.delenv("RELAYFS", raising=False)
    assert source.other_mounts(None) == "; other mounts, for -m: /mnt/b"
    assert not source.other_mounts("/mnt/a")
    monkeypatch.setenv("RELAYFS", "/mnt/a")
    assert not source.other_mounts(None)
