"""What a server remembers of declared events: it is shared, read in pieces, and limited for each user."""

import errno
import os
from pathlib import Path

import pytest

from relayfs_fuse.errors import CommandError
from relayfs_fuse.fs.traces import sessions
from relayfs_fuse.fs.traces.sessions import Declared, Image, Session, Totals
from relayfs_fuse.tracefiles import ctf

USER = 1000
LINE = b"/* relayfs buffers=perprocess clock=mono */\n"


def declaration(id_: int, n_fields: int = 1) -> bytes:
    fields = "".join(f"\t\tuint64_t _field{i};\n" for i in range(n_fields))
    return (
        f'event {{\n\tname = "a:e{id_}";\n\tid = {id_};\n\tstream_id = 0;\n\tfields := struct {{\n{fields}\t}};\n}};\n'
    ).encode()


def session(directory: Path, declared: Declared) -> Session:
    if not (directory / ".events").exists():
        (directory / ".events").write_bytes(LINE)
    return Session(str(directory), USER, Image(os.getpid(), 1, ""), declared)


def test_each_event_is_declared_once_by_all_sessions_of_a_directory(tmp_path: Path) -> None:
    declared = Declared(USER, Totals())
    one, other = session(tmp_path, declared), session(tmp_path, declared)
    ids = [5, 1 << 15, 3, 0, 700]
    for id_ in ids:
        one.declare(declaration(id_))
        other.declare(declaration(id_) + declaration(id_ + 1))
    one.declare(b"".join(declaration(id_) for id_ in sorted(ids)))
    found, _ = ctf.declarations_from((tmp_path / ".events").read_bytes(), 0)
    assert [one.id for one in found] == [each for id_ in ids for each in (id_, id_ + 1)]
    one.close()
    other.close()


def test_what_is_in_the_file_is_known_whatever_its_length(tmp_path: Path) -> None:
    # Longer than several pieces, with declarations across their ends, and nonsense longer than one.
    parts = [declaration(i, 1 + i % 60) for i in range(300)]
    text = (
        b"/* a line */\n"
        + b"".join(parts[:150])
        + b"event {\n"
        + b"x" * (3 * 65536)
        + b"\n};\n"
        + b"".join(parts[150:])
    )
    events = tmp_path / ".events"
    events.write_bytes(text + declaration(1000)[:-3])
    declared = Declared(USER, Totals())
    with events.open("rb") as file:
        declared.read_on(file.fileno(), events.stat().st_size)
        assert all(i in declared for i in range(300))
        assert 1000 not in declared
        events.write_bytes(text + declaration(1000))
        declared.read_on(file.fileno(), events.stat().st_size)
        assert 1000 in declared


def test_a_user_declares_so_much_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "USER_DECLARED", 10 * len(declaration(1)) + 2 * len(LINE))
    totals = Totals()
    directories = [tmp_path / name for name in ("one", "other")]
    for directory in directories:
        directory.mkdir()
    first = Declared(USER, totals)
    one, other = session(directories[0], first), session(directories[1], Declared(USER, totals))
    for id_ in range(8):
        one.declare(declaration(id_))
    for id_ in range(2):
        other.declare(declaration(id_))
    # What a session has written is read, and charged, when the next declaration comes.
    for id_ in range(2, 4):
        other.declare(declaration(id_))
    with pytest.raises(CommandError, match=f"user {USER} have declared") as refused:
        other.declare(declaration(4))
    assert refused.value.errno == errno.ENOSPC
    one.close()
    first.forget()
    other.declare(declaration(9))
    assert [each.id for each in ctf.declarations(b"\n" + (directories[1] / ".events").read_bytes())][-1] == 9
    other.close()
