"""What users are told is what the code does: README, docs, man pages."""

import re
import subprocess
from pathlib import Path

import click
import pytest
from build import HEADERS, ROOT
from c_declarations import declarations

from relayfs_fuse.cli import mount
from relayfs_fuse.cli.relayctl import relayctl
from relayfs_fuse.fs import errorlog
from relayfs_fuse.fs.commands import control, trace_control
from relayfs_fuse.fs.kinds import ring
from relayfs_fuse.native.tables import OPTIONS, RELAY_OPTIONS, RING_OPTIONS, STATISTICS, TRACE_OPTIONS

MAN = ROOT / "mount/man"
PAGES = sorted(MAN.iterdir())
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Headers that have a page of their own; librelayfs.3 is of all others.
OWN_PAGE = {
    HEADERS[0].with_name("klog.h"): "klog.3",
    HEADERS[0].with_name("relay_app.h"): "relay_app.3",
    HEADERS[0].with_name("classic.h"): "relayfs-classic.3",
    HEADERS[0].with_name("ring.h"): "relay_ring.3",
    HEADERS[0].with_name("ring_store.h"): "relay_ring.3",
    HEADERS[0].with_name("counters.h"): "relayfs-counters.3",
    HEADERS[0].with_name("counters_store.h"): "relayfs-counters.3",
    HEADERS[0].with_name("producer.h"): "relayfs-producer.3",
    HEADERS[0].with_name("trace_event.h"): "relayfs-trace.3",
    HEADERS[0].with_name("trace_store.h"): "relayfs-trace.3",
    HEADERS[0].with_name("merge.h"): "relayfs-trace.3",
}
SYNOPSES = [
    ("relay.h", "librelayfs.3"),
    ("reader.h", "librelayfs.3"),
    ("version.h.in", "librelayfs.3"),
    *((header.name, page) for header, page in OWN_PAGE.items()),
]
# A tag paragraph: .TP, then the line that names things.
TAG = re.compile(r"^\.TP\n(\.B[IR]? (?:.*\\\n)*.*)", re.MULTILINE)


