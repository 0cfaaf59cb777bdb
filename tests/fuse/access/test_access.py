"""docs/access.md says who may do what; here all of it is done."""

import difflib
import os

import pytest
from access import tabulate_apart
from build import ROOT

TABLE = ROOT / "docs/access.md"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run programs as other users")
def test_the_table_of_access_is_what_the_system_calls_say(mount, mapped_through):
    made = tabulate_apart()
    if os.environ.get("RELAYFS_ACCESS") == "write":
        TABLE.write_text(made)
    # The kernel's version stands in a line of its own paragraph, and is not compared.
    differences = difflib.unified_diff(without_release(TABLE.read_text()), without_release(made), "docs", "seen", n=0)
    assert not (text := "\n".join(differences)), (
        f"{text}\nIf this is as it should be: RELAYFS_ACCESS=write ./dev test tests/fuse/access/test_access.py"
    )


def without_release(text: str) -> list[str]:
    return [line for line in text.splitlines() if "really said on Linux" not in line]
