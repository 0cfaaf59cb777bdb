"""What has a long form is among the tests that `./dev stress` runs."""

import re

from build import ROOT


def test_files_with_a_long_form_have_tests_that_are_marked():
    texts = {path: path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    long = [path for path, text in texts.items() if re.search(r"is_long\(\)|RELAYFS_STRESS", text)]
    assert long
    assert [str(path.relative_to(ROOT)) for path in long if "mark.stress" not in texts[path]] == []
