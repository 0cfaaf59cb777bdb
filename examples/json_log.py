"""Log JSON objects, one a line, into a channel: json_log.py MNT/app/json. json_lines.sh reads them with jq."""

import json
import logging
import sys
from concurrent.futures import ThreadPoolExecutor

from relayfs_fuse import RelayHandler


class JsonFormatter(logging.Formatter):
    """Format a message as a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, with what was given as extra={"fields": {...}}."""
        fields: dict[str, object] = getattr(record, "fields", {})
        line = {"time": record.created, "level": record.levelname, "message": record.getMessage(), **fields}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def answer(number: int) -> None:
    """Answer a request, and log that."""
    fields = {"request": number, "ms": number * 1.5}
    logging.log(logging.ERROR if number % 10 == 7 else logging.INFO, "answered", extra={"fields": fields})


handler = RelayHandler(sys.argv[1], create="times=mono")
handler.setFormatter(JsonFormatter())
logging.basicConfig(level=logging.INFO, handlers=[handler])
with ThreadPoolExecutor(4) as pool:
    list(pool.map(answer, range(100)))
if handler.dropped or handler.shortened:
    sys.exit(f"{handler.dropped} messages were dropped, {handler.shortened} shortened")
