"""Keep the last events of an asyncio program, and save them when it fails: flight_asyncio.py MNT/app/flight OUT STEPS.

The events are in a ring that overwrites the oldest ones, in shared memory. So they are there, too, if the program is
killed: this program with 0 STEPS saves them then.
"""

import asyncio
import sys
import time
from pathlib import Path

import relayfs_fuse
from relayfs_fuse import Ring


class FlightRecorder:
    """A ring with the last events of a program, and of those that have used it before."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._ring = Ring.create(path, size="64K", mode="overwrite", times="mono")
        except FileExistsError:
            self._ring = Ring(path)

    def note(self, text: str) -> None:
        """Write an event; it takes no system call, and never waits."""
        task = asyncio.current_task()
        self._ring.output(f"{task.get_name() if task else '-'}: {text}".encode())

    def save(self, out: Path) -> None:
        """Move the events from the ring to a file."""
        with relayfs_fuse.open(self.path, timeout=0) as events, out.open("w") as file:
            for event in events:
                seconds, ns = divmod(event.time or 0, 1_000_000_000)
                when = time.strftime("%H:%M:%S", time.localtime(seconds))
                file.write(f"{when}.{ns:09} {event.data.decode()}\n")


async def count_down(recorder: FlightRecorder, steps: int) -> None:
    """Do some work that fails in the end."""
    for left in range(steps, -1, -1):
        recorder.note(f"10 / {left}")
        recorder.note(f"is {10 / left}")
        await asyncio.sleep(0)


async def main(recorder: FlightRecorder, out: Path, steps: int) -> None:
    """Run two tasks, and save the events if one fails."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(count_down(recorder, steps), name="first")
            group.create_task(count_down(recorder, 2 * steps), name="second")
    except* ZeroDivisionError as error:
        recorder.note(f"failed: {error.exceptions[0]}")
        recorder.save(out)


flight_recorder = FlightRecorder(sys.argv[1])
if int(sys.argv[3]):
    asyncio.run(main(flight_recorder, Path(sys.argv[2]), int(sys.argv[3])))
else:
    flight_recorder.save(Path(sys.argv[2]))
