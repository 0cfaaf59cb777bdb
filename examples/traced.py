"""Print how many steps the numbers up to N take to become 1: traced.py N. The steps are traced, as by traced.c."""

import logging
import sys

from relayfs_fuse import Event, TraceHandler

begin = Event("collatz", "begin", {"number": "u64"})
end = Event("collatz", "end", {"number": "u64", "steps": "u32", "steps_per_digit": "f64", "verdict": "string"})


def count_steps(number: int) -> int:
    """Count the steps until 1."""
    steps = 0
    while number > 1:
        number = 3 * number + 1 if number % 2 else number // 2
        steps += 1
    return steps


# Log messages become events, too: python:log.
logging.getLogger().addHandler(TraceHandler())

most = longest = 0
for number in range(1, int(sys.argv[1]) + 1):
    begin(number)
    steps = count_steps(number)
    # Skip this if no trace wants the event.
    if end.wanted:
        end(number, steps, steps / len(str(number)), "a record" if steps > most else "as others")
    if steps > most:
        most, longest = steps, number
logging.warning("%d takes %d steps", longest, most)
print(longest)
