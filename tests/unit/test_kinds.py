"""What depends on the kind of a channel, relay buffers or rings, is decided in the kind's own files."""

import ast
from collections.abc import Iterator

from build import ROOT

from relayfs_fuse.fs.kinds.channel import KINDS
from relayfs_fuse.native.tables import TYPES

PACKAGE = ROOT / "relayfs_fuse"
# The two kinds, as the C library has them and as the file server has them.
KIND_FILES = [
    PACKAGE / name
    for name in ("native/buffer.py", "native/ring.py", "fs/kinds/queues.py", "fs/kinds/relay.py", "fs/kinds/ring.py")
]
# How many questions of kind there may be elsewhere.
MOST = 0


def classes_of_kinds() -> set[str]:
    trees = [ast.parse(path.read_text()) for path in KIND_FILES]
    return {node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}


def names_in(node: ast.AST) -> set[str]:
    found = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return found | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def questions(tree: ast.AST, kinds: set[str]) -> Iterator[int]:
    """Yield the lines that ask for a kind: by isinstance(), by match, by comparing, or by a property that says it."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            asks = bool(names_in(node.args[1]) & kinds)
        elif isinstance(node, ast.MatchClass):
            asks = bool(names_in(node.cls) & kinds)
        elif isinstance(node, ast.Compare):
            words = {one.value for one in (node.left, *node.comparators) if isinstance(one, ast.Constant)}
            asks = bool(names_in(node) & kinds or words & {*TYPES})
        else:
            asks = isinstance(node, ast.Attribute) and node.attr in ("is_ring", "is_relay")
        if asks:
            yield node.lineno


def test_only_the_kinds_own_files_know_which_kind_it_is():
    kinds = classes_of_kinds() | {"RELAY", "RING"}
    assert {"Buffer", "Stats", "RingMemory", "RingStats", "StoredBuffer", "StoredRing", "BufferHandle"} <= kinds
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path not in KIND_FILES
        for line in questions(ast.parse(path.read_text()), kinds)
    ]
    assert len(found) <= MOST, (
        f"{', '.join(found)}: relay buffer or ring? Let the object answer. What holds for a channel is in Kind, "
        "for one of its buffers a method of Stored (both in relayfs_fuse/fs/kinds/base.py), for an open relay file one "
        "of RelayHandle (handles.py there), for mapped memory one of native.ChannelMemory."
    )


def test_every_type_of_channel_is_a_kind():
    assert list(KINDS) == list(TYPES)


def attributes_set(function: ast.AST) -> set[str]:
    found = [one for one in ast.walk(function) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)]
    return {one.attr for one in found if isinstance(one.value, ast.Name) and one.value.id == "self"}


def test_a_buffer_gets_all_its_attributes_when_it_is_made():
    """To an object that gets others later, Python gives a dictionary of its own: 800 bytes, for each buffer in use."""
    trees = [ast.parse(path.read_text()) for path in sorted((PACKAGE / "fs/kinds").glob("*.py"))]
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    functions = [
        node
        for one in classes
        if one.name.startswith("Stored") and one.name not in ("StoredChannel", "StoredHandle")
        for node in one.body
        if isinstance(node, ast.FunctionDef)
    ]
    made = set().union(*(attributes_set(one) for one in functions if one.name == "__init__"))
    later = set().union(*(attributes_set(one) for one in functions if one.name != "__init__"))
    assert {"mappable", "_bare", "rests_until"} <= made
    assert later <= made, later - made
