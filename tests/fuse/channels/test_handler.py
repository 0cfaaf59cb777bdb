"""RelayHandler: log messages in a channel, whatever happens to the program that logs."""

import logging
import logging.config
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import forking
import pytest
from mounts import DEADLINE_S, Mount

from relayfs_fuse import RelayHandler

pytestmark = pytest.mark.one_mount

SINGLE = "buffers=single subbuf_size=4K n_subbufs=4"


@contextmanager
def logging_to(channel: Path, **options: str) -> Iterator[tuple[logging.Logger, RelayHandler]]:
    """A logger that has only this handler."""
    logger = logging.Logger("test")
    handler = RelayHandler(channel, **options)
    logger.addHandler(handler)
    try:
        yield logger, handler
    finally:
        handler.close()


# --- configured, as users do ---

CONFIGURED = """
import logging.config, multiprocessing, sys
CONFIG = {
    "version": 1, "disable_existing_loggers": False,
    "formatters": {"brief": {"format": "%(levelname)s %(processName)s %(message)s"}},
    "handlers": {"relay": {
        "class": "relayfs_fuse.RelayHandler", "path": sys.argv[1], "create": sys.argv[2], "level": "INFO",
        "formatter": "brief",
    }},
    "root": {"handlers": ["relay"], "level": "DEBUG"},
}
def work(number):
    logging.info("works on %d", number)
def begin():
    logging.config.dictConfig(CONFIG)
if __name__ == "__main__":
    begin()
    logging.debug("not shown")
    logging.warning("begin")
    child = multiprocessing.get_context("fork").Process(target=work, args=(1,), name="fork")
    child.start()
    child.join()
    with multiprocessing.get_context("spawn").Pool(1, begin) as pool:
        pool.map(work, [2])
    logging.info("end")
"""


