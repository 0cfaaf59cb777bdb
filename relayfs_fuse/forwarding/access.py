"""How a command proves to a NATS server who it is, and knows that it is the right server."""

from __future__ import annotations

import os
import re
import ssl
import stat
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from relayfs_fuse.errors import RelayError

_SEED = re.compile(rb"SU[A-Z2-7]{56}")
_CREDENTIALS = re.compile(rb"BEGIN NATS USER JWT-+\r?\n\S+.*BEGIN USER NKEY SEED-+\r?\n(\S+)", re.DOTALL)
_FILE_BYTES = 64 << 10
# Who else may use a secret: the group of a file of root's, as ssl-cert.
_OTHERS = stat.S_IRWXO | stat.S_IWGRP


@dataclass(frozen=True)
class Access:
    """Files; None: none is needed.

    creds: a user's JWT and the seed of its key, as `nsc generate creds` writes them
    nkey: the seed of a user's key, as `nk -gen user` writes it
    tls_ca: certificates of those who may vouch for the server; None: those that the system has
    tls_cert, tls_key: this client's certificate and key
    """

    creds: str | None = None
    nkey: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    @property
    def wants_tls(self) -> bool:
        """Whether the connection is to be encrypted."""
        return bool(self.tls_ca or self.tls_cert)

    def words(self) -> dict[str, Any]:
        """Return what nats.connect() is given. RelayError, OSError: a file is no such one; the text says which."""
        found: dict[str, Any] = {}
        if self.creds and self.nkey:
            raise RelayError("--creds and --nkey exclude each other: the server knows a user by one of them")
        if self.creds:
            match = _CREDENTIALS.search(_contents(self.creds))
            if not match or not _SEED.fullmatch(match[1]):
                raise RelayError(
                    f"{self.creds} has no NATS USER JWT and USER NKEY SEED, as `nsc generate creds` writes"
                )
            found["user_credentials"] = self.creds
        if self.nkey:
            if not _SEED.fullmatch(_contents(self.nkey).strip()):
                raise RelayError(f"{self.nkey} has no seed of a user's key: SU and 56 capital letters and digits")
            found["nkeys_seed"] = self.nkey
        if found:
            try:
                import_module("nkeys")  # which nats-py does later, and then says less
            except ModuleNotFoundError as error:
                raise RelayError("--creds and --nkey need nkeys; `pip install 'relayfs[nats]'` installs it") from error
        if context := self._tls():
            found["tls"] = context
        return found

    def _tls(self) -> ssl.SSLContext | None:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise RelayError("--tls-cert and --tls-key belong together: the certificate of this client, and its key")
        if not self.wants_tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
        except ssl.SSLError as error:
            raise RelayError(f"{self.tls_ca} has no certificate: {error.reason or error}") from error
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.tls_ca) from error
        if self.tls_cert and self.tls_key:
            for path in (self.tls_cert, self.tls_key):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    if path == self.tls_key:
                        check_secret(descriptor, path)
                finally:
                    os.close(descriptor)
            try:
                context.load_cert_chain(self.tls_cert, self.tls_key)
            except ssl.SSLError as error:
                why = f"{self.tls_cert} and {self.tls_key} are no certificate and its key: {error.reason or error}"
                raise RelayError(why) from error
        return context


def check_secret(descriptor: int, path: str) -> None:
    """Raise RelayError if others than its owner may read or write a file, but for the group of a file of root's."""
    status = os.fstat(descriptor)
    if status.st_mode & (_OTHERS if status.st_uid == 0 else _OTHERS | stat.S_IRGRP):
        may = f"has mode {stat.S_IMODE(status.st_mode):04o}, so other users may read or change it"
        raise RelayError(f"{path} {may}: it is no secret; chmod 600 {path}")


def _contents(path: str) -> bytes:
    with open(path, "rb") as file:
        check_secret(file.fileno(), path)
        return file.read(_FILE_BYTES)
