"""Log into a channel, as a configuration says: logging_config.py MNT/app/log; then cat MNT/app/log0.

What a program has logged is in shared memory when the call returns, and stays there if the program is killed.
"""

import logging
import logging.config
import sys

CONFIG = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"full": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {
        "relay": {
            "class": "relayfs_fuse.RelayHandler",
            "path": sys.argv[1],
            # If the channel does not exist, it is made: one buffer, which keeps the newest megabyte.
            "create": "buffers=global mode=overwrite subbuf_size=256K n_subbufs=4",
            "level": "INFO",
            "formatter": "full",
        }
    },
    "root": {"handlers": ["relay"], "level": "DEBUG"},
}

log = logging.getLogger("example")


def divide(number: int, by: int) -> None:
    """Log a quotient, or why there is none."""
    log.debug("This line is below the handler's level.")
    try:
        log.info("%d / %d = %g", number, by, number / by)
    except ZeroDivisionError:
        log.exception("cannot divide %d", number)


logging.config.dictConfig(CONFIG)
divide(1, 2)
divide(1, 0)