@pytest.mark.parametrize("options", [SINGLE, "type=ring size=4K framing=line"], ids=["relay", "ring"])
def test_a_handler_is_configured_by_name_and_children_log_too(mount: Mount, tmp_path: Path, options: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(CONFIGURED)
    channel = mount.path / "app/log"
    for _ in range(2):  # the second time the channel exists
        done = subprocess.run([sys.executable, program, channel, options], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        file = channel if options == SINGLE else channel.with_name("log0")
        assert file.read_text().splitlines() == [
            "WARNING MainProcess begin", "INFO fork works on 1", "INFO SpawnPoolWorker-2 works on 2",
            "INFO MainProcess end",
        ]  # fmt: skip


class Shouting(logging.LogRecord):
    """A record with a text of its own, which logging.setLogRecordFactory() may choose."""

    def getMessage(self) -> str:  # noqa: N802  # its name in logging.LogRecord
        return super().getMessage().upper()


class Choosing(RelayHandler):
    """A handler whose own method filters."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "other" in record.getMessage()


def test_filters_and_records_are_those_of_logging(mount: Mount) -> None:
    channel = mount.create("app/log", SINGLE)
    with logging_to(channel) as (logger, handler):
        handler.addFilter(lambda record: record.getMessage() != "two")
        for text in ("one", "two"):
            logger.warning(text)
        handler.filters.clear()
        logger.warning("two")
        logger.warning("%d%%", 3)
        logger.warning("100%")
        logger.warning(ValueError("no text"))
        logger.warning("by %(name)s", {"name": "name"})
        logger.handle(Shouting("test", logging.WARNING, __file__, 1, "a %s", ("word",), None))
    assert channel.read_bytes() == b"one\ntwo\n3%\n100%\nno text\nby name\nA WORD\n"
    chosen = Choosing(channel)
    logger = logging.Logger("test")
    logger.addHandler(chosen)
    for text in ("one", "another"):
        logger.warning(text)
    chosen.close()
    assert channel.read_bytes() == b"another\n"


def test_a_channel_that_is_not_there_is_an_error_unless_it_may_be_made(mount: Mount) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        RelayHandler(mount.path / "none")
    with pytest.raises(OSError, match="subbuf_size=0: not allowed"):
        RelayHandler(mount.path / "none", create="subbuf_size=0")
    config = {
        "version": 1, "handlers": {"relay": {"class": "relayfs_fuse.RelayHandler", "path": str(mount.path / "none")}}
    }  # fmt: skip
    with pytest.raises(ValueError, match="Unable to configure handler 'relay'") as error:
        logging.config.dictConfig(config)
    assert isinstance(error.value.__cause__, FileNotFoundError)


# --- messages ---


def test_exceptions_and_text_of_any_kind_are_logged_as_by_other_handlers(
    mount: Mount, capsys: pytest.CaptureFixture[str]
) -> None:
    channel = mount.create("log", SINGLE)
    with logging_to(channel) as (logger, handler):
        try:
            raise KeyError("gone")
        except KeyError:
            logger.exception("failed: %s", "\udcff snow \u2603")
        logger.info("a number: %d", "none")
        handler.setFormatter(logging.Formatter("<%(message)s>"))
        logger.info("formatted")
        handler.addFilter(lambda record: record.msg != "refused")
        logger.info("refused")
        handler.setLevel(logging.ERROR)
        logger.info("refused, too")
        assert handler.dropped == 0
    text = channel.read_bytes().decode()
    assert text.startswith("failed: \\udcff snow \u2603\nTraceback (most recent call last):\n")
    assert text.endswith("KeyError: 'gone'\n<formatted>\n")
    assert "not all arguments converted" in (said := capsys.readouterr().err) or "--- Logging error ---" in said
    assert mount.shown("log", "records") == "2"


@pytest.mark.parametrize(
    ("options", "largest"),
    [(SINGLE, 4096), (f"{SINGLE} times=mono", 4080), ("type=ring size=4K framing=line", 4072)],
    ids=["relay", "times", "ring"],
)
def test_a_message_that_is_too_long_is_shortened_and_says_so(mount: Mount, options: str, largest: int) -> None:
    channel = mount.create("log", options)
    file = channel if channel.exists() else channel.with_name("log0")
    with logging_to(channel) as (logger, handler):
        logger.info("x" * (largest - 1))
        assert file.read_bytes() == b"x" * (largest - 1) + b"\n"
        logger.info("\u2603" * 2000)
        assert (handler.shortened, handler.dropped) == (1, 0)
    (second,) = file.read_bytes().decode().splitlines()
    kept, _, rest = second.partition(" [... ")
    assert set(kept) == {"\u2603"}
    assert rest == f"{6000 - len(kept.encode())} bytes left out]"
    assert largest - 4 < len(second.encode()) + 1 <= largest
    assert mount.shown("log", "lost") == "0"


def test_a_record_that_has_no_room_for_the_mark_is_cut(mount: Mount) -> None:
    channel = mount.create("log", "buffers=single subbuf_size=16 n_subbufs=4")
    with logging_to(channel) as (logger, handler):
        logger.info("0123456789abcdefgh")
        assert handler.shortened == 1
    assert channel.read_bytes() == b"0123456789abcdef"


# --- what is dropped ---


@pytest.mark.parametrize("options", [SINGLE, "type=ring size=4K"], ids=["relay", "ring"])
def test_a_full_channel_drops_messages_and_counts_them(
    mount: Mount, options: str, capsys: pytest.CaptureFixture[str]
) -> None:
    channel = mount.create("log", options)
    with logging_to(channel) as (logger, handler):
        for _ in range(300):
            logger.info("x" * 100)
        assert 100 < handler.dropped < 300
        assert mount.shown("log", "lost") == mount.shown("log", "lost_full") == str(handler.dropped)
        assert int(mount.shown("log", "records")) + handler.dropped == 300
        # A child counts its own.
        child = os.fork()
        if not child:
            logger.info("x" * 100)
            os._exit(handler.dropped)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("act", ["remove", "disable"])
@pytest.mark.parametrize("options", [SINGLE, "type=ring size=4K"], ids=["relay", "ring"])
def test_a_channel_that_is_taken_away_raises_nothing_and_is_told_once(
    mount: Mount, act: str, options: str, capsys: pytest.CaptureFixture[str]
) -> None:
    channel = mount.create("log", options)
    with logging_to(channel) as (logger, handler):
        logger.info("first")
        mount.command(f"{act} log")
        for _ in range(3):
            logger.info("too late")
        assert handler.dropped == 3
        assert capsys.readouterr().err.count("--- Logging error ---") == 1
    logger.info("after close()")
    assert handler.dropped == 4


# --- threads, signals, death ---


def test_threads_log_while_the_handler_is_closed(mount: Mount) -> None:
    channel = mount.create("log", "subbuf_size=64K n_subbufs=8 mode=overwrite")
    n_threads, n = 4, 2000
    with logging_to(channel) as (logger, handler):
        assert handler.lock is None
        half = threading.Barrier(n_threads + 1)

        def work() -> None:
            for i in range(n):
                if i == n // 2:
                    half.wait(DEADLINE_S)
                logger.info("message")

        threads = [threading.Thread(target=work) for _ in range(n_threads)]
        for thread in threads:
            thread.start()
        half.wait(DEADLINE_S)
        handler.close()
        for thread in threads:
            thread.join(DEADLINE_S)
        n_records, n_dropped = int(mount.shown("log", "records")), handler.dropped
        assert n_records + n_dropped == n_threads * n
        logger.info("after close()")
        assert (int(mount.shown("log", "records")), handler.dropped) == (n_records, n_dropped + 1)
        assert str(mount.store / "log") not in Path("/proc/self/maps").read_text()


KILLED = """
import logging, os, sys
from relayfs_fuse import RelayHandler
logger = logging.Logger("test")
logger.addHandler(RelayHandler(sys.argv[1]))
for number in range(1 << 30):
    logger.info("message %d", number)
    os.write(1, b"%d\\n" % number)
"""


@pytest.mark.parametrize("options", ["", "type=ring size=8M framing=line"], ids=["relay", "ring"])
def test_after_sigkill_every_message_is_there_whose_call_has_returned(mount: Mount, options: str) -> None:
    """The program tells of each call that has returned by write(2), and is killed at any moment."""
    for round_ in range(5):
        name = f"log{round_}x"
        channel = mount.create(name, options or "subbuf_size=1M n_subbufs=8 buffers=global")
        with forking.start([sys.executable, "-c", KILLED, channel], stdout=subprocess.PIPE) as process:
            assert process.stdout
            told = b""
            while told.count(b"\n") < 100 * (round_ + 1):
                assert select.select([process.stdout], [], [], DEADLINE_S)[0]
                told += os.read(process.stdout.fileno(), 4096)
            process.kill()
            told += process.stdout.read()
        returned = told.count(b"\n")
        lines = channel.with_name(f"{name}0").read_bytes().splitlines()
        assert lines == [b"message %d" % number for number in range(len(lines))]
        assert 100 <= returned <= len(lines) <= returned + 1
        # Lost is at most the message whose call had not returned.
        assert len(lines) + int(mount.shown(name, "lost")) <= returned + 1
        mount.command(f"remove {name}")


def test_a_signal_handler_may_log_while_its_thread_logs(mount: Mount) -> None:
    channel = mount.create("log", "buffers=global subbuf_size=1M n_subbufs=8")
    code = """
import logging, signal, sys
from relayfs_fuse import RelayHandler
logger = logging.Logger("test")
logger.addHandler(RelayHandler(sys.argv[1]))
signal.signal(signal.SIGALRM, lambda *_: logger.info("signal"))
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
for number in range(5000):
    logger.info("message")
signal.setitimer(signal.ITIMER_REAL, 0)
"""
    command = [sys.executable, "-c", code, channel]
    done = forking.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = channel.with_name("log0").read_text().splitlines()
    assert lines.count("message") == 5000
    assert lines.count("signal") == len(lines) - 5000 > 0
