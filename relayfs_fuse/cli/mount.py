"""relayfs, and mount.relayfs: mount a store.

    relayfs MNT                         relayfs SOURCE MNT -o store=DIR,size=64M
    mount -t fuse relayfs MNT           mount -t fuse.relayfs SOURCE MNT -o ...
    mount -t relayfs relayfs MNT        with mount.relayfs beside mount(8)'s other helpers
    relayfs --service-mount MNT         and --service-unmount: around the server of a unit (notify.py)
    relayfs --handover, --take-over     what a server of another version calls (program.py)

All of them return when the mount answers (exit 0) or has failed (a message on stderr, exit 1).
"""

from __future__ import annotations

import argparse
import errno
import logging
import logging.handlers
import os
import re
import resource
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from relayfs_fuse import native
from relayfs_fuse.cli.background import detach, open_null, send
from relayfs_fuse.cli.mounting import import_server
from relayfs_fuse.cli.notify import keep, kept, let_go, notify
from relayfs_fuse.cli.program import HANDOVER_OPTION, TAKE_OVER_OPTION, inherited_state, print_versions, take_over
from relayfs_fuse.errors import OptionError, RelayError
from relayfs_fuse.fs import mounts
from relayfs_fuse.fs.commands.control import format_size, parse_size
from relayfs_fuse.fs.ledger import UNLIMITED
from relayfs_fuse.fs.log_writer import Lines, LogWriter
from relayfs_fuse.fs.settings import CARDS_SIZE_LEAST, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from relayfs_fuse.fs.handover import Handover

log = logging.getLogger(__name__)

# Options for the kernel. All but the first few are its defaults, which mount(8) may spell out.
FUSE_OPTIONS = (
    *("allow_other", "ro", "nosuid", "nodev", "noexec", "noatime", "nodiratime", "sync", "dirsync"),
    *("rw", "suid", "dev", "exec", "atime", "diratime", "async"),
)
# Options that only fstab and mount(8) act on, or that always hold.
IGNORED_OPTIONS = (
    *("defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "nofail", "_netdev"),
    *("relatime", "norelatime", "strictatime", "default_permissions"),
)
OWN_OPTIONS = (
    *("store=DIR", "size=BYTES", "user_size=BYTES", "user_files=N", "control_mode=OCTAL", "counters=N", "crashed=N"),
    *("crashed_size=BYTES", "watchdog=SECONDS", "log=FILE", "trusted", "trigger_run", "fsname=NAME"),
)
# These are ignored unless root mounts.
ROOT_OPTIONS = ("suid", "dev")
DEAD_MOUNTS_MAX = 32
USER_FILES_MAX = 1 << 20
CARDS_MAX = 10_000
WATCHDOG_MAX = 86_400


@dataclass
class Arguments:
    """The parsed command line."""

    settings: Settings
    foreground: bool = False
    debug: bool = False
    service: str = ""
    log_file: str | None = None
    source: str = "relayfs"
    options: list[str] = field(default_factory=list)

    def words(self) -> list[str]:
        """Return a command line that means the same in every directory, without the program's name."""
        own = [f"store={self.settings.store}", *([] if self.log_file is None else [f"log={self.log_file}"])]
        flags = [flag for flag, is_set in (("-f", self.foreground), ("-d", self.debug)) if is_set]
        return [self.source, self.settings.mountpoint, "-o", ",".join([*self.options, *own]), *flags]


def main() -> None:
    """Run the program."""
    try:
        if sys.argv[1:2] in ([HANDOVER_OPTION], [TAKE_OVER_OPTION]):
            _follow(*sys.argv[1:3])
        arguments = parse(sys.argv[1:], helper=Path(sys.argv[0]).name.startswith("mount.relayfs"))
        if arguments.service == "unmount":
            let_go()
        arguments.settings.device = kept() if arguments.foreground else None
        if arguments.settings.device is None:  # otherwise it is mounted, and answers when this process does
            clear_dead_mounts(arguments.settings.mountpoint)
            if arguments.service == "unmount":
                return
            check_mountpoint(arguments.settings.mountpoint)
        import_server()
        if arguments.service == "mount":
            mount_for_service(arguments.settings)
            return
    except (RelayError, RuntimeError) as error:
        _fail(str(error))
    _allow_many_files()
    if arguments.foreground:
        sys.exit(_run_in_foreground(arguments))
    _start_in_background(arguments)


def _follow(option: str, memory: str = "") -> NoReturn:
    """Do what a server of another version wants; OptionError."""
    import_server()
    if option == HANDOVER_OPTION:
        print_versions()
        sys.exit(0)
    _allow_many_files()
    inherited = inherited_state(int(memory))
    arguments = parse(inherited["words"])
    if arguments.foreground:
        sys.exit(_run_in_foreground(arguments, inherited))
    _run_in_background(arguments, os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), inherited)


