"""relayctl serve: who is answered, and what a browser is told to protect its user from."""

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_site import Site, site
from mounts import Mount
from tracing import relayctl

pytestmark = pytest.mark.one_mount

PATHS = (
    "",
    "page.js",
    "page.css",
    "grafana.json",
    "metrics",
    "events",
    "snapshot",
    "trace.pftrace",
    "none",
    "../etc",
    "page/",
)


@pytest.fixture(scope="module")
def served(shared_mount: Mount) -> Iterator[Site]:
    with site("--mount", shared_mount.path, "--host", "Metrics.example") as one:
        yield one


@pytest.fixture(scope="module")
def guarded(shared_mount: Mount) -> Iterator[Site]:
    with site("--mount", shared_mount.path, "--listen", "0.0.0.0:0") as one:
        yield one


def test_every_answer_has_the_headers_that_protect_its_reader(served: Site) -> None:
    for path in PATHS:
        for method, statuses in (
            ("GET", {200, 400, 404}),
            ("HEAD", {200, 400, 404}),
            ("POST", {405}),
            ("DELETE", {405}),
        ):
            answer = served.get(path, method)
            assert answer.status in statuses, (path, method)
            assert "default-src 'none'; script-src 'self'" in answer.headers["Content-Security-Policy"]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "no-store"
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            assert not [name for name in answer.headers if name.lower() in {"server", "access-control-allow-origin"}]
    assert [path for path in PATHS if served.get(path).status == 200] == list(PATHS[:5])


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("LocalHost.:80", 200), ("127.0.0.1:5345", 200), ("[::1]:5345", 200), ("[::1]", 200),
        ("192.0.2.7", 200), (os.uname().nodename, 200), ("metrics.example:443", 200),
        ("rebound.example", 421), ("rebound.example:5345", 421), ("localhost.rebound.example", 421), ("", 421),
        ("127.0.0.1.rebound.example", 421), ("[localhost]", 421), ("localhost:x", 421),
        ("[::1%?]", 421), ("[::1%1]:80", 421), ("::1%a?", 421), ("::1%#", 421),
    ],
)  # fmt: skip
def test_only_the_names_of_the_server_are_answered(served: Site, host: str, status: int) -> None:
    assert served.get("metrics", Host=host).status == status


def test_pages_of_other_sites_cause_no_work(served: Site) -> None:
    crossing = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}
    assert served.get("snapshot?trace=t", **crossing).status == 403
    assert served.get("", **{**crossing, "Sec_Fetch_Mode": "navigate"}).status == 200


def test_elsewhere_than_on_this_machine_a_token_is_needed(guarded: Site) -> None:
    token = guarded.token
    assert len(token) >= 32
    assert guarded.url == f"http://{os.uname().nodename}:{guarded.port}/?token={token}"
    for path in ("", "metrics", "events?trace=t", "snapshot?trace=t", "grafana.json", "none"):
        assert guarded.get(path).status == 401
        assert guarded.get(path, Authorization=f"Bearer {token}x").status == 401
        assert guarded.get(path, Authorization=f"Basic {token}").status == 401
    assert guarded.get("metrics").headers["WWW-Authenticate"] == "Bearer"
    assert guarded.get(f"metrics?token={token}").status == 200
    assert guarded.get("metrics", Authorization=f"bearer {token}").status == 200
    assert guarded.get(f"metrics?token={token}", Authorization="Bearer none").status == 401
    assert guarded.get("metrics?token=%ff%00").status == 401
    # They have no data, and the page that fetches them does not know how to add the token.
    assert guarded.get("page.js").status == guarded.get("page.css").status == 200


def test_a_token_in_a_file_is_taken_on_each_address_and_not_printed(mount: Mount, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    file.chmod(0o600)
    with site("--mount", mount.path, "--token-file", file) as one:
        assert one.url == f"http://127.0.0.1:{one.port}/"
        assert one.get("metrics").status == 401
        assert one.get("metrics?token=0123456789abcdef").status == 200


def test_what_is_wrong_is_said_before_anything_is_served(mount: Mount, served: Site, tmp_path: Path) -> None:
    file = tmp_path / "token"
    for content, mode, words in (
        (b"0123456789abcdef", 0o644, "all users may read it, so it is no secret; chmod o-r"),
        (b"short", 0o600, "at least 16 printable characters"),
        (b"0123456789 abcdef", 0o600, "without spaces"),
        (b"\xff" * 20, 0o600, "printable characters of ASCII"),
    ):
        file.write_bytes(content)
        file.chmod(mode)
        done = relayctl("serve", "--mount", mount.path, "--token-file", file)
        assert (done.returncode, done.stdout) == (1, "")
        assert words in done.stderr
    for arguments, words in (
        (
            ("--mount", mount.path, "--listen", f"127.0.0.1:{served.port}"),
            "Address already in use; --listen ADDRESS:PORT",
        ),
        (("--store", tmp_path), "No such file"),
        (("--mount", mount.path, "--token-file", tmp_path / "none"), "none: No such file"),
    ):
        done = relayctl("serve", *arguments)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert words in done.stderr


def test_without_the_extra_it_says_how_to_install_it(mount: Mount) -> None:
    code = (
        "import sys; sys.modules['starlette'] = None; sys.argv[0] = 'relayctl'\n"
        "from relayfs_fuse.cli.relayctl import main; main()"
    )
    command = [sys.executable, "-c", code, "serve", "--mount", mount.path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = "relayctl: serve needs starlette; `pip install 'relayfs[serve]'` installs it\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_urllib_of_a_script_gets_in_with_the_printed_address(guarded: Site) -> None:
    url = guarded.url.replace(f"//{os.uname().nodename}", "//127.0.0.1", 1)
    with urllib.request.urlopen(url) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(url.partition("?")[0])
