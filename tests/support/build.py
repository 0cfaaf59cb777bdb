"""Build the C library and the C programs of the tests.

    prefix = native_prefix()                       # or native_prefix("address,undefined")
    program = compile_c([Path("stress_producer.c")])
    subprocess.run(run_command(program, args), env=run_environment(sanitize))

Products live in the environment's directory: an unprivileged user can enter it, and the next run,
or another worker of this one, finds them built. RELAYFS_SANITIZE restricts all tests to one build:
"" (plain), "address,undefined" or "thread". RELAYFS_C is where ./dev has installed the plain library.
"""

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Headers that C programs of several directories include.
C_SUPPORT = ROOT / "tests/native/support"
# What programs of several tests are made from.
PROGRAMS = ROOT / "tests/support/programs"
# With version.h.in, of which version.h is made.
HEADERS = sorted((ROOT / "native/include/relayfs").glob("*.h*"))

PLAIN = ""
MEMORY = "address,undefined"
THREADS = "thread"
# No sanitizer, but another C library.
MUSL = "musl"


@dataclass(frozen=True)
class Prefix:
    """An installed library; `sanitize` is the kind of its build."""

    path: Path
    sanitize: str

    @property
    def include(self) -> Path:
        return self.path / "include"

    @property
    def lib(self) -> Path:
        return self.path / "lib"

    @property
    def pkgconfig(self) -> Path:
        return self.lib / "pkgconfig"


def builds(*kinds: str) -> list[str]:
    """Return those of `kinds` (default: plain, address+undefined) that this run is to test."""
    wanted = kinds or (PLAIN, MEMORY)
    only = os.environ.get("RELAYFS_SANITIZE")
    return [kind for kind in wanted if only is None or kind == only]


@functools.cache
def native_prefix(sanitize: str = PLAIN) -> Prefix:
    """Build and install the library, unless its sources are those of the last time."""
    base = _products(sanitize)
    prefix = Prefix(base / "prefix", sanitize)
    _once(base / "stamp", _key_of_sources, functools.partial(_install, base, prefix))
    return prefix


def _install(base: Path, prefix: Prefix) -> None:
    made = os.environ.get("RELAYFS_C") if prefix.sanitize == PLAIN else None
    if made:
        # ./dev has compiled it of these sources.
        _copy_library(Path(made), prefix)
    elif not _taken_from_another_clone(base, prefix):
        build = base / "build"
        _configure(build, prefix)
        _run(_tool("cmake"), "--build", build)
        _run(_tool("cmake"), "--install", build, "--prefix", prefix.path)


def _copy_library(made: Path, prefix: Prefix) -> None:
    """Copy an installed library, without programs. Another run may be executing what was there."""
    prefix.path.mkdir(exist_ok=True)
    _run("cp", "-a", "--remove-destination", *(made / part for part in ("include", "lib", "share")), prefix.path)


def _taken_from_another_clone(base: Path, prefix: Prefix) -> bool:
    """Copy what another clone with this environment has built of the same sources; False: there is none."""
    key = _key_of_sources()
    for stamp in base.parents[1].glob(f"*/{base.name}/stamp"):
        if _says(stamp, key):
            _copy_library(stamp.with_name("prefix"), prefix)
            if _says(stamp, key):
                return True
    return False


def _says(stamp: Path, key: str) -> bool:
    try:
        return stamp.read_text() == key
    except FileNotFoundError:
        return False


def _configure(build: Path, prefix: Prefix) -> None:
    options = [f"-DCMAKE_INSTALL_PREFIX={prefix.path}", "-DCMAKE_INSTALL_LIBDIR=lib", "-DRELAYFS_WERROR=ON"]
    if prefix.sanitize != PLAIN:
        # As one file: it is compiled in a third of the time. What another C library changes, and what sanitizers look
        # for, is seen all the same.
        options += ["-DRELAYFS_ONE_FILE=ON"]
    if prefix.sanitize in (THREADS, MUSL):
        # Unoptimized, as few tests run long with it.
        options += ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS_DEBUG=-g1"]
    if prefix.sanitize == MEMORY:
        # clang compiles it in two thirds of gcc's time, and notes each branch, for libFuzzer. It warns of attributes
        # that only gcc knows. Optimized a bit: many tests run two to ten times as long with it otherwise.
        options += ["-DCMAKE_C_COMPILER=clang", f"-DRELAYFS_SANITIZE=fuzzer-no-link,{MEMORY}", "-DRELAYFS_WERROR=OFF"]
        options += ["-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
    if prefix.sanitize == THREADS:
        options += [f"-DRELAYFS_SANITIZE={THREADS}"]
    if prefix.sanitize == MUSL:
        options += ["-DCMAKE_C_COMPILER=musl-gcc", f"-DCMAKE_C_FLAGS=-idirafter {kernel_headers(build.parent)}"]
    _run(_tool("cmake"), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}", *options,
         "-S", ROOT / "native", "-B", build)  # fmt: skip


