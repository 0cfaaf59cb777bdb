"""The language of the control file, without a mount."""

import errno
from types import SimpleNamespace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from relayfs_fuse import native
from relayfs_fuse.errors import CommandError
from relayfs_fuse.fs.commands import control
from relayfs_fuse.fs.errorlog import ErrorLog
from relayfs_fuse.fs.kinds import ring
from relayfs_fuse.native import ring as native_ring
from relayfs_fuse.native import tables as native_tables
from relayfs_fuse.native.tables import RELAY_OPTIONS, RING_OPTIONS, Option

# How long something takes says nothing on a noisy machine.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def fitting(options: dict[str, str]) -> dict[str, str]:
    """Leave out reserves that leave no room for records."""
    reserved = sum(control.parse_size(options.get(key, "0")) for key in control.RESERVED)
    fits = reserved < control.parse_size(options.get("subbuf_size", "256K"))
    return {key: value for key, value in options.items() if fits or key not in control.RESERVED}


def words(options: dict[str, Option], key: str) -> st.SearchStrategy[str]:
    return st.sampled_from(options[key].words)


NAMES = st.text(st.characters(exclude_categories=("C", "Z"), exclude_characters="/."), min_size=1, max_size=20)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "subbuf_size": st.integers(1, 1 << 20).map(str) | st.integers(1, 1 << 10).map("{}K".format),
        "n_subbufs": st.integers(1, 1 << 10).map(str),
        "mode": words(RELAY_OPTIONS, "mode"),
        "buffers": words(RELAY_OPTIONS, "buffers"),
        "scheme": words(RELAY_OPTIONS, "scheme"),
        "delivery": words(RELAY_OPTIONS, "delivery"),
        "read": words(RELAY_OPTIONS, "read"),
        "start_reserve": st.integers(0, 200).map(str),
        "end_reserve": st.integers(0, 200).map(str),
        "channel_start_reserve": st.integers(0, 200).map(str) | st.integers(1, 100).map("{}K".format),
        "timestamp": words(RELAY_OPTIONS, "timestamp"),
        "flush_interval": st.integers(0, 1 << 20).map(str),
        "perm": st.integers(0, 0o777).map(lambda perm: f"{perm & 0o666:04o}"),
        "uid": st.integers(0, 1 << 31).map(str),
        "gid": st.integers(0, 1 << 31).map(str),
    },
).map(fitting)


@given(PATHS, OPTIONS, st.text(" \t", min_size=1, max_size=3))
def test_well_formed_creates_are_understood(path, options, space):
    line = space.join(["create", path, *(f"{key}={value}" for key, value in options.items())])
    command = control.parse(line)
    assert (command.verb, command.path) == ("create", path)
    assert command.options.keys() == options.keys()
    for key in options:
        assert line[command.columns[key] :].startswith(f"{key}=")


@given(st.text())
def test_any_line_is_understood_or_refused_with_a_place_in_it(line):
    assume("\n" not in line)
    try:
        control.parse(line)
    except CommandError as error:
        assert error.errno in (errno.EINVAL, errno.ENAMETOOLONG)
        assert 0 <= error.column <= len(line)
        assert error.message
        shown = ErrorLog()
        shown.error(line, error)
        assert shown.text().count(b"\n") == 3


def test_what_is_logged_of_a_refused_command_is_one_short_line() -> None:
    word = "x\x0b\r\x1c\x85\x1b[2J\udcff" + "y" * 100_000
    said = ErrorLog().error(f"add {word}", CommandError(errno.EINVAL, f"{word}: unknown", 4))
    assert said.isprintable()
    assert len(said) < 3000


MALFORMED = st.one_of(
    st.tuples(st.just("n_subbufs"), st.sampled_from(["0", "-1", "1K", "x", "", "4294967296", "1.5"])),
    st.tuples(st.just("subbuf_size"), st.sampled_from(["0", "-1", "4G", "x", "", "1KK", "0x10", "1e3"])),
    st.tuples(st.sampled_from(["mode", "buffers", "scheme", "delivery", "read", "timestamp"]), NAMES),
    st.tuples(st.sampled_from(control.RESERVED), st.sampled_from(["-1", "4G", "x", "", "1KK", "1e3"])),
    st.tuples(st.just("perm"), st.sampled_from(["8", "1777", "0111", "rw", ""])),
    st.tuples(st.sampled_from(["uid", "gid"]), st.sampled_from(["-1", "4294967295", "root", ""])),
    st.tuples(st.just("flush_interval"), st.sampled_from(["-1", "1s", "2147483648", ""])),
    st.tuples(
        NAMES.filter(lambda name: name not in RELAY_OPTIONS and name not in RING_OPTIONS and "=" not in name), NAMES
    ),
)