# ---------------------------------------------------------------- arguments


def parse(words: Sequence[str], helper: bool = False) -> Arguments:
    """Parse a command line.

    words: without the program's name
    helper: use the conventions for mount(8)'s helpers, where -f does not mean foreground
    """
    parser = argparse.ArgumentParser(
        prog="mount.relayfs" if helper else "relayfs",
        usage="%(prog)s [SOURCE] MNT [-o OPTION,...]" + ("" if helper else " [-f] [-d]"),
        description="Mount a relayfs store at the directory MNT. SOURCE is any name: it is what mount(8) shows.",
    )
    parser.add_argument("-V", "--version", action="version", version=f"%(prog)s {native.VERSION}")
    parser.add_argument("places", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("-o", dest="options", action="append", default=[], metavar="OPTION,...", help=_options_help())
    if helper:
        parser.add_argument("-f", dest="fake", action="store_true", help="do not mount (dry run)")
        parser.add_argument("-s", "-n", "-v", action="store_true", help="ignored")
        parser.add_argument("-N", "-t", metavar="WORD", help="ignored")
    else:
        parser.add_argument("-f", "--foreground", action="store_true", help="stay in the foreground and log to stderr")
        parser.add_argument("-d", "--debug", action="store_true", help="log debug messages, too")
        for word, what in (("mount", "mount, and have the service manager keep that"), ("unmount", "undo that")):
            parser.add_argument(
                f"--service-{word}", dest="service", action="store_const", const=word, default="", help=what
            )
    found = parser.parse_intermixed_args(words)
    if not 1 <= len(found.places) <= 2:
        parser.error(f"one or two words are needed, [SOURCE] MNT; {len(found.places)} were given")
    arguments = Arguments(Settings(_absolute(found.places[-1]), os.path.abspath(native.default_store())))
    arguments.options = [option for group in found.options for option in group.split(",") if option]
    _apply_options(arguments, arguments.options)
    arguments.settings.fuse_options |= {"default_permissions", "subtype=relayfs"}
    if not any(option.startswith("fsname=") for option in arguments.settings.fuse_options):
        arguments.source = found.places[0] if len(found.places) == 2 else arguments.source
        arguments.settings.fuse_options.add(f"fsname={arguments.source}")
    if os.geteuid() == 0:
        arguments.settings.fuse_options.add("allow_other")
    if helper and found.fake:
        sys.exit(0)
    arguments.foreground = not helper and found.foreground
    arguments.debug = not helper and found.debug
    arguments.service = "" if helper else found.service
    return arguments


def _absolute(mountpoint: str) -> str:
    """Resolve all but the last name, which may be a dead mount, on which every system call fails."""
    above, name = os.path.split(os.path.abspath(mountpoint))
    return os.path.join(os.path.realpath(above), name)


def _options_help() -> str:
    return f"{', '.join(OWN_OPTIONS)}, or of mount(8): {', '.join(FUSE_OPTIONS)}"


def _apply_options(arguments: Arguments, options: Sequence[str]) -> None:
    settings = arguments.settings
    for option in options:
        key, equals, value = option.partition("=")
        if equals and key in [own.partition("=")[0] for own in OWN_OPTIONS if "=" in own]:
            _apply_own(arguments, key, value)
        elif key in ("trusted", "trigger_run"):
            if equals:
                raise OptionError(f"{option}: {key} has no value; leave out {equals + value}")
            setattr(settings, key, True)
        elif option in FUSE_OPTIONS:
            if os.geteuid() == 0 or option not in ROOT_OPTIONS:
                settings.fuse_options.add(option)
        elif option not in IGNORED_OPTIONS and not option.startswith(("x-", "X-", "comment=")):
            raise OptionError(f"unknown mount option {option!r}; there are {_options_help()}")


def _apply_own(arguments: Arguments, key: str, value: str) -> None:
    settings = arguments.settings
    if not value:
        raise OptionError(f"{key}=: a value must follow; there are {', '.join(OWN_OPTIONS)}")
    if key == "store":
        settings.store = os.path.abspath(value)
    elif key == "size":
        settings.limits = replace(settings.limits, size=_limit(key, value))
    elif key == "user_size":
        settings.limits = replace(settings.limits, user_size=_limit(key, value))
    elif key == "user_files":
        settings.limits = replace(settings.limits, user_files=_number(key, value, USER_FILES_MAX))
    elif key == "control_mode":
        if not re.fullmatch(r"0*[0-7]{1,3}", value) or int(value, 8) & 0o111:
            raise OptionError(f"control_mode={value}: octal permissions without execute are needed, such as 0660")
        settings.control_mode = int(value, 8)
    elif key == "counters":
        settings.counters_limit = _number(key, value, native.COUNTERS_HIGHEST_LIMIT)
    elif key in {"crashed", "watchdog"}:
        number = 0 if value == "0" else _number(key, value, CARDS_MAX if key == "crashed" else WATCHDOG_MAX)
        setattr(settings, "cards" if key == "crashed" else "watchdog", number)
    elif key == "crashed_size":
        settings.cards_size = _cards_size(key, value)
    elif key == "log":
        arguments.log_file = os.path.abspath(value)
    else:
        settings.fuse_options.add(f"fsname={value}")


def _number(key: str, value: str, highest: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", value) or not 0 < int(value) <= highest:
        raise OptionError(f"{key}={value}: a number from 1 to {highest} is needed")
    return int(value)


def _cards_size(key: str, value: str) -> int:
    """Parse the bytes of a user's crash cards."""
    size = _limit(key, value)
    if not CARDS_SIZE_LEAST <= size < UNLIMITED:
        least = format_size(CARDS_SIZE_LEAST)
        raise OptionError(f"{key}={value}: a number of bytes from {least} on is needed, with an optional K, M or G")
    return size


def _limit(key: str, value: str) -> int:
    """Parse a limit of bytes."""
    if value == "none":
        return UNLIMITED
    try:
        limit = parse_size(value)
    except ValueError:
        limit = 0
    if limit == 0:
        raise OptionError(
            f"{key}={value}: a number of bytes above 0 is needed, with an optional K, M or G; or none, for no limit"
        )
    return min(limit, UNLIMITED)


# ---------------------------------------------------------------- the mountpoint


def clear_dead_mounts(mountpoint: str) -> None:
    """Unmount dead mounts, left by servers that were killed."""
    for _ in range(DEAD_MOUNTS_MAX):
        try:
            os.stat(mountpoint)
        except OSError as error:
            if error.errno == errno.ECONNABORTED:
                continue  # the server is just dying
            if error.errno != errno.ENOTCONN:
                return
        else:
            return
        done = subprocess.run(
            ["fusermount3", "-u", "-z", "--", mountpoint], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise OptionError(f"{mountpoint} holds a dead mount that cannot be taken away: {done.stderr.strip()}")


def check_mountpoint(mountpoint: str) -> None:
    """Check that a mount at this place is possible. OptionError: it is not."""
    try:
        os.listdir(mountpoint)
    except OSError as error:
        raise OptionError(f"cannot mount at {mountpoint}: {error.strerror}") from error
    there = mounts.top_at(os.path.realpath(mountpoint))
    if there is not None and there.kind == mounts.KIND:
        raise OptionError(
            f"cannot mount at {mountpoint}: a relayfs is mounted there; unmount it, or choose another place"
        )


# ---------------------------------------------------------------- the process


def _fail(message: str) -> NoReturn:
    logging.shutdown()  # write the log before the message
    print(f"relayfs: {message}", file=sys.stderr)
    sys.exit(1)


@contextmanager
def saying_why(place: str) -> Iterator[None]:
    """Mount in the body. OptionError: it has failed, and what is missing; libfuse knows only that it has."""
    try:
        yield
    except RuntimeError as error:
        from relayfs_fuse.cli.machine import mounting_needs  # noqa: PLC0415  # mounting needs none of it

        missing = mounting_needs(place) or f"{error}; see what libfuse has said"
        raise OptionError(
            f"cannot mount at {place}: {missing}. `relayctl doctor` checks what this machine has"
        ) from error


def mount_for_service(settings: Settings) -> None:
    """Mount, and give the descriptor of /dev/fuse to the service manager; RuntimeError, OptionError."""
    from relayfs_fuse.fs.server import mount_only  # noqa: PLC0415  # as in import_server()

    with saying_why(settings.mountpoint):
        device = mount_only(settings)
    try:
        keep(device)
    except OptionError:
        os.close(device)
        clear_dead_mounts(settings.mountpoint)
        raise


def _serve(handover: Handover) -> None:
    server = import_server()(handover)
    with saying_why(handover.settings.mountpoint):
        server.mount()
    server.run()


def _supervise(
    arguments: Arguments,
    serve: Callable[[Handover], int],
    answers: Callable[[], None],
    ends: Callable[[], None],
    inherited: Mapping[str, Any] | None,
) -> int:
    """Have servers serve the mount; return the exit status. RelayError: the store cannot be used.

    serve, answers, ends: see Supervisor
    inherited: what another version has left to this process, which serves or supervises then
    """
    from relayfs_fuse.cli.supervisor import Supervisor  # noqa: PLC0415
    from relayfs_fuse.cli.upgrades import Upgrades  # noqa: PLC0415
    from relayfs_fuse.fs.handover import Handover  # noqa: PLC0415

    handover = Handover(arguments.settings, inherited)
    if inherited is not None and inherited["role"] == "server":
        take_over(handover, inherited)
        return serve(handover)
    upgrades = Upgrades(handover, arguments.words(), os.path.abspath(sys.argv[0]), inherited)
    return Supervisor(handover, serve, answers, ends, upgrades).run()


def _run_in_foreground(arguments: Arguments, inherited: Mapping[str, Any] | None = None) -> int:
    plain = logging.StreamHandler()
    _format(plain)
    logging.getLogger().addHandler(plain)

    def serve(handover: Handover) -> int:
        logging.getLogger().removeHandler(plain)
        if sys.stderr is not None:  # otherwise descriptor 2 may be a file of the store
            _log_to(Lines(sys.stderr.fileno()), arguments)
        try:
            _serve(handover)
        except (RelayError, RuntimeError) as error:
            _fail(str(error))
        except Exception as error:
            log.exception("the server failed")
            _fail(f"the server failed: {error!r}")
        logging.shutdown()
        return 0

    try:
        return _supervise(arguments, serve, lambda: notify("READY=1"), lambda: notify("STOPPING=1"), inherited)
    except (RelayError, RuntimeError) as error:
        _fail(str(error))


def _format(handler: logging.Handler) -> None:
    # syslog adds the time and the host.
    when = "" if isinstance(handler, logging.handlers.SysLogHandler) else "%(asctime)s "
    handler.setFormatter(logging.Formatter(f"{when}relayfs[%(process)d]: %(levelname)s: %(message)s"))


def _log_to(handler: logging.Handler, arguments: Arguments) -> None:
    _format(handler)
    logging.getLogger().addHandler(LogWriter(handler))
    logging.getLogger().setLevel(logging.DEBUG if arguments.debug else logging.INFO)


def _log_in_background(arguments: Arguments) -> None:
    if arguments.log_file is not None:
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            _log_to(Lines(os.open(arguments.log_file, flags, 0o666)), arguments)
        except OSError as error:
            raise OptionError(f"log={arguments.log_file}: {error.strerror}") from error
    elif os.path.exists("/dev/log"):
        _log_to(logging.handlers.SysLogHandler("/dev/log", logging.handlers.SysLogHandler.LOG_DAEMON), arguments)


def _start_in_background(arguments: Arguments) -> None:
    """Fork; the parent waits for a null byte (success), an error message, or the child's death."""
    reading_end, writing_end = os.pipe()
    if os.fork():
        os.close(writing_end)
        with os.fdopen(reading_end, "rb") as pipe:
            answer = pipe.read()
        if answer == b"\0":
            sys.exit(0)
        _fail(answer.decode(errors="replace") or "the server died before it answered; its log may tell why")
    os.close(reading_end)
    os.setsid()
    os.chdir("/")
    _run_in_background(arguments, writing_end)


def _run_in_background(arguments: Arguments, writing_end: int, inherited: Mapping[str, Any] | None = None) -> NoReturn:
    def serve(handover: Handover) -> int:
        return _serve_in_background(arguments, handover, writing_end)

    def answers() -> None:
        detach()
        send(writing_end, b"\0")

    status = 1
    try:
        status = _supervise(arguments, serve, answers, lambda: None, inherited)
    except (RelayError, RuntimeError) as error:
        _log_in_background(arguments)
        log.error("%s", error)
        send(writing_end, str(error).encode())
    logging.shutdown()
    os._exit(status)


def _serve_in_background(arguments: Arguments, handover: Handover, writing_end: int) -> int:
    """Serve, and say on `writing_end` why the mount does not come to be; return the exit status."""
    status = 1
    try:
        _log_in_background(arguments)
        if not handover.has_answered:
            # Until the mount answers, warnings also go to stderr, where the user who mounts sees them.
            visible = logging.StreamHandler()
            visible.setLevel(logging.WARNING)
            _format(visible)
            logging.getLogger().addHandler(visible)
            handover.before_answer = lambda: _hide(visible, writing_end)
        _serve(handover)
        status = 0
    except (RelayError, RuntimeError) as error:
        log.error("%s", error)
        send(writing_end, str(error).encode())
    except BaseException as error:
        log.exception("the server failed")
        send(writing_end, f"the server failed: {error!r}".encode())
    logging.shutdown()
    return status


def _hide(visible: logging.Handler, writing_end: int) -> None:
    logging.getLogger().removeHandler(visible)
    detach()
    open_null(writing_end)


def _allow_many_files() -> None:
    """Raise the limit of descriptors, because each buffer takes one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
