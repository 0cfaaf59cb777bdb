"""Each function and callback of the two documents has a test that fails when its body is emptied.

In a copy of the sources a function is made to do nothing, and return 0 where it returns anything: then the test that is
named for it must fail. ./dev stress does it with all of them; each other run with one of a file of the tests, for which
the library need not be compiled anew.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from build import ROOT

LONG = os.environ.get("RELAYFS_STRESS") == "long"
DEADLINE_S = 900
PRINTED = "tests/conformance/test_printed_examples.py"
WARNINGS = ("unused-function", "unused-parameter", "unused-variable", "unused-const-variable")
QUIET = "".join(f'#pragma GCC diagnostic ignored "-W{warning}"\n' for warning in WARNINGS)


@dataclass(frozen=True)
class Body:
    """A function whose body is emptied.

    test: that must fail
    file: where it is; by default, in the library
    """

    name: str
    test: str
    file: str = ""


LIBRARY = [
    Body("relay_flush", f"{PRINTED}::test_flush_finishes_the_last_sub_buffer_of_every_buffer"),
    Body("relay_open", f"{PRINTED}::test_the_handlers_make_and_remove_the_files"),
    Body("relay_close", f"{PRINTED}::test_the_handlers_make_and_remove_the_files"),
    Body("relay_reset", f"{PRINTED}::test_reset_is_the_initial_state_in_the_same_memory_and_mappings"),
    Body("relay_subbufs_consumed", f"{PRINTED}::test_the_no_overwrite_example_refuses_what_does_not_fit"),
    Body("relay_write", f"{PRINTED}::test_each_function_writes_to_the_buffer_of_the_current_cpu[-write]"),
    Body("__relay_write", f"{PRINTED}::test_each_function_writes_to_the_buffer_of_the_current_cpu[-__write]"),
    Body("relay_reserve", f"{PRINTED}::test_each_function_writes_to_the_buffer_of_the_current_cpu[-reserve]"),
    Body("relay_buf_full", f"{PRINTED}::test_the_no_overwrite_example_refuses_what_does_not_fit"),
    Body("subbuf_start_reserve", f"{PRINTED}::test_the_no_overwrite_example_refuses_what_does_not_fit"),
    Body(
        "relay_late_setup_files",
        "tests/fuse/channels/test_late.py::test_late_files_hold_everything_that_was_written_before",
    ),
]
CHANNELS = "tests/fuse/channels"
MADE = f"{CHANNELS}/test_open.py::test_create_buf_file_is_asked_for_each_buffer_and_remove_buf_file_is_called_for_each"
MAPPED = f"{CHANNELS}/test_close.py::test_the_maker_is_told_who_opens_memory_and_when_he_is_done"
CALLBACKS = [
    Body(
        "subbuf_start",
        f"{PRINTED}::test_the_no_overwrite_example_refuses_what_does_not_fit",
        "tests/conformance/printed_no_overwrite.h",
    ),
    Body("create_buf_file", MADE, "tests/support/programs/maker.c"),
    Body("remove_buf_file", MADE, "tests/support/programs/maker.c"),
    Body("buf_mapped", MAPPED, "tests/support/programs/maker.c"),
    Body("buf_unmapped", MAPPED, "tests/support/programs/maker.c"),
]
CALLBACK_TESTS = "tests/native/classic/test_classic.c"
CLASSIC_FILE = "tests/fuse/programs/test_classic.py"
CLIENT = "tests/fuse/programs/classic_client.c"
CLASSIC = [
    Body(name, f"tests/native/classic/{test}[locking]")
    for name, test in {
        "relay_classic_open": "test_classic.c::the_first_sub_buffer_starts_in_relay_open",
        "relay_classic_write": "test_classic.c::a_write_that_does_not_fit_ends_delivers_and_starts",
        "relay_classic_buffers_consumed": "test_full.c::a_client_that_consumes_what_is_delivered_is_never_full",
        "relay_classic_resume": "test_full.c::resume_catches_consumed_up_with_produced",
        "relay_classic_info": "test_info.c::info_of_a_new_channel",
        "relay_classic_close": "test_classic.c::close_finishes_the_last_sub_buffer",
        "rchan_get": "test_direct.c::the_documents_sequence_writes_a_record",
        "relay_lock_channel": "test_direct.c::signals_are_blocked_while_the_lock_is_held",
        "relay_classic_reserve": "test_direct.c::the_documents_sequence_writes_a_record",
        "relay_classic_commit": "test_direct.c::a_reserved_record_is_read_once_it_is_committed",
        "relay_unlock_channel": "test_direct.c::signals_are_blocked_while_the_lock_is_held",
    }.items()
]
CLASSIC += [
    Body("rchan_put", f"{CLASSIC_FILE}::test_the_memory_is_freed_with_the_last_reference[reference]"),
    Body("buffer_start", f"{CLASSIC_FILE}::test_readers_get_headers_records_and_footers_and_nothing_unused[1]", CLIENT),
    Body("buffer_end", f"{CLASSIC_FILE}::test_readers_get_headers_records_and_footers_and_nothing_unused[1]", CLIENT),
    Body("deliver", f"{CLASSIC_FILE}::test_direct_writes_arrive", CLIENT),
    Body("buffers_full", f"{CLASSIC_FILE}::test_resume_is_a_command_too", CLIENT),
]
# What calls them.
EVENTS = "native/src/classic/callbacks.c"
CLASSIC += [
    Body("end_previous", f"{CALLBACK_TESTS}::a_write_that_does_not_fit_ends_delivers_and_starts[lockless]", EVENTS),
    Body("deliver", f"{CALLBACK_TESTS}::bulk_delivers_each_sub_buffer_with_header_and_footer[lockless]", EVENTS),
    Body("relay_events_committed", f"{CALLBACK_TESTS}::packet_delivers_each_write[lockless]"),
]
BODIES = LIBRARY + CALLBACKS + CLASSIC


def emptied(source: str, name: str) -> str | None:
    """Return the source with the function's body emptied; None: it does not define it."""
    definition = re.compile(rf"^(\w[\w \*]*?\b{name}\([^;{{}}]*\)\n\{{\n).*?^\}}$", re.MULTILINE | re.DOTALL)
    match = definition.search(source)
    if match is None:
        return None
    nothing = "" if re.match(r"(?:static )?void \w", match[1]) else "\treturn 0;\n"
    return f"{QUIET}{source[: match.start()]}{match[1]}{nothing}}}{source[match.end() :]}"