def section(page: str, name: str) -> str:
    """The source of a section or subsection."""
    text = (MAN / page).read_text()
    found = re.search(rf"^\.S[HS] {re.escape(name)}$(.*?)(?=^\.S[HS] |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no section {name}"
    return found[1].replace("\\-", "-")


def tags(source: str) -> list[str]:
    return [tag.replace("\\\n", "").partition(" ")[2] for tag in TAG.findall(source)]


def words(tag: str) -> list[str]:
    """What a tag names: .BR a ", " b gives a and b."""
    return re.findall(r"[\w=*-]+", tag)


def synopsis_function_names(page: str) -> set[str]:
    source = (MAN / page).read_text()
    name = r"\b(_*(?:relay|rchan|klog|subbuf_start)_\w+|klog)"
    return set(re.findall(name + r"(?=\(const|\(struct|\(void|\(uint|\(\)|\s\(\))", source))


def documented(declaration: str) -> str:
    """As a program writes it: <relayfs/classic.h> has macros for its names."""
    return declaration.replace("relay_classic_callbacks", "rchan_callbacks").replace("relay_classic_", "relay_")


def function_names(header: Path) -> set[str]:
    found = (re.search(r"(\w+)\([^()]*(?:\(.*\))?[^()]*\)$", documented(text)) for text in declarations(header))
    # trace.h's parts, whose names end in _, are not for users.
    return {match[1] for match in found if match and not match[1].endswith("_")}


# --- the mount ---


def test_man_page_has_every_command():
    assert {words(tag)[0] for tag in tags(section("relayfs.5", "COMMANDS"))} == set(control.VERBS)


KEYS_OF_RELAY, KEYS_OF_RING = "Keys of create", "Keys of create for type=ring"
KEYS_OF_TRACE = "Keys of trace create"


def test_man_page_has_every_key():
    for name, expected in (
        (KEYS_OF_RELAY, RELAY_OPTIONS),
        (KEYS_OF_RING, [key for key in RING_OPTIONS if key not in RELAY_OPTIONS]),
        (KEYS_OF_TRACE, trace_control.ALLOWED),
    ):
        keys = [re.match(r"(\w+)=", tag) for tag in tags(section("relayfs.5", name))]
        assert all(keys)
        assert [key[1] for key in keys if key] == list(expected)


def test_man_page_has_every_value():
    for name, options in ((KEYS_OF_RELAY, RELAY_OPTIONS), (KEYS_OF_RING, RING_OPTIONS), (KEYS_OF_TRACE, TRACE_OPTIONS)):
        for tag in tags(section("relayfs.5", name)):
            key, _, values = tag.partition("=")
            if key in options and options[key].words:
                assert values.split(" | ") == list(options[key].words), tag


def test_man_page_has_every_command_about_traces():
    tags_of_traces = [tag for tag in tags(section("relayfs.5", "COMMANDS")) if words(tag)[0] == "trace"]
    assert {words(tag)[1] for tag in tags_of_traces} == set(trace_control.ACTIONS)


def test_man_page_tells_the_sizes_of_traces():
    source = section("relayfs.5", KEYS_OF_TRACE)
    assert f"Default: {control.format_size(trace_control.DEFAULT_SIZES[0])}." in source
    assert f"Default: {trace_control.DEFAULT_SIZES[1]}." in source
    assert "from 4096 to" in source


def test_man_page_tells_the_values_that_rings_have():
    source = section("relayfs.5", KEYS_OF_RING)
    for key in ("mode", "scheme"):
        assert f".BR {key}={' | '.join(RING_OPTIONS[key].words)} ,\n" in source
    size = control.format_size
    assert f"Default: {size(ring.DEFAULT_RING_SIZE)}, or less, down to {size(ring.LEAST_RING_SIZE)}," in (source)


def test_man_page_tells_the_defaults():
    source = section("relayfs.5", "Keys of create")
    for key in ("subbuf_size", "n_subbufs", "perm"):
        assert f"Default: {RELAY_OPTIONS[key].format(RELAY_OPTIONS[key].initial)}." in source


def test_man_page_tells_the_limits_of_names():
    source = section("relayfs.5", "COMMANDS")
    assert f"longer than {control.NAME_MAX}\nbytes" in source
    assert f"at most {control.PATH_MAX} bytes" in source


def test_man_page_tells_how_long_the_error_log_is():
    assert f"The last {errorlog.N_ENTRIES} commands" in section("relayfs.5", "DESCRIPTION")


@pytest.mark.parametrize(("name", "type_of"), [("STATISTICS", "relay"), ("Statistics of rings", "ring")])
def test_man_page_has_every_statistic(name, type_of):
    named = {word for tag in tags(section("relayfs.5", name)) for word in words(tag)} - {"mem0", "mem1"}
    shown = {option.file for option in OPTIONS[type_of].values()} | {one.name for one in STATISTICS[type_of]}
    assert named == (shown | {"state", "n_buffers"}) - {""}


def test_man_page_has_every_mount_option():
    own = [tag.replace(" ", "") for tag in tags(section("relayfs.8", "Mount options of relayfs"))]
    assert own == list(mount.OWN_OPTIONS)
    others = {word for tag in tags(section("relayfs.8", "Mount options for the kernel")) for word in words(tag)}
    assert others == {*mount.FUSE_OPTIONS, *mount.IGNORED_OPTIONS}


CONTEXT = click.Context(relayctl)
RELAYCTL = [(name, relayctl.get_command(CONTEXT, name)) for name in relayctl.list_commands(CONTEXT)]


def options_of(command: click.Command) -> set[str]:
    """Those of a group are those of its commands."""
    commands = command.commands.values() if isinstance(command, click.Group) else [command]
    options = [option for one in commands for option in one.params]
    names = (name for option in options for name in (*option.opts, *option.secondary_opts))
    return {name for name in names if name.startswith("-")}


def section_of(name: str) -> str:
    """The options of a command of relayctl; some commands share a section."""
    titles = re.findall(r"^\.SS (Options of .*)$", (MAN / "relayctl.1").read_text(), re.MULTILINE)
    (title,) = (title for title in titles if name in re.findall(r"\w+", title)[2:])
    return section("relayctl.1", title)


@pytest.mark.parametrize(("name", "command"), RELAYCTL)
def test_man_page_has_every_option_of_relayctl(name, command):
    source = section_of(name).replace(".TQ\n", ".TP\n")
    assert {word for tag in tags(source) for word in re.findall(r"(?<!\w)--?[a-z][a-z-]*", tag)} == options_of(command)
    assert f".B relayctl {name}\n" in section("relayctl.1", "SYNOPSIS")


def test_man_page_has_every_command_of_relayctl_trace():
    synopsis = section("relayctl.1", "SYNOPSIS").partition(".B relayctl trace\n.BR ")[2].partition("\n")[0]
    trace = dict(RELAYCTL)["trace"]
    assert isinstance(trace, click.Group)
    assert set(synopsis.split(" | ")) == set(trace.commands) == {*trace_control.ACTIONS, "list"}


def test_relayctl_has_the_commands_of_control_that_name_only_a_channel():
    """adopt and consumed are for programs: they need descriptors, and mapped memory."""
    others = {"trace", "adopt", "consumed"}
    assert set(control.VERBS) - others <= {name for name, _ in RELAYCTL}


def test_help_of_create_has_every_key_and_value():
    commands = dict(RELAYCTL)
    with click.Context(commands["create"], info_name="create", terminal_width=200) as context:
        shown = commands["create"].get_help(context)
    for options in OPTIONS.values():
        for key, option in options.items():
            assert key == "type" or re.search(rf"^ +{key}= +{re.escape(option.allowed)}$", shown, re.MULTILINE), key


# --- the library ---


def test_man_page_has_every_function():
    public = {name for header in HEADERS if header not in OWN_PAGE for name in function_names(header)}
    assert {"relay_write", "relay_reader_next", "relay_buf_stats"} <= public
    assert synopsis_function_names("librelayfs.3") == public


@pytest.mark.parametrize(("header", "page"), OWN_PAGE.items(), ids=list(OWN_PAGE.values()))
def test_man_page_of_a_header_has_its_functions(header, page):
    assert function_names(header) <= synopsis_function_names(page)


def test_a_synopsis_has_each_symbol_for_programs():
    node = re.search(r"^RELAYFS_0 \{$(.*?)^\};$", (ROOT / "native/relayfs.map").read_text(), re.MULTILINE | re.DOTALL)
    assert node
    synopses = "".join(section(page.name, "SYNOPSIS") for page in PAGES if page.suffix == ".3")
    shown = set(re.findall(r"\w+", synopses))
    assert [name for name in re.findall(r"^\t(\w+);", node[1], re.MULTILINE) if documented(name) not in shown] == []


@pytest.mark.parametrize(("name", "page"), SYNOPSES)
def test_man_page_declares_functions_as_the_headers_do(name, page):
    synopsis = section(page, "SYNOPSIS")
    joined = "".join(re.sub(r'"|^\.B[IR]? ', "", line) for line in synopsis.splitlines(keepends=True))
    compact = re.sub(r"\s+", "", joined)
    for text in declarations(ROOT / "native/include/relayfs" / name):
        if text.endswith(")"):
            assert re.sub(r"\s+|(K|RELAY_)LOG_CHECKED", "", documented(text)) in compact, text


def test_the_pictures_are_small():
    assert sum(path.stat().st_size for path in (ROOT / "docs/pictures").iterdir()) <= 250_000


def test_man_page_shows_the_example():
    example = section("librelayfs.3", "EXAMPLES").partition(".EX\n")[2].partition(".EE")[0]
    shown = example.replace("\\e", "\\").replace("\\&", "")
    assert shown == (ROOT / "examples/producer.c").read_text().expandtabs(4)


# --- form ---


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_groff_finds_no_fault(page):
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z", "-rLL=100n", page], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_has_the_sections_that_readers_expect(page):
    source = page.read_text()
    for name in ("NAME", "DESCRIPTION", "EXAMPLES", "SEE ALSO"):
        assert f"\n.SH {name}\n" in source
    title = re.search(r"^\.TH (\S+) (\d)", source, re.MULTILINE)
    assert title
    assert f"{title[1].lower()}.{title[2]}" == page.name


# --- the design ---


def test_files_that_the_design_names_exist():
    named = re.findall(r"`((?:native|relayfs_fuse|mount|tests|docs)/[\w/.]*)`", (ROOT / "docs/design.md").read_text())
    assert len(named) > 40
    assert [name for name in named if not (ROOT / name).exists()] == []


# --- README.md and docs/ ---


def blocks(path: str, *languages: str) -> list[str]:
    return [text for language, text in FENCE.findall((ROOT / path).read_text()) if language in languages]


def test_the_tutorial_shows_the_examples_as_they_are():
    files = {path.read_text(): path.name for path in (ROOT / "examples").iterdir() if path.is_file()}
    shown = [files.get(text) for text in blocks("docs/tutorials/2-producers.md", "c", "python")]
    assert shown == ["producer.c", "producer.py", "reader.py"]


@pytest.mark.parametrize("path", ["README.md", "CONTRIBUTING.md"])
def test_texts_name_only_commands_of_dev_that_there_are(path):
    usage = subprocess.run([ROOT / "dev", "help"], capture_output=True, text=True, check=True).stdout
    known = re.findall(r"^  (\w+)", usage, re.MULTILINE)
    named = set(re.findall(r"\./dev (\w+)", (ROOT / path).read_text()))
    assert {"demo", "test"} <= named <= set(known)


def test_texts_use_only_options_of_relayctl_that_there_are():
    """In tables and paragraphs, too, which no test runs."""
    commands = dict(RELAYCTL)
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for name, rest in re.findall(r"\brelayctl (\w+)([^|`\n;&]*)", page.read_text()):
            assert name in commands, (page.name, name)
            own = rest.partition(" -- ")[0]
            assert set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", own)) <= options_of(commands[name]), (
                page.name,
                name,
                rest,
            )


def test_texts_use_only_keys_that_there_are():
    """In tables and paragraphs, which no test runs."""
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for line in re.findall(r"`relayctl ((?:create|remove) [^>;`|&]*\w)", FENCE.sub("", page.read_text())):
            if re.fullmatch(r"[\w/ =.-]+", line) and "PATH" not in line:
                assert control.parse(line) is not None