def _key_of_sources() -> str:
    found = hashlib.sha256(Path(__file__).read_bytes())  # which has the options
    for path in sorted((ROOT / "native").rglob("*")):
        if path.is_file():
            found.update(os.fsencode(path.relative_to(ROOT)) + path.read_bytes())
    return found.hexdigest()


def kernel_headers(base: Path) -> Path:
    """Make a directory of Linux's headers alone: Debian has them among glibc's, where musl-gcc does not look."""
    headers = base / "kernel"
    headers.mkdir(exist_ok=True)
    for name, path in (
        ("linux", "linux"),
        ("asm-generic", "asm-generic"),
        ("asm", f"{os.uname().machine}-linux-gnu/asm"),
    ):
        if not (headers / name).is_symlink():
            (headers / name).symlink_to(Path("/usr/include", path))
    return headers


def compile_c(sources: Sequence[Path], out: Path | None = None, sanitize: str = PLAIN, *flags: str) -> Path:
    """Compile and link a program with the library, warnings being errors.

    out    the program; by default a file named like the first source, beside the library, where it stays
    flags  further options for the compiler
    """
    if out is None:
        return _built_program(tuple(sources), sanitize, flags)
    _compile(sources, out, sanitize, flags)
    return out


@functools.cache
def _built_program(sources: tuple[Path, ...], sanitize: str, flags: tuple[str, ...]) -> Path:
    """Compile a program unless it has been compiled before, of the same text."""
    program = _default_program(native_prefix(sanitize), sources, flags)
    program.parent.mkdir(parents=True, exist_ok=True)
    files = program.with_name(f"{program.name}.files")

    def compile_and_list() -> None:
        rules = program.with_name(f"{program.name}.rules")
        rules.unlink(missing_ok=True)
        _compile(sources, program, sanitize, flags, rules)
        files.write_text("\n".join(sorted({*map(str, sources), *_headers_in(rules.read_text(), sanitize)})))

    _once(program.with_name(f"{program.name}.stamp"), lambda: _key_of_program(files, sanitize, flags), compile_and_list)
    return program


def _compile(
    sources: Sequence[Path], out: Path, sanitize: str, flags: Sequence[str], rules: Path | None = None
) -> None:
    """Compile and link; append to `rules` which headers each source includes, the system's among them."""
    prefix = native_prefix(sanitize)
    partial = out.with_name(f"{out.name}.{os.getpid()}")
    # -Xlinker and not -Wl: a comma in the path would end the option.
    rpath: list[str | Path] = ["-Xlinker", "-rpath", "-Xlinker", prefix.lib]
    # The first is for gcc, the others are for clang.
    words = ("SUNPRO_DEPENDENCIES", "CC_PRINT_HEADERS_FILE", "CC_PRINT_HEADERS")
    listing = dict.fromkeys(words, str(rules)) if rules else {}
    command: list[str | Path] = [*_compiler(prefix, flags), "-o", partial, *sources]
    _run(*command, f"-L{prefix.lib}", "-lrelayfs", *rpath, "-pthread", **listing)
    # Another run may be executing the old one.
    partial.replace(out)


def _headers_in(rules: str, sanitize: str) -> Iterator[str]:
    """Yield the paths that gcc's rules for make(1) name, with blanks and ends of lines escaped, or clang's lines."""
    if sanitize == MEMORY:
        yield from rules.splitlines()
        return
    for word in re.split(r"(?<!\\)\s+", rules.replace("\\\n", " ")):
        if word and not word.endswith(":"):
            yield re.sub(r"[\\$](.)", r"\1", word)


