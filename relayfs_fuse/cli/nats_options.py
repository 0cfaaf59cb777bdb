"""What the commands that talk to a NATS server have in common."""

from __future__ import annotations

import asyncio
import logging
import signal
import tomllib
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from relayfs_fuse.errors import RelayError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

# As forwarding.names.STREAM, which other commands than these need not import.
STREAM = "RELAYFS"

stream_option = click.option(
    "--stream", metavar="NAME", default=STREAM, show_default=True, help="The stream of the server's JetStream."
)

_ACCESS = {
    "--creds": "A user's credentials, as nsc writes them.",
    "--nkey": "The seed of a user's NKey.",
    "--tls-ca": "Who may vouch for the server. Default: whom the system trusts.",
    "--tls-cert": "This client's certificate.",
    "--tls-key": "The key of the certificate.",
}


def access_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say who this is to a command; it gets their values as `access`, which is a dictionary."""
    names = {option: option.removeprefix("--").replace("-", "_") for option in _ACCESS}

    @wraps(command)
    def with_access(**values: Any) -> Any:
        return command(access={name: values.pop(name) for name in names.values()}, **values)

    decorated: Callable[..., Any] = with_access
    for option in reversed(names):
        path = click.Path(dir_okay=False)
        decorated = click.option(option, names[option], type=path, metavar="FILE", help=_ACCESS[option])(decorated)
    return decorated


def config_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --config to a command: a file that has values of its other options."""
    decorated: Callable[..., Any] = click.option(
        "--config", type=click.Path(dir_okay=False), metavar="FILE", is_eager=True, expose_value=False, callback=_read,
        help='A TOML file with values of options that are not given, as `spool-max = "2G"`.',
    )(command)  # fmt: skip
    return decorated


def _read(context: click.Context, _: click.Parameter, path: str | None) -> None:
    """Have options that are not given take their values from a file."""
    if path is None:
        return
    from relayfs_fuse.forwarding.access import check_secret  # noqa: PLC0415  # it loads ssl

    try:
        with open(path, "rb") as file:
            values = tomllib.load(file)
            if "@" in str(values.get("to")):
                check_secret(file.fileno(), path)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path}: {error}") from error
    options = {
        option.removeprefix("--"): parameter.name
        for parameter in context.command.params
        for option in parameter.opts if option.startswith("--") and option not in ("--config", "--help")
    }  # fmt: skip
    several = {parameter.name for parameter in context.command.params if getattr(parameter, "multiple", False)}
    for key, value in values.items():
        if key not in options:
            raise click.UsageError(
                f"{path}: {key} is no option of {context.info_name}; there are: {', '.join(options)}"
            )
        if options[key] in several and not (isinstance(value, list) and all(isinstance(one, str) for one in value)):
            raise click.UsageError(f"{path}: {key} is to be a list of texts")
        if options[key] not in several and not isinstance(value, (str, int, bool)):
            raise click.UsageError(f"{path}: {key} is to be a text, a number, true or false")
    context.default_map = {
        str(options[key]): value if isinstance(value, (bool, list)) else str(value) for key, value in values.items()
    }


@contextmanager
def importing(command: str) -> Iterator[None]:
    """Raise RelayError if a module of the extra is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in {"nats", "google_crc32c"}:
            raise
        raise RelayError(f"{command} needs {missing}; `pip install 'relayfs[nats]'` installs it") from error


def run_until_signal(run: Callable[[], Awaitable[None]]) -> bool:
    """Run until it ends, or is ended by SIGINT or SIGTERM; return whether it was."""
    # It warns of how nats-py handles the end of an encrypted connection, which is made again.
    logging.getLogger("asyncio").setLevel(logging.ERROR)

    async def main() -> bool:
        task = asyncio.ensure_future(run())
        for signum in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(signum, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            return True
        return False

    return asyncio.run(main())