@given(PATHS, OPTIONS, MALFORMED, st.randoms())
def test_the_offending_word_is_named(path, options, bad, rng):
    key, value = bad
    assume(key not in RELAY_OPTIONS or value not in RELAY_OPTIONS[key].words)
    words = [f"{name}={text}" for name, text in options.items() if name != key]
    words.insert(rng.randint(0, len(words)), f"{key}={value}")
    line = " ".join(["create", path, *words])
    with pytest.raises(CommandError) as refusal:
        control.parse(line)
    assert refusal.value.errno == errno.EINVAL
    assert line[refusal.value.column :].startswith(f"{key}={value}")


@given(st.integers(1, 1 << 45))
def test_sizes_are_written_as_they_are_read(size):
    assert control.parse_size(control.format_size(size)) == size


@given(st.integers(0, 1 << 40), st.integers(1, 64), OPTIONS)
def test_chosen_geometry_is_what_was_asked_for_or_fits(free_bytes, n_buffers, options):
    words = " ".join(f"{key}={value}" for key, value in options.items())
    command = control.parse(f"create x {words}")
    subbuf_size, n_subbufs, notice = control.choose_geometry(command, n_buffers, free_bytes)
    assert native.buf_file_bytes(subbuf_size, n_subbufs) > 0
    assert subbuf_size == command.options.get("subbuf_size", subbuf_size)
    assert n_subbufs == command.options.get("n_subbufs", n_subbufs)
    unreduced = (
        command.options.get("subbuf_size", control.DEFAULT_SIZES[0]),
        command.options.get("n_subbufs", control.DEFAULT_SIZES[1]),
    )
    assert (notice is None) == ((subbuf_size, n_subbufs) == unreduced)
    assert command.reserved < subbuf_size


@pytest.mark.parametrize("line", ["", "   ", "\t", "# create x", "  # x"])
def test_empty_lines_and_comments_mean_nothing(line):
    assert control.parse(line) is None


def described(path: str, type_of: str, asked: dict[str, int]) -> str:
    """Say what would make a channel again for which these options were given."""
    values = {key: asked.get(key, option.initial) for key, option in native_tables.OPTIONS[type_of].items()}
    fields = {native_tables.OPTIONS[type_of][key].field: value for key, value in values.items()}
    return f"create {path} {control.format_options(type_of, SimpleNamespace(**fields), values)}"


@given(PATHS, OPTIONS)
def test_a_channel_is_described_by_the_command_that_makes_it(path, options):
    words = " ".join(f"{key}={value}" for key, value in options.items())
    asked = control.parse(f"create {path} {words}").options
    again = control.parse(described(path, "relay", asked))
    assert again.path == path
    assert again.options.items() >= asked.items()
    assert again.options.keys() | {"type"} == RELAY_OPTIONS.keys()


OF_RINGS = st.fixed_dictionaries(
    {},
    optional={
        "size": st.integers(12, 40).map(lambda bits: str(1 << bits)) | st.integers(2, 20).map(lambda n: f"{1 << n}K"),
        "mode": words(RING_OPTIONS, "mode"),
        "buffers": words(RELAY_OPTIONS, "buffers"),
        "scheme": words(RING_OPTIONS, "scheme"),
        "read": words(RELAY_OPTIONS, "read"),
        "framing": words(RING_OPTIONS, "framing"),
        "perm": st.integers(0, 0o777).map(lambda perm: f"{perm & 0o666:04o}"),
        "uid": st.integers(0, 1 << 31).map(str),
        "gid": st.integers(0, 1 << 31).map(str),
    },
)


@given(PATHS, OF_RINGS, st.randoms())
def test_rings_are_described_by_the_command_that_makes_them(path, options, rng):
    words = ["type=ring", *(f"{key}={value}" for key, value in options.items())]
    rng.shuffle(words)
    asked = control.parse(f"create {path} {' '.join(words)}")
    assert asked.type == "ring"
    again = control.parse(described(path, "ring", asked.options))
    assert again.path == path
    assert again.options.items() >= asked.options.items()
    assert again.options.keys() == RING_OPTIONS.keys()


@given(st.integers(0, 1 << 45), st.integers(1, 512))
def test_the_default_size_of_rings_fits_or_is_the_least(free_bytes, n_rings):
    size, notice = ring.choose_ring_size(control.parse("create x type=ring"), n_rings, free_bytes)
    assert size == ring.LEAST_RING_SIZE or native_ring.ring_file_bytes(size) * n_rings <= free_bytes // 16
    assert (notice is None) == (size == ring.DEFAULT_RING_SIZE)
    given = control.parse("create x type=ring size=4K")
    assert ring.choose_ring_size(given, n_rings, free_bytes) == (4096, None)