def _key_of_program(files: Path, sanitize: str, flags: Sequence[str]) -> str:
    """Tell programs apart by all that goes into them; `files` names what was read the last time, if it was compiled."""
    prefix = native_prefix(sanitize)
    library = prefix.lib / ("librelayfs.a" if "-static" in flags else "librelayfs.so")
    found = hashlib.sha256(os.fsencode(f"{_compiler(prefix, flags)}") + _digest(library))
    for path in files.read_text().splitlines() if files.exists() else ():
        found.update(os.fsencode(path) + _digest(Path(path)))
    return found.hexdigest()


@functools.cache
def _digest(path: Path) -> bytes:
    """Return the checksum of what a file holds; nothing if there is no such file."""
    return hashlib.sha256(path.read_bytes()).digest() if path.exists() else b""


def _compiler(prefix: Prefix, flags: Sequence[str]) -> list[str]:
    compiler = {MUSL: "musl-gcc", MEMORY: "clang"}.get(prefix.sanitize, "gcc")
    # The library's own headers come last: a test that includes one looks inside.
    own = [f"-I{ROOT / 'native/src'}", f"-I{C_SUPPORT}"]
    return [compiler, *_c_flags(prefix.sanitize), *flags, f"-I{prefix.include}", *own]


def run_environment(sanitize: str = PLAIN) -> dict[str, str]:
    """Return an environment in which every finding of a sanitizer ends the program with status 99."""
    del sanitize  # the variables of the others do no harm
    return {
        **os.environ,
        "ASAN_OPTIONS": "exitcode=99:abort_on_error=0:detect_leaks=1",
        "UBSAN_OPTIONS": "exitcode=99:halt_on_error=1:print_stacktrace=1",
        "TSAN_OPTIONS": "exitcode=99:halt_on_error=1",
    }


def run_command(program: Path, *args: object, sanitize: str = PLAIN) -> list[str]:
    """Return the command line that runs a program of this build."""
    # gcc 12's thread sanitizer cannot place its shadow where kernels randomise with 32 bits.
    prefix = ["setarch", "-R"] if sanitize == THREADS else []
    return [*prefix, str(program), *map(str, args)]


def _c_flags(sanitize: str) -> list[str]:
    # Unoptimized: most of these programs run for less time than it takes to compile them.
    flags = ["-std=gnu11", "-O0", "-g1"]
    if sanitize == MEMORY:
        # clang warns of more than gcc, which compiles the same programs plain, and lacks gcc's macro.
        flags += ["-w", "-D__SANITIZE_ADDRESS__"]
    else:
        flags += ["-Wall", "-Wextra", "-Wshadow", "-Wstrict-prototypes", "-Werror"]
    if sanitize and sanitize != MUSL:
        flags += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
    return flags


def _products(sanitize: str) -> Path:
    # One directory per clone, in case that several share an environment.
    clone = hashlib.sha256(os.fsencode(ROOT)).hexdigest()[:12]
    base = Path(sys.prefix) / "native" / clone / (sanitize.replace(",", "-") or "plain")
    base.mkdir(parents=True, exist_ok=True)
    return base


def _default_program(prefix: Prefix, sources: Sequence[Path], flags: Sequence[str]) -> Path:
    name = sources[0].stem
    if flags or len(sources) > 1:
        name += "-" + hashlib.sha256(repr((sources, flags)).encode()).hexdigest()[:8]
    # Programs of different directories may have the same name.
    return prefix.path / "programs" / sources[0].parent.relative_to(ROOT) / name


def _tool(name: str) -> str:
    beside_python = Path(sys.executable).with_name(name)
    found = str(beside_python) if beside_python.exists() else shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed; ./dev test installs it")
    return found


def _once(stamp: Path, key: Callable[[], str], make: Callable[[], None]) -> None:
    """Make something, one process at a time, unless it has been made with the same key."""
    with stamp.with_name(f"{stamp.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _says(stamp, key()):
            stamp.unlink(missing_ok=True)
            make()
            stamp.write_text(key())


def _run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout
