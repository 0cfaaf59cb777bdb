"""Runs of operations with the state after each, as a kernel was observed: on relay files of a mount.

Each run names what was done before each line of its section in relay-observed.txt. From such a line come the expected
produced, consumed, losses, poll events, sizes and lengths of reads, where no rule of model.Rules says otherwise.
`defect` is the line at which a defect of the kernel shows; from there on relayfs must only follow its own rules.
"""

import re
from contextlib import closing
from dataclasses import asdict, dataclass

import pytest
from conformance.model import KERNEL, READABLE, RELAYFS, Geometry, Model
from conformance.observations import COVERED, Observation, section
from conformance.relay_file import ProducedFile, RelayFile
from conformance.ring import SCHEMES, Ring
from conformance.sequences import Operation
from mounts import Mount


@dataclass(frozen=True)
class Run:
    """Lines of a section.

    setup: operations before the first of them
    steps: operations before each of them, separated by semicolons; empty: it is only looked
    """

    section: str
    geometry: Geometry
    steps: tuple[str, ...]
    setup: str = ""
    first_line: int = 0
    defect: int | None = None

    def lines(self) -> list[Observation]:
        return section(self.section)[self.first_line : self.first_line + len(self.steps)]


FILL = tuple(["w100"] * 14)
OVERWRITE_ONE = ("w100", "w100", "w100", "w100", "read 4096", "w100", "read 4096")
RUNS = [
    Run("D", Geometry(256, 4, False), ("w100*5", "reset", "w100; read 4096", "w100*20", "reset")),
    Run(
        "E", Geometry(256, 4, False),
        (
            "w100*7", "consumed 1", "consumed 5", "consumed 4", "read 4096", "w100*7; read 30", "consumed 1",
            "read 4096", "",
        ),
    ),
    Run("F", Geometry(256, 4, False), ("r0", "r256", "r257", "r0", "r1", "w0", "w257", "r300")),
    Run(
        "F", Geometry(256, 4, False, header=8, callbacks=True),
        ("", "w248", "w249", "w256", "w257", "w10", "flush", "w10", "flush", "flush", "read 4096", ""), first_line=8,
    ),
    Run(
        "G", Geometry(256, 3, False),
        ("flush", "flush", "flush", "flush", "w10", "read 4096", "", "read 4096", "", "w10", "read 4096"), defect=5,
    ),
    Run(
        "H", Geometry(256, 4, True),
        (
            "w100", "w100", "w100", "w100*3", "w100", "w100", "w100", "w100", "w100", "w100*10", "read 10", "read 90",
            "read 4096", "read 10", "w100*3; read 4096", "", "w100*2; read 50", "w100*12", "read 4096",
        ),
    ),
    Run("I", Geometry(200, 3, True), (*["w100"] * 12, "read 4096", "read 4096", "w100; read 4096")),
    Run("J", Geometry(256, 1, False), OVERWRITE_ONE),
    Run("J", Geometry(256, 1, True), OVERWRITE_ONE, first_line=len(OVERWRITE_ONE)),
    Run(
        "6", Geometry(256, 4, False),
        (
            "", "w56", "w100", "w100", "w100", "w100", "w100", "read 4096", "", "w100", "read 4096",
            "w100", "read 4096", "",
        ),
        "w56; flush; read 100",
    ),
    Run(
        "7", Geometry(256, 4, False),
        (*FILL, "read 150", "", "w100", "read 106", "", "w100", "read 65536", "", "w100", "read 65536", ""), "w56",
    ),
    Run(
        "8", Geometry(256, 4, False), ("", "flush", "read 99", "", "w56; read 99; flush", "read 99", ""), "w56; read 99"
    ),
    Run(
        "8", Geometry(256, 2, False),
        ("w56", "flush", "w56", "flush", "w56", "flush", "read 4096", "", "w56", "read 4096", ""), first_line=7,
    ),
    Run("9", Geometry(100, 4, False), ("", "w120", "w100", "w100", "w56", "read 4096", ""), "w56"),
    Run(
        "10", Geometry(200, 8, False), ("w60*13", "read 1", "read 59", "read 60", "read 61", "read 180", "read 4096"),
        "w56; read 56; flush; w56",
    ),
    Run("14", Geometry(256, 1, False), ("", "w100", "w100", "w100", "read 4096", "", "w100", "read 4096", ""), "w56"),
]  # fmt: skip
for run in RUNS:
    COVERED.update((run.section, line.label) for line in run.lines() if line.label)