def is_of_library(body: Body) -> bool:
    return not body.file.startswith("tests/")


@pytest.fixture(scope="module")
def sources() -> Iterator[Path]:
    """Copy what is built and run; always to the same place, as what is built there stays."""
    copy = Path(sys.prefix) / "native" / "emptied"
    shutil.rmtree(copy, ignore_errors=True)
    for part in ("native", "mount", "tests"):
        # With times of now: what was built last may be of a source that was emptied.
        shutil.copytree(
            ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"), copy_function=shutil.copy
        )
    shutil.copy(ROOT / "pyproject.toml", copy)
    yield copy
    shutil.rmtree(copy)


def run_test(sources: Path, body: Body) -> subprocess.CompletedProcess[str]:
    """Run the body's test plain; with the copy's library, if it is a function of the library."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", body.test]
    # Unoptimized: it takes longer to compile than to run.
    environment = {**os.environ, "RELAYFS_SANITIZE": "", "CMAKE_BUILD_TYPE": "Debug"}
    if is_of_library(body):
        environment.pop("RELAYFS_C", None)
    return subprocess.run(
        command, cwd=sources, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


@pytest.mark.stress
@pytest.mark.parametrize("body", BODIES if LONG else CALLBACKS[:1], ids=lambda body: body.name)
def test_a_function_without_its_body_is_missed(body: Body, sources: Path) -> None:
    files = [sources / body.file] if body.file else sorted((sources / "native/src").rglob("*.c"))
    before = {file: file.read_text() for file in files}
    ((file, source),) = [(file, source) for file in files if (source := emptied(before[file], body.name))]
    whole = run_test(sources, body)
    assert whole.returncode == 0, whole.stdout
    file.write_text(source)
    try:
        done = run_test(sources, body)
    finally:
        file.write_text(before[file])
    assert "RuntimeError" not in done.stdout, f"it is not even built:\n{done.stdout[-4000:]}"
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout[-4000:]


def test_bodies_are_emptied() -> None:
    source = """
static int other(void);

int *one(int a,
         int b)
{
	if (a) {
	}
}

void two(void)
{
	x();
}
"""
    assert emptied(source, "three") is None
    one, two = emptied(source, "one"), emptied(source, "two")
    assert one == QUIET + source.replace("\tif (a) {\n\t}\n", "\treturn 0;\n")
    assert two == QUIET + source.replace("\tx();\n", "")
