"""./dev install with a prefix of one's own; test_readme.py installs for everybody. And relayfs without its server."""

import os
import re
import subprocess
import sys
from importlib import util
from pathlib import Path
from zipfile import ZipFile

import pytest
from build import ROOT
from mounts import NOBODY, Mount

from relayfs_fuse import native
from relayfs_fuse.cli import relayctl

INSTALL = ROOT / "packaging/install.py"
ENVIRONMENT = Path(os.environ["RELAYFS_ENV"])
spec = util.spec_from_file_location("install", INSTALL)
assert spec is not None
assert spec.loader is not None
install = util.module_from_spec(spec)
spec.loader.exec_module(install)


def dev(*words: str | Path, fails: bool = False) -> str:
    done = subprocess.run([ROOT / "dev", *words], capture_output=True, text=True, check=False)
    assert bool(done.returncode) == fails, done.stderr
    return done.stderr if fails else done.stdout


def listing(top: Path) -> list[str]:
    return sorted(f"{path} {path.is_dir()} {path.is_symlink()}" for path in top.rglob("*"))


def output(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """An installation in a directory with blanks and a comma, in which others have something, too."""
    path = tmp_path_factory.mktemp("a prefix, so to say")
    (path / "bin").mkdir()
    (path / "bin/other").touch()
    before = listing(path)
    dev("install", "--prefix", path)
    assert listing(path) != before
    yield path
    dev("uninstall", "--prefix", path)
    assert listing(path) == before


def test_what_is_installed_needs_neither_the_clone_nor_its_environment(prefix):
    linked = [os.readlink(path) for path in prefix.rglob("*") if path.is_symlink()]
    texts = [path.read_bytes() for path in [*prefix.rglob("bin/*"), *prefix.rglob("*.cfg")] if path.is_file()]
    assert not [target for target in linked if target.startswith((str(ROOT), str(ENVIRONMENT)))]
    assert not [text for text in texts if os.fsencode(ROOT) in text or os.fsencode(ENVIRONMENT) in text]
    assert output(prefix / "bin/relayctl", "-V") == f"relayctl {native.VERSION}\n"
    assert output(prefix / "sbin/mount.relayfs", "-V") == f"mount.relayfs {native.VERSION}\n"
    assert output(prefix / "lib/relayfs/bin/python", "-c", "import relayfs_fuse; print(relayfs_fuse.__file__)") == (
        f"{prefix}/lib/relayfs/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/relayfs_fuse/__init__.py\n"
    )


def test_programs_link_with_what_is_installed(prefix, tmp_path):
    environment = {**os.environ, "PKG_CONFIG_PATH": f"{prefix}/lib/pkgconfig"}
    environment.pop("LD_LIBRARY_PATH", None)  # the .pc tells the loader where the library is
    for static in ("", "-static"):
        flags = "$(pkg-config --cflags --libs relayfs)"
        script = f"eval cc {static} -o '{tmp_path}/producer' '{ROOT}/examples/producer.c' {flags}"
        subprocess.run(["sh", "-c", script], env=environment, check=True)
        done = subprocess.run(
            [tmp_path / "producer", tmp_path / "none"], env=environment, capture_output=True, check=False
        )
        assert done.stderr.startswith(f"producer: {tmp_path}/none: ".encode())


@pytest.mark.parametrize(("unit", "program"), list(zip(install.UNITS, ["relayfs", "relayctl"], strict=True)))
def test_the_units_start_what_is_installed(prefix, unit, program):
    unit = prefix / unit
    assert f'\nExecStart="{prefix}/bin/{program}" ' in unit.read_text()
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_installing_again_replaces_what_was_installed(prefix):
    before = listing(prefix / "bin")
    (prefix / "lib/relayfs/left-over").touch()
    (prefix / "bin/relayctl").unlink()
    dev("install", "--prefix", prefix)
    assert listing(prefix / "bin") == before
    assert not (prefix / "lib/relayfs/left-over").exists()


def test_files_of_others_are_neither_replaced_nor_removed(tmp_path):
    stranger = tmp_path / "bin/relayctl"
    stranger.parent.mkdir()
    stranger.write_text("mine")
    before = listing(tmp_path)
    said = dev("install", "--prefix", tmp_path, fails=True)
    assert f"remove them first:\n  {stranger}\n" in said
    assert (listing(tmp_path), stranger.read_text()) == (before, "mine")


def test_a_link_that_has_become_anothers_stays(tmp_path):
    """A package may have taken its place."""
    entry = install.Entry("link", tmp_path / "relayctl", "ours")
    entry.path.symlink_to("theirs")
    install.remove(tmp_path / "home", [entry])
    assert os.readlink(entry.path) == "theirs"


def test_what_fails_halfway_is_taken_back(tmp_path):
    (tmp_path / "environment/c").mkdir(parents=True)  # without packages
    done = subprocess.run([sys.executable, INSTALL, "install", tmp_path / "prefix", tmp_path / "environment"],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 1
    assert "dev: " in done.stderr
    assert not (tmp_path / "prefix").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["install", "--prefix", "a\tb"], "has a tab or a line break"),
        (["install", "--prefix"], "--prefix needs a directory"),
        (["install", "/opt"], "/opt is no option here"),
        (["uninstall", "--prefix", "/var/empty"], "nothing is installed there"),
    ],
)
def test_what_cannot_be_done_is_said(words, reason):
    assert reason in dev(*words, fails=True)


def test_help_is_given_and_nothing_installed():
    for command in ("install", "uninstall"):
        assert dev(command, "--help").startswith("usage: ./dev COMMAND\n")


# --- without the server ---


@pytest.fixture(scope="module")
def wheel(prefix, tmp_path_factory) -> Path:
    """What ./dev wheel makes."""
    return Path(dev("wheel", tmp_path_factory.mktemp("a wheel")).strip())


@pytest.fixture(scope="module")
def clients(wheel, tmp_path_factory) -> Path:
    """The programs of an environment in which the wheel is installed without the extra for servers, and no compiler."""
    path = tmp_path_factory.mktemp("clients")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", path / "bin/python", "install", "-q", "--no-index", "--no-compile",
         "--only-binary=:all:", f"--find-links={ENVIRONMENT / 'wheels'}", wheel],
        check=True, env={**os.environ, "PATH": str(path)},
    )  # fmt: skip
    assert not list(path.rglob("pyfuse3*"))
    return path / "bin"


CLIENT = """
import sys
from relayfs_fuse import Channel, Reader, Ring
with Channel(sys.argv[1]) as channel, Ring(sys.argv[2]) as ring:
    channel.write(b"a record")
    channel.flush()
    ring.output(b"another")
with Reader(sys.argv[1]) as reader:
    print(bytes(next(iter(reader))).decode())
"""


def test_the_wheel_is_for_any_linux_with_the_glibc_whose_symbols_it_uses(wheel, tmp_path):
    named = re.fullmatch(r"relayfs-[\d.]+-cp311-abi3-manylinux_2_(\d+)_\w+\.whl", wheel.name)
    assert named
    with ZipFile(wheel) as packed:
        libraries = [packed.extract(name, tmp_path) for name in packed.namelist() if ".so" in name]
    versions = re.findall(r"Name: GLIBC_2\.(\d+)", output("readelf", "-V", *libraries))
    assert versions
    assert max(map(int, versions)) == int(named[1])
    # Nothing of libfuse is in it, and no other library than the C library is needed by what clients load.
    assert {Path(name).name for name in libraries} == {
        "_native.abi3.so", "librelayfs.so", "librelayfs.so.0", "librelayfs_tap.so",
    }  # fmt: skip
    needed = {
        name: re.findall(r"NEEDED +(\S+)", output("objdump", "-p", tmp_path / "relayfs_fuse" / name))
        for name in ("_native.abi3.so", "lib/librelayfs.so.0", "lib/librelayfs_tap.so")
    }
    assert "libfuse3.so.3" in needed.pop("lib/librelayfs_tap.so")
    assert {one for names in needed.values() for one in names} <= {
        "libc.so.6",
        "librelayfs.so.0",
        "ld-linux-x86-64.so.2",
    }


def test_clients_need_no_pyfuse3(clients, mount: Mount):
    channel, ring = (
        mount.create("log", "buffers=single read=nowait"),
        mount.create("events", "type=ring framing=line buffers=global"),
    )
    mount.command("trace create web")
    assert output(clients / "python", "-c", CLIENT, channel, ring) == "a record\n"
    assert Path(f"{ring}0").read_bytes() == b"another\n"
    assert output(clients / "relayctl", "trace", "list", "-m", mount.path).split()[:2] == ["web", "stopped"]
    assert "relayfs/server/requests" in output(clients / "relayctl", "counters", "-m", mount.path)
    for command in relayctl.COMMANDS:
        assert output(clients / "relayctl", command, "--help").startswith(f"Usage: relayctl {command} ")


def test_a_server_without_pyfuse3_says_what_to_install(clients, tmp_path):
    for foreground in ([], ["-f"]):
        done = subprocess.run([clients / "relayfs", tmp_path, *foreground], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == "relayfs: the file server needs pyfuse3; `pip install 'relayfs[server]'` installs it\n"
    assert output(clients / "relayfs", "-V") == f"relayfs {native.VERSION}\n"


@pytest.mark.usefixtures("unprivileged")
@pytest.mark.parametrize("place", [".", "lib", "lib/relayfs"])
@pytest.mark.parametrize("change", [lambda path: os.chown(path, NOBODY, NOBODY), lambda path: path.chmod(0o777)])
def test_root_does_not_follow_the_manifest_of_another_user(tmp_path, place, change):
    kept = tmp_path / "kept"
    kept.touch()
    home = tmp_path / "prefix/lib/relayfs"
    home.mkdir(parents=True)
    (home / "manifest").write_text(f"file\t{kept}\t\n")
    changed = tmp_path / "prefix" / place
    change(changed)
    said = dev("uninstall", "--prefix", tmp_path / "prefix", fails=True)
    assert said == f"dev: {changed} can be changed by other users: root needs a directory of root's own\n"
    with pytest.raises(SystemExit, match="root's own"):
        install.main("install", tmp_path / "prefix", str(ENVIRONMENT))
    assert kept.exists()