def operations(text: str) -> list[Operation]:
    done = []
    for words in filter(None, text.split("; ")):
        verb, _, count = words.partition(" ")
        record = re.fullmatch(r"([wr])(\d+)(?:\*(\d+))?", verb)
        if record:
            kind = "write" if record[1] == "w" else "res"
            # What a record holds tells where it stands.
            done += [Operation(kind, int(record[2]), at * 7, 1) for at in range(int(record[3] or 1))]
        else:
            done.append(Operation(verb, int(count or 0)))
    return done


def stated(line: Observation, step: str) -> dict[str, int]:
    """Find what a line says, by the model's names."""
    names = {
        "prod": "produced",
        "cons": "consumed",
        "full": "lost_full",
        "dropped": "lost_full",
        "big": "lost_too_large",
    }
    found = {name: int(match[1]) for key, name in names.items() if (match := re.search(rf"\b{key}=(\d+)", line.result))}
    if match := re.search(r"poll=(\S+)", line.result):
        found["poll"] = 0 if match[1] == "0" else READABLE
    if match := re.search(r"\b(?:st_size=\+|size=)(\d+)", line.result):
        found["finished_bytes"] = int(match[1])
    if "read" in step and (match := re.match(r"\(?(\d+)\b|(b'')", line.result)):
        found["read_bytes"] = int(match[1] or 0)
    return found


def stats(model: Model, base: int, data: bytes) -> dict[str, int]:
    finished = model.n_bytes - len(model.current.data)
    return asdict(model.counters()) | {"finished_bytes": finished - base, "read_bytes": len(data)}


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.section}-{run.first_line}")
def test_states_are_as_observed(run: Run, producer: Ring, one_mount: Mount) -> None:
    with closing(ProducedFile(one_mount, "states/cpu", run.geometry, producer)) as relay_file:
        follow(run, relay_file)


DEFAULT_RUNS = [run for run in RUNS if not run.geometry.callbacks]


@pytest.mark.parametrize("run", DEFAULT_RUNS, ids=lambda run: f"{run.section}-{run.first_line}")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_states_are_as_observed_with_nothing_but_files(run: Run, scheme: str, one_mount: Mount) -> None:
    with closing(RelayFile(one_mount, "states/cpu", run.geometry, scheme)) as relay_file:
        follow(run, relay_file)


def follow(run: Run, relay_file: RelayFile | ProducedFile) -> None:
    kernel, ours = (Model(run.geometry, rules=rules) for rules in (KERNEL, RELAYFS))
    for operation in operations(run.setup):
        assert operation.perform(relay_file) == operation.perform(ours) == operation.perform(kernel)
    base = ours.n_bytes - len(ours.current.data)
    for at, (line, step) in enumerate(zip(run.lines(), run.steps, strict=True)):
        data = kernel_data = b""
        for operation in operations(step):
            data, kernel_data = operation.perform(ours), operation.perform(kernel)
            assert operation.perform(relay_file) == data, line
        assert relay_file.counters() == ours.counters(), line
        assert relay_file.size() == ours.n_bytes, line
        if run.defect is not None and at >= run.defect:
            continue
        by_rules, of_kernel = stats(ours, base, data), stats(kernel, base, kernel_data)
        for name, value in stated(line, step).items():
            if by_rules[name] == of_kernel[name]:
                assert by_rules[name] == value, (name, line)
        assert all(bytes.fromhex(part) in data for part in re.findall(r"'((?:[0-9a-f]{2}){8,})'", line.result)), line


def test_what_lines_state_is_understood() -> None:
    understood = [stated(*line) for run in RUNS for line in zip(run.lines(), run.steps, strict=True)]
    assert sum(bool(found) for found in understood) > 0.9 * len(understood)
