"""Conditions of `trace enable`: what is understood, what is refused and where, and what they are compiled to."""

import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_rules import with_rules

from relayfs_fuse.errors import CommandError
from relayfs_fuse.fs.commands import trace_control
from relayfs_fuse.fs.commands.condition import check, compile_conditions, unmet_by_all
from relayfs_fuse.native.trace import CONDITION_STEPS
from relayfs_fuse.tracefiles.ctf import Declaration

ENABLE = "trace enable t a:b "


@pytest.mark.parametrize(
    ("condition", "at", "said"),
    [
        ("", None, "a comparison such as FIELD > 5"),
        ("ms", None, "one of == != < <= > >= ~ must follow ms"),
        ("ms >", None, 'a number, or a text in "", must follow >'),
        ("ms = 5", "= 5", "'=': == compares"),
        ("ms == five", "five", 'a number, or a text in "", must follow =='),
        ("ms == 'x'", "'x'", 'texts stand in ""'),
        ("ms > 5 & x > 1", "& x", "&& means and"),
        ("ms > 5 x > 1", "x >", "'x': && or || is needed before another comparison"),
        ("5 < ms", "5 <", "a comparison such as FIELD > 5"),
        ("ms > 5ms", "5ms", "this means nothing"),
        ("ms > 5 &&", None, "a comparison such as FIELD > 5"),
        ("at. > 5", ". >", "'.': this means nothing"),
        ("at..x > 5", "..x", "'.': this means nothing"),
        ("(ms > 5", None, "the ) is missing for the ( of column 23"),
        ("ms > 5)", ")", "&& or ||"),
        ('path ~ "x', '"x', 'the " that ends the text is missing'),
        ("path ~ 5", "5", 'a pattern in "" must follow ~'),
        (r'path ~ "x\n"', r'\n"', r"\n: there are \" \\ \* and \?"),
        (r'path == "x\*"', r'\*"', r"\*: there are \" and \\"),
        ('path == "a\tb"', '\tb"', "is not printable"),
        ("level <= loud", "loud", "loud: the levels are emerg, alert"),
        ("level ~ warning", "warning", 'a pattern in "" must follow ~'),
        ("ms > 18446744073709551616", "18446744073709551616", "is not from -2^63 to 2^64 - 1"),
        ("ms > -9223372036854775809", "-9223372036854775809", "is not from -2^63 to 2^64 - 1"),
        ("x" * 128 + " > 5", "x" * 128, "no field has a name of more than 127 bytes"),
        ("!" * 40 + "x > 5", "!" * 7 + "x", "nested deeper than 32"),
        (" && ".join(["x > 5"] * 65), "x > 5", "64 comparisons in all"),
    ],
)
def test_what_is_not_allowed_is_refused_where_it_stands(condition: str, at: str | None, said: str) -> None:
    line = f"{ENABLE}if {condition}"
    with pytest.raises(CommandError) as caught:
        trace_control.parse(line)
    assert said in caught.value.message
    column = len(line) if at is None else line.rindex(at)
    assert caught.value.column == column


def test_a_disabled_pattern_has_no_condition() -> None:
    with pytest.raises(CommandError, match="trace disable takes NAME and GLOB and nothing else"):
        trace_control.parse("trace disable t a:b if x > 5")


@settings(deadline=None)
@given(st.text(alphabet='ab"\\~!()<>=&|0x.-e \t*?ä') | st.text())
def test_any_text_is_understood_or_refused_within_it(text: str) -> None:
    try:
        check(text, 7)
    except CommandError as error:
        assert 7 <= error.column <= 7 + len(text)
    else:
        assert compile_conditions([text])


def test_a_long_chain_is_refused_and_not_followed_into_depth() -> None:
    for text in ("(" * 30000, "!" * 30000, "&&".join(["x>1"] * 15000)):
        with pytest.raises(CommandError):
            check(text, 0)


def test_a_rule_is_said_as_it_was_given() -> None:
    lines = [
        "enable t a:*",
        'enable t a:b if ms > 500 && (path ~ "/api/*" || !(state == "IDLE"))',
        "disable t a:c",
        "enable t a:d if level <= warning",
    ]
    trace = with_rules(*lines)
    assert trace_control.format_trace(trace)[1:] == [f"trace {line}" for line in lines]
    again = with_rules(*(line.removeprefix("trace ") for line in trace_control.format_trace(trace)[1:]))
    assert (again.rules, again.conditions) == (trace.rules, trace.conditions)


def test_another_condition_takes_the_place_of_the_one_before() -> None:
    assert with_rules("enable t a:* if x > 1", "enable t a:* if x > 2").rules == "+a:* x > 2\n"
    assert with_rules("enable t a:* if x > 1", "enable t a:*").rules == "+a:*\n"
    assert with_rules("enable t a:*", "enable t a:* if  x > 1 ").rules == "+a:* x > 1\n"
    assert with_rules("enable t a:* if x > 1", "disable t a:*").rules == "+a:*\n-a:*\n"
    assert with_rules("disable t a:*", "enable t a:b if x > 1", "disable t a:b").rules == "-a:*\n-a:b\n"
    assert (
        with_rules("enable t a:* if x > 1", "disable t a:b", "enable t a:* if x > 2").rules
        == "+a:*\n-a:b\n+a:* x > 2\n"
    )
    assert with_rules("enable t a:* if x > 1", "enable t a:*").conditions == b""


def test_conditions_of_a_trace_that_are_too_many_or_too_long_are_refused() -> None:
    lines = [f"enable t a:x{number} if x > {number}" for number in range(CONDITION_STEPS + 1)]
    with pytest.raises(CommandError) as caught:
        with_rules(*lines)
    assert (caught.value.errno, caught.value.column) == (errno.ENOSPC, len("trace enable t a:x64 if "))
    assert len(with_rules(*lines[:-1]).conditions) == len(with_rules(lines[0]).conditions)
    # The same condition is kept once.
    with_rules(*(f"enable t a:x{number} if x > 5" for number in range(CONDITION_STEPS)))
    with pytest.raises(CommandError, match="at most 64 conditions"):
        with_rules(*(f"enable t a:x{number} if x > 5" for number in range(CONDITION_STEPS + 1)))
    with pytest.raises(CommandError, match="take 1023 bytes at most"):
        with_rules(f'enable t a:b if x == "{"x" * 1021}"')
    with_rules(f'enable t a:b if x == "{"x" * 1020}"')
    with pytest.raises(CommandError, match="longer than 2047 bytes"):
        with_rules(*(f'enable t a:x{number} if x == "{"ä" * 400}"' for number in range(3)))


def test_the_reason_why_no_event_meets_a_condition_is_the_one_that_helps() -> None:
    events = [Declaration(0, b"", f"a:{kind}", ((kind, kind),)) for kind in ("string", "u8")]
    # The first event has no such field; that of the second has another form.
    assert unmet_by_all('u8 == "x"', events) == "a:u8 has u8 as u8"
    assert unmet_by_all("none == 5", events) == "a:string has no field none"
    assert unmet_by_all("u8 == 5", events) is None
    assert unmet_by_all("u8 == 5", []) is None
