"""Each layer knows only those on its left. What is written in one table here holds in all files."""

import ast
import functools
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from build import ROOT

PACKAGE = ROOT / "relayfs_fuse"
NATIVE = ROOT / "native"

# A module stands where it or the innermost package around it is named.
PYTHON_LAYERS = [
    {"errors", "explain", "inotify"},
    {"native.library", "native.constants"},
    {"native"},
    {"channel", "channel_reader", "counters", "handler", "reader", "ring", "shown", "trace"},
    {""},  # the package itself: it names the API
    {"tracefiles", "fs.mounts", "fs.tap", "fs.notes"},
    {"fs.taking", "fs.at_once"},
    {"reading"},
    {"fs.kinds", "fs.commands"},
    {"fs"},
    {"fs.commands.channel", "fs.traces"},
    {"fs.requests", "fs.upkeep"},
    {"fs.requests.files"},
    {"fs.server"},
    {"record", "lttng_live", "checking"},
    {"forwarding"},
    {"cli", "triggers"},
]

# The layers of native/src, its folders. Those of one rank do not know each other.
C_LAYERS = [
    {"base"},
    {"store"},
    {"buffer", "ring"},
    {"counters", "channel"},
    {"classic", "trace", "apps"},
    {"merge"},
]


# --- Python ---


def python_layer(module: str) -> int:
    parts = module.split(".")
    for n in range(len(parts), 0, -1):
        for rank, names in enumerate(PYTHON_LAYERS):
            if ".".join(parts[:n]) in names:
                return rank
    pytest.fail(f"relayfs_fuse.{module} has no place in PYTHON_LAYERS")


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def nodes_that_run(tree: ast.AST) -> Iterator[ast.AST]:
    """All but what `if TYPE_CHECKING` holds: to name a type needs nothing of its module."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from nodes_that_run(child)


@functools.cache
def imported_names(path: Path) -> list[str]:
    """Absolute dotted names, `from a import b` as a.b."""
    package = ["relayfs_fuse", *path.parent.relative_to(PACKAGE).parts]
    names: list[str] = []
    for node in nodes_that_run(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = [*start, *([node.module] if node.module else [])]
            names += (".".join([*base, alias.name]) for alias in node.names)
    return names


def own_module(name: str, modules: set[str]) -> str | None:
    """The module of the package that a dotted name lies in; the compiled one is a library to all others."""
    if (name + ".").startswith("relayfs_fuse._native.") or not (name + ".").startswith("relayfs_fuse."):
        return None
    inner = name.removeprefix("relayfs_fuse").removeprefix(".")
    while inner and inner not in modules:
        inner = inner.rpartition(".")[0]
    return inner


def python_graph() -> dict[str, set[str]]:
    paths = {module_name(path): path for path in PACKAGE.rglob("*.py")}
    modules = set(paths)
    return {
        module: {own for name in imported_names(path) if (own := own_module(name, modules)) is not None} - {module}
        for module, path in paths.items()
    }


def test_python_modules_import_only_from_their_left():
    wrong = [
        f"{module or '__init__'} imports {other or '__init__'}"
        for module, others in python_graph().items()
        for other in others
        if python_layer(other) > python_layer(module)
    ]
    assert not wrong


def test_python_modules_have_no_import_cycle():
    assert_no_cycle(python_graph())


# Which modules, or packages, import a library.
USERS = {
    "pyfuse3": {"fs.requests.files", "fs.requests.names", "fs.server"},
    "trio": {
        "cli.live",
        "fs.clock",
        "fs.requests",
        "fs.server",
        "fs.supervise",
        "fs.traces.deaths",
        "fs.traces.triggers",
        "fs.traces.watch",
        "fs.upkeep",
        "lttng_live",
    },
    "textual": {"cli.screen"},
    "rich": {"cli.screen"},
    "relayfs_fuse._native": {"native"},
    "starlette": {"cli.web"},
    "uvicorn": {"cli.web"},
    "nats": {"forwarding.server", "forwarding.receiver"},
}


def test_libraries_are_imported_only_where_they_belong():
    wrong = {
        f"{module_name(path)} imports {library}"
        for path in PACKAGE.rglob("*.py")
        for name in imported_names(path)
        for library, users in USERS.items()
        if f"{name}.".startswith(f"{library}.")
        and not any(f"{module_name(path)}.".startswith(f"{user}.") for user in users)
    }
    assert not wrong


# --- C ---

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"(?P<own>[^"]+)"|<relayfs/(?P<public>[^>]+)>)', re.MULTILINE)


def c_includes(path: Path) -> Iterator[tuple[str, bool]]:
    """File names, and whether it is an installed header."""
    for found in INCLUDE.finditer(path.read_text()):
        name = found["public"] or found["own"].removeprefix("relayfs/")
        yield name, found["public"] is not None or found["own"].startswith("relayfs/")


def c_rank(layer: str) -> int:
    for rank, layers in enumerate(C_LAYERS):
        if layer in layers:
            return rank
    pytest.fail(f"native/src/{layer} has no place in C_LAYERS")


def c_modules() -> dict[str, set[str]]:
    """What the modules of the library, each "layer/module" of its .h and .c, include of each other.

    Installed headers have no layer: whoever implements or uses an API may include it.
    """
    graph: dict[str, set[str]] = {}
    for path in (NATIVE / "src").rglob("*.[ch]"):
        module = str(path.relative_to(NATIVE / "src").with_suffix(""))
        others = {str(Path(name).with_suffix("")) for name, public in c_includes(path) if not public}
        graph.setdefault(module, set()).update(others - {module})
    return graph


def layer_of(module: str) -> str:
    return module.partition("/")[0]


def test_layers_include_only_from_their_left():
    wrong = [
        f"{module} includes {other}"
        for module, others in c_modules().items()
        for other in others
        if layer_of(other) != layer_of(module) and c_rank(layer_of(other)) >= c_rank(layer_of(module))
    ]
    assert not wrong


def test_modules_have_no_include_cycle():
    assert_no_cycle(c_modules())


def test_installed_headers_include_only_installed_ones():
    for path in (NATIVE / "include/relayfs").rglob("*.h"):
        assert all(public for _, public in c_includes(path)), path.name


def test_the_tap_includes_nothing_internal():
    own = {path.name for path in (NATIVE / "fuse").glob("*.h")}
    for path in (NATIVE / "fuse").glob("*.[ch]"):
        assert all(public or name in own for name, public in c_includes(path)), path.name


def assert_no_cycle(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
