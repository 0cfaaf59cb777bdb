"""Servers that know their users, and encrypt; and options in a file."""

import os
from pathlib import Path

import pytest
from forwarding import make_recording, running, same
from mounts import NOBODY
from nats_server import NatsServer
from nats_users import certificates, key, operator
from tracing import relayctl

from relayfs_fuse.errors import RelayError
from relayfs_fuse.forwarding.access import Access

HOST = os.uname().nodename


def secret(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


def there_and_back(server: NatsServer, out: Path, into: Path) -> None:
    """Forward a recording, and receive it."""
    for words in (("forward", out, "--to", server.url), ("receive", "--from", server.url, "-o", into)):
        done = relayctl(*words, *server.access, "--once")
        assert done.returncode == 0, done.stderr
    assert same(out, into / HOST / "out")


def first_line(*words: object) -> str:
    """What a command says first; it goes on waiting."""
    with running(*words, waits=False) as process:
        assert process.stderr is not None
        return process.stderr.readline()


def test_nkeys_and_tls_in_both_directions(store, run, out, tmp_path):
    make_recording(store, run, out, 100)
    seed, public = key("user")
    nkey = tmp_path / "user.nk"
    secret(nkey, f"{seed}\n")
    tls = certificates(tmp_path)
    users = f"authorization {{ users: [ {{ nkey: {public} }} ] }}"
    access = ("--nkey", nkey, "--tls-ca", tls.cert, "--tls-cert", tls.cert, "--tls-key", tls.key)
    with NatsServer(tmp_path, f"{tls.settings}\n{users}", access) as server:
        server.make_stream()
        there_and_back(server, out, tmp_path / "into")
        command = ["fleet", "--to", server.url]
        said = first_line(*command, "--nkey", nkey)
        assert said == f"relayctl: {server.url}: TLS: self-signed certificate; waiting\n"
        assert first_line(*command, *access[2:]).startswith(f"relayctl: {server.url}: nats: 'Authorization Violation'")
        nkey.write_text(key("user")[0])
        assert first_line(*command, *access).startswith(f"relayctl: {server.url}: nats: 'Authorization Violation'")


def test_credentials_and_a_file_of_options(store, run, out, tmp_path):
    make_recording(store, run, out, 100)
    settings, creds = operator(tmp_path)
    with NatsServer(tmp_path, settings, ("--creds", creds)) as server:
        server.make_stream()
        there_and_back(server, out, tmp_path / "into")
        file = tmp_path / "forward.toml"
        file.write_text(f'to = "{server.url}"\ncreds = "{creds}"\nas = "again"\nrate = 1000000\nprogress = true\n')
        done = relayctl("forward", out, "--config", file, "--once")
        assert done.returncode == 0, done.stderr
        assert f"{HOST}/again: " in done.stderr
        # What is given counts more.
        done = relayctl("forward", out, "--config", file, "--once", "--as", "third")
        assert f"{HOST}/third: " in done.stderr
        for text, why in (
            ('spool_max = "1G"', "spool_max is no option of forward; there are: to, host, as, "),
            ('only = "app/*"', "only is to be a list of texts"),
            ("rate = 1.5", "rate is to be a text, a number, true or false"),
            ("to = ", f"{file}: Invalid value (at "),
            ('rate = "fast"', "'fast': a size is digits, then K, M, G or nothing, such as 64M"),
        ):
            file.write_text(text)
            done = relayctl("forward", out, "--to", server.url, "--config", file, "--once")
            assert (done.returncode, why in done.stderr) == (2, True), done.stderr


def test_a_server_that_does_not_encrypt_is_refused_if_it_should(nats, tmp_path):
    done = relayctl("fleet", "--to", nats.url, "--tls-ca", certificates(tmp_path).cert)
    why = f"{nats.url}: the server does not encrypt, and --tls-ca or --tls-cert asks for it"
    assert (done.returncode, done.stderr) == (1, f"relayctl: {why}\n")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--nkey", "{file}"], "{file} has no seed of a user's key: SU and 56 capital letters and digits"),
        (["--creds", "{file}"], "{file} has no NATS USER JWT and USER NKEY SEED, as `nsc generate creds` writes"),
        (["--tls-ca", "{file}"], "{file} has no certificate: "),
        (["--tls-cert", "{file}"], "--tls-cert and --tls-key belong together: "),
        (["--tls-cert", "{file}", "--tls-key", "{file}"], "{file} and {file} are no certificate and its key: "),
        (["--nkey", "{none}"], "{none}: No such file or directory"),
        (["--tls-ca", "{none}"], "{none}: No such file or directory"),
        (["--nkey", "{file}", "--creds", "{file}"], "--creds and --nkey exclude each other: "),
    ],
)  # fmt: skip
def test_files_that_are_no_such_ones_are_named(options, why, tmp_path):
    names = {"file": str(tmp_path / "file"), "none": str(tmp_path / "none")}
    secret(Path(names["file"]), "rubbish\n")
    done = relayctl("fleet", "--to", "nats://127.0.0.1:1", *(option.format(**names) for option in options))
    assert done.returncode == 1
    assert done.stderr.startswith(f"relayctl: {why.format(**names)}"), done.stderr


@pytest.mark.parametrize("option", ["nkey", "creds", "tls_key"])
def test_secrets_that_others_may_read_or_change_are_refused(option, tmp_path):
    """The group may read one of root's, as the keys of the group ssl-cert."""
    path = tmp_path / "secret"
    secret(path, key("user")[0])
    tls = certificates(tmp_path)
    words = {option: str(path), **({"tls_cert": str(tls.cert)} if option == "tls_key" else {})}
    for mode, uid in ((0o604, 0), (0o602, 0), (0o620, 0), (0o640, NOBODY)):
        path.chmod(mode)
        os.chown(path, uid, -1)
        with pytest.raises(RelayError, match=f"^{path} has mode {mode:04o}, so other users may read or change it: "):
            Access(**words).words()
    for mode, uid in ((0o640, 0), (0o600, NOBODY)):
        path.chmod(mode)
        os.chown(path, uid, -1)
        try:
            Access(**words).words()
        except RelayError as error:
            assert "mode" not in str(error)


def test_a_password_in_a_file_of_options_is_a_secret(tmp_path):
    file = tmp_path / "forward.toml"
    file.write_text('to = "nats://user:password@127.0.0.1:1"\n')
    done = relayctl("forward", tmp_path, "--config", file, "--once")
    assert (done.returncode, done.stderr.startswith(f"relayctl: {file} has mode 0644, so ")) == (1, True), done.stderr
