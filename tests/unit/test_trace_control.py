"""The language of the control file about traces, without a mount."""

import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_rules import with_rules

from relayfs_fuse.errors import CommandError
from relayfs_fuse.fs.commands import trace_control
from relayfs_fuse.native.tables import CLOCKS
from relayfs_fuse.native.trace import Trace

CREATE = "trace create t "


@pytest.mark.parametrize("line", ["", "# trace", "create trace", "traces create t", "  "])
def test_other_lines_are_not_about_traces(line: str) -> None:
    assert trace_control.parse(line) is None


@settings(deadline=None)
@given(st.text())
def test_any_line_is_understood_or_refused_within_it(text: str) -> None:
    line = f"trace {text}"
    try:
        trace_control.parse(line)
    except CommandError as error:
        assert 0 <= error.column <= len(line)


def test_all_keys_are_understood() -> None:
    line = f"{CREATE}subbuf_size=8K n_subbufs=3 mode=overwrite buffers=shared clock=tsc filter=pid:1,uid:0,ls*"
    command = trace_control.parse(line)
    assert command is not None
    assert (command.action, command.name, command.filter) == ("create", "t", "pid:1,uid:0,ls*")
    assert command.options == {"subbuf_size": 8192, "n_subbufs": 3, "mode": 1, "buffers": 2, "clock": 1}
    assert all(line[column:].startswith(f"{key}=") for key, column in command.columns.items())


@pytest.mark.parametrize(
    ("line", "at", "said"),
    [
        ("trace", "", "one of create, remove"),
        ("trace make t", "make t", "unknown command"),
        ("trace start", "", "the NAME of a trace must follow"),
        ("trace start t now", "now", "takes a NAME and nothing else"),
        ("trace start a/b", "a/b", "the name of a trace is made of"),
        ("trace start .t", ".t", "does not begin with a dot"),
        ('trace start a"b', 'a"b', "the name of a trace is made of"),
        ("trace start " + "x" * 128, "x" * 128, "longer than 127 bytes"),
        ("trace enable t", "", "the pattern of events is missing"),
        ("trace enable t a:b c", "c", "takes NAME and GLOB"),
        ("trace disable t name", "name", "events are called PROVIDER:NAME"),
        ("trace disable t p:ä", "p:ä", "printable ASCII"),
        (f"{CREATE}size=1", "size=1", "unknown key 'size'"),
        (f"{CREATE}mode", "mode", "mode: mode=VALUE is needed; allowed: no-overwrite or overwrite"),
        (f"{CREATE}modus=overwrite", "modus=overwrite", "did you mean mode?"),
        ("trace delete t", "delete t", "did you mean remove?"),
        (f"{CREATE}mode=callback", "mode=callback", "no-overwrite or overwrite"),
        (f"{CREATE}buffers=percpu", "buffers=percpu", "perprocess or peruser or shared"),
        (f"{CREATE}clock=none", "clock=none", "mono or tsc"),
        (f"{CREATE}subbuf_size=4095", "subbuf_size=4095", "4096 to"),
        (f"{CREATE}n_subbufs=0", "n_subbufs=0", "1 to"),
        (f"{CREATE}mode=overwrite mode=overwrite", "mode=overwrite", "given twice"),
        (f"{CREATE}subbuf_size=2G n_subbufs=1024", "n_subbufs=1024", "at most 1099511627776 bytes"),
        (f"{CREATE}filter=a,pid:x", "pid:x", "a number must follow pid:"),
        (f"{CREATE}filter=a,,b", ",b", "pid:NUMBER, uid:NUMBER or a pattern"),
        (f"{CREATE}filter=[", "[", "in which each [ is closed by ]"),
        (f"{CREATE}filter=a,b[!]", "b[!]", "in which each [ is closed by ]"),
        ("trace enable t a:[b", "a:[b", "each [ is closed by ]"),
        (f"{CREATE}filter=" + "x" * 512, "x" * 512, "longer than 511 bytes"),
    ],
)
def test_what_is_not_allowed_is_refused_where_it_stands(line: str, at: str, said: str) -> None:
    with pytest.raises(CommandError) as caught:
        trace_control.parse(line)
    assert said in caught.value.message
    assert caught.value.column == (line.rindex(at) if at else len(line))


def test_rules_are_kept_in_order_and_the_first_for_ever() -> None:
    assert with_rules("enable t a:*", "disable t a:b").rules == "+a:*\n-a:b\n"
    assert with_rules("enable t a:*", "enable t a:*").rules == "+a:*\n"
    assert with_rules("enable t a:*", "disable t a:*").rules == "+a:*\n-a:*\n"
    assert with_rules("enable t a:*", "disable t a:*", "enable t a:*").rules == "+a:*\n"
    assert with_rules("disable t a:*", "enable t b:*", "disable t b:*").rules == "-a:*\n-b:*\n"
    assert with_rules("enable t a:*", "disable t a:b", "enable t a:*").rules == "+a:*\n-a:b\n+a:*\n"


def test_rules_that_are_too_long_are_refused() -> None:
    with pytest.raises(CommandError) as caught:
        with_rules(*(f"enable t provider{number}:*" for number in range(200)))
    assert caught.value.errno == errno.ENOSPC


def test_a_trace_is_said_in_commands_that_are_understood() -> None:
    trace = Trace(
        1, "t", True, CLOCKS["tsc"].number, 1, 1, 4096, 5, "boot", filter="a,pid:1", rules="+a:*\n-a:b\n",
        flush_interval_ms=250,
    )  # fmt: skip
    lines = trace_control.format_trace(trace)
    commands = [trace_control.parse(line) for line in lines]
    assert [command.action for command in commands if command] == ["create", "enable", "disable", "start"]
    assert lines[0] == (
        "trace create t subbuf_size=4K n_subbufs=5 flush_interval=250 mode=overwrite buffers=peruser clock=tsc "
        "filter=a,pid:1"
    )
