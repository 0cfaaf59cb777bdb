"""Users of a NATS server, and certificates: what nsc, nk and openssl make for it.

seed, public = key("user")                       # an NKey
settings, creds = operator(directory)            # of a server with an operator, and the credentials of a user of it
tls = certificates(directory)                    # tls.ca, tls.cert, tls.key
"""

import base64
import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import nkeys

PREFIXES = {
    "operator": nkeys.PREFIX_BYTE_OPERATOR,
    "account": nkeys.PREFIX_BYTE_ACCOUNT,
    "user": nkeys.PREFIX_BYTE_USER,
}
# As nsc writes it: no limit.
NONE = dict.fromkeys(
    (
        "subs",
        "data",
        "payload",
        "imports",
        "exports",
        "conn",
        "leaf",
        "mem_storage",
        "disk_storage",
        "streams",
        "consumer",
    ),
    -1,
)


def key(kind: str) -> tuple[str, str]:
    """Return a seed and the public key."""
    seed = bytes(nkeys.encode_seed(os.urandom(32), PREFIXES[kind]))
    return seed.decode(), nkeys.from_seed(bytearray(seed)).public_key.decode()


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(seed: str, issuer: str, subject: str, kind: str, claims: dict[str, object]) -> str:
    """Return a JWT of the issuer, whose seed this is."""
    head = {"typ": "JWT", "alg": "ed25519-nkey"}
    body = {"jti": "T", "iat": int(time.time()), "iss": issuer, "sub": subject, "name": kind}
    body["nats"] = {**claims, "type": kind, "version": 2}
    text = ".".join(_encode(json.dumps(part).encode()) for part in (head, body))
    return f"{text}.{_encode(nkeys.from_seed(bytearray(seed.encode())).sign(text.encode()))}"


def operator(directory: Path) -> tuple[str, Path]:
    """Return settings of a server that knows users by their JWTs, and a file with the credentials of one."""
    seed, issuer = key("operator")
    own = token(seed, issuer, issuer, "operator", {})
    accounts = [key("account") for _ in range(2)]
    limits = {"limits": {**NONE, "wildcards": True}}
    # The account of the system has no JetStream.
    system = {"limits": {**NONE, "wildcards": True, **dict.fromkeys(("mem_storage", "disk_storage"), 0)}}
    tokens = [
        token(seed, issuer, public, "account", claims)
        for (_, public), claims in zip(accounts, (limits, system), strict=True)
    ]
    preload = "\n".join(f"{public}: {one}" for (_, public), one in zip(accounts, tokens, strict=True))
    settings = (
        f"operator: {own}\nsystem_account: {accounts[1][1]}\nresolver: MEMORY\nresolver_preload {{\n{preload}\n}}"
    )
    user_seed, user = key("user")
    made = token(*accounts[0], user, "user", dict.fromkeys(("subs", "data", "payload"), -1))
    creds = directory / "user.creds"
    creds.write_text(
        f"-----BEGIN NATS USER JWT-----\n{made}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user_seed}\n------END USER NKEY SEED------\n"
    )
    creds.chmod(0o600)
    return settings, creds


@dataclass(frozen=True)
class Certificates:
    """Of a server at 127.0.0.1, and of its clients, too."""

    cert: Path
    key: Path

    @property
    def settings(self) -> str:
        """Have a server use them, and its clients have to show theirs."""
        return f'tls {{ cert_file: "{self.cert}", key_file: "{self.key}", ca_file: "{self.cert}", verify: true }}'


def certificates(directory: Path) -> Certificates:
    """Make a certificate that vouches for itself."""
    found = Certificates(directory / "cert.pem", directory / "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=relayfs", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", found.key, "-out", found.cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return found
