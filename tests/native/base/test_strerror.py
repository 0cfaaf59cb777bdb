"""relay_strerror(): what the library's errors mean."""

import errno
import os
import re
import subprocess
from pathlib import Path

from build import ROOT, compile_c

SOURCE = Path(__file__).parent / "strerror.c"
NAMED = sorted(
    {
        name
        for page in ("librelayfs.3", "relay_ring.3")
        for name in re.findall(r"^\.B (E[A-Z]+)$", (ROOT / "mount/man" / page).read_text(), re.MULTILINE)
    }
)


def texts(*numbers: int) -> list[str]:
    command = [compile_c([SOURCE]), *map(str, numbers)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_each_error_that_the_manual_names_has_a_text_of_its_own() -> None:
    assert len(NAMED) > 10
    numbers = [getattr(errno, name) for name in NAMED]
    said = texts(*numbers)
    assert [name for name, number, text in zip(NAMED, numbers, said, strict=True) if text == os.strerror(number)] == []
    assert texts(*(-number for number in numbers)) == said


def test_a_wrong_kind_of_path_is_explained() -> None:
    no_entry, wrong_type, bad_message = texts(errno.ENOENT, errno.EMEDIUMTYPE, errno.EBADMSG)
    assert "without the number at its end" in no_entry
    assert "record rings" in wrong_type
    assert "damaged" in bad_message
    assert "ring" not in bad_message


def test_other_errors_are_those_of_the_system() -> None:
    assert texts(errno.ENOMEM, 0, 4095) == [os.strerror(number) for number in (errno.ENOMEM, 0, 4095)]
