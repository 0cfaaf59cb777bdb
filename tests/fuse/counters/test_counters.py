"""The counters of a mount: its files, the proposal's reader, the server's own figures, how many names there are."""

import errno
import mmap
import os
import select
import signal
import subprocess
from pathlib import Path

import forking
import pytest
from build import compile_c, native_prefix
from counting import HOLD, names, own_names, values, write_names
from mounts import DEADLINE_S, RELAYFS, User, wait_until

from relayfs_fuse import Counters, native

HERE = Path(__file__).parent
RELAYCTL = RELAYFS.with_name("relayctl")
# Additions and deletions together.
CHANGES = 20_000
TWICE = "  Command: add a kind=gauge kind=gauge\n"


def test_what_is_added_is_listed_and_counted(mount, counters):
    n = counters.add("disk/sda/write_io", native.CounterSpec(0, "requests", "Finished writes"))
    gauge = counters.add("disk/sda/queue", native.CounterSpec(1))
    counters.adjust(n, 5)
    counters.adjust(gauge, -7)
    assert own_names(mount) == {"disk/sda/write_io": n, "disk/sda/queue": gauge}
    line = next(line for line in (mount.path / "counters.names").read_text().splitlines() if "write_io" in line)
    uid, gid = os.geteuid(), os.getegid()
    assert line == (
        f"{n} disk/sda/write_io kind=counter uid={uid} gid={gid} mode=0200 unit=requests help=Finished writes"
    )
    assert values(mount)["disk/sda/write_io"] == 5
    assert values(mount)["disk/sda/queue"] == -7
    counters.delete(n)
    assert own_names(mount) == {"disk/sda/queue": gauge}
    assert "disk/sda/write_io" not in values(mount)


def test_shells_add_and_delete(mount):
    write_names(mount, "add a/b kind=gauge unit=bytes mode=0220 help=What is = here, and more\nadd a/c\n")
    assert own_names(mount).keys() == {"a/b", "a/c"}
    assert " kind=gauge " in (mount.path / "counters.names").read_text()
    assert "mode=0220 unit=bytes help=What is = here, and more\n" in (mount.path / "counters.names").read_text()
    write_names(mount, f"del {own_names(mount)['a/b']}")
    assert own_names(mount).keys() == {"a/c"}


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("frob a", errno.EINVAL, "frob: unknown"),
        ("add", errno.EINVAL, "name '': its parts"),
        ("add /a", errno.EINVAL, "name '/a': its parts, between single slashes"),
        ("add a\x01", errno.EINVAL, "the name has a control character"),
        ("add a kind=other", errno.EINVAL, "not one of counter, gauge"),
        ("add a mode=8", errno.EINVAL, "three octal digits, such as 0220"),
        ("add a colour=red", errno.EINVAL, "not one of kind="),
        ("add a kind=gauge kind=gauge", errno.EINVAL, f"is given twice [EINVAL]\n{TWICE}{' ' * 28}^\n"),
        (f"add {'x' * 300}", errno.ENAMETOOLONG, "the name is longer than 255 bytes; it has 300"),
        (f"add a unit={'x' * 32}", errno.EINVAL, "the unit is longer than 31 bytes; it has 32"),
        (f"add a help={'x' * 192}", errno.EINVAL, "the help is longer than 191 bytes; it has 192"),
        ("  del x", errno.EINVAL, f"in counters.names [EINVAL]\n  Command:   del x\n{' ' * 17}^\n"),
        ("del 77", errno.ENOENT, "no such counter"),
        ("adjust 77", errno.EINVAL, "adjust 77: adjust takes NUMBER"),
        ("adjust 77 1 1", errno.EINVAL, "adjust 77 1 1: adjust takes NUMBER"),
        ("adjust 1 9223372036854775808", errno.EINVAL, "from -2^63 to 2^63-1"),
        ("adjust 77 1", errno.ENOENT, f"no such counter [ENOENT]\n  Command: adjust 77 1\n{' ' * 18}^\n"),
    ],
)
def test_bad_commands_are_refused_and_explained(mount, line, code, message):
    with pytest.raises(OSError) as error:
        write_names(mount, line)
    assert error.value.errno == code
    assert message in mount.error_log
    assert own_names(mount) == {}


def test_the_limit_is_what_the_mount_says(make_mount):
    mount = make_mount("counters=30")
    before = len(names(mount))
    for i in range(30 - before):
        write_names(mount, f"add a/{i}")
    with pytest.raises(OSError) as error:
        write_names(mount, "add a/more")
    assert error.value.errno == errno.ENOSPC
    assert "-o counters=N" in mount.error_log


def test_the_file_is_mapped_to_be_read_and_not_written(mount, counters, mapped_through):
    n = counters.add("a", native.CounterSpec())
    path = mount.path / "counters"
    with pytest.raises(PermissionError):
        os.open(path, os.O_RDWR)
    with pytest.raises(PermissionError):
        path.open("ab")
    with pytest.raises(PermissionError):
        os.truncate(path, 0)
    descriptor = os.open(path, os.O_RDONLY)
    with pytest.raises(PermissionError):
        mmap.mmap(descriptor, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    view = mmap.mmap(descriptor, 0, mmap.MAP_SHARED, mmap.PROT_READ)
    os.close(descriptor)
    assert len(view) == path.stat().st_size == len(path.read_bytes())
    at = counters.data_at + n // counters.slots * counters.n_blocks * 4096 + n % counters.slots * 8
    for i in range(100):
        counters.adjust(n, 1)
        words = [view[at + 4096 * block : at + 4096 * block + 8] for block in range(counters.n_blocks)]
        assert sum(int.from_bytes(word, "little") for word in words) == i + 1


def test_the_loop_of_the_proposal_reads_through_additions_and_deletions(mount, mapped_through, tmp_path):
    loop = tmp_path / "counters_loop"
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{native_prefix().include}"]
    subprocess.run(["gcc", *flags, "-o", loop, HERE / "counters_loop.c"], check=True)
    churn = compile_c([HERE / "counters_churn.c"])
    command = [loop, mount.path / "counters", mount.path / "counters.names"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        # The first copy is of a generation before the changes, the last one of the generation behind them.
        assert reader.stdout is not None
        assert select.select([reader.stdout], [], [], DEADLINE_S)[0], "it has copied nothing"
        assert reader.stdout.readline() == "copied\n"
        done = subprocess.run(
            [churn, mount.path, str(CHANGES)], capture_output=True, text=True, timeout=DEADLINE_S, check=True
        )
        reader.send_signal(signal.SIGTERM)
        out, _ = reader.communicate(timeout=DEADLINE_S)
    assert reader.returncode == 0
    copies, generations, total = map(int, out.split())
    assert copies > 0
    assert generations > 1
    assert total == int(done.stdout)


def test_a_restarted_server_has_the_same_counters(mount, counters):
    n = counters.add("a/b", native.CounterSpec())
    counters.adjust(n, 3)
    mount.kill()
    counters.adjust(n, 4)
    subprocess.run(["fusermount3", "-u", "-z", mount.path], check=True)
    mount.start()
    assert own_names(mount) == {"a/b": n}
    assert values(mount)["a/b"] == 7
    counters.adjust(n, 1)
    assert values(mount)["a/b"] == 8


def test_counters_that_are_damaged_do_not_keep_a_store_from_being_mounted(mount):
    mount.kill()
    subprocess.run(["fusermount3", "-u", "-z", mount.path], check=True)
    os.truncate(mount.store / ".counters/counters", 100)
    mount.expect("cannot be used")
    mount.start()
    assert not (mount.path / "counters").exists()
    assert ".counters cannot be used" in mount.error_log
    mount.create("app/cpu")


def test_a_change_that_its_maker_did_not_live_to_end_is_ended(mount, counters):
    with (mount.store / ".counters/counters").open("r+b") as file:
        file.seek(16)
        file.write((1 << 40).to_bytes(8, "little"))
    wait_until(lambda: not counters.is_changing(), "nobody ends it")
    assert (mount.path / "counters.names").read_text().startswith(f"gen {1 << 40}\n")


def test_a_channel_that_is_spoilt_keeps_no_other_from_being_counted(mount, counters):
    spoilt, sound = (mount.create(name, "buffers=single subbuf_size=4K n_subbufs=4") for name in ("spoilt", "sound"))
    spoilt.write_bytes(b"record\n")
    assert values(mount)["relayfs/channels/spoilt/records"] == 1
    mount.expect("spoilt is damaged: mem0: ")
    os.truncate(mount.store / "spoilt/mem0", 0)
    sound.write_bytes(b"record\n")
    assert values(mount)["relayfs/channels/sound/records"] == 1
    assert (mount.path / "counters").read_bytes()


def test_somebody_elses_truncation_is_told(mount, counters):
    counters.add("a", native.CounterSpec())
    mount.expect("somebody has damaged the counters")
    os.truncate(mount.store / ".counters/counters", 0)
    wait_until(lambda: "damaged the counters" in mount.error_log, lambda: mount.error_log)
    with pytest.raises(OSError) as error:
        write_names(mount, "add b")
    assert error.value.errno == errno.EBADMSG
    with pytest.raises(OSError) as error:
        (mount.path / "counters.txt").read_bytes()
    assert error.value.errno == errno.EBADMSG
    assert {path.name for path in mount.path.iterdir() if path.stat().st_size} == {"control", "error_log"}
    mount.create("app/cpu")


# --- the server's own figures ---


def test_channels_figures_are_counters(mount):
    path = mount.create("app/log", "buffers=single subbuf_size=4K n_subbufs=4")
    for _ in range(5):
        path.write_bytes(b"record\n")
    path.read_bytes()
    found = values(mount)
    assert found["relayfs/channels/app/log/records"] == 5
    assert found["relayfs/channels/app/log/bytes"] == 35
    assert found["relayfs/channels/app/log/reads"] >= 1
    assert found["relayfs/channels/app/log/lost_full"] == 0
    assert found["relayfs/server/requests"] > 0
    for statistic in ("produced", "consumed", "unread_bytes", "lost_overwritten", "wakeups"):
        assert found[f"relayfs/channels/app/log/{statistic}"] == int(mount.shown("app/log", statistic))
    mount.command("remove app/log")
    assert not any("app/log" in name for name in values(mount))


def test_figures_are_set_without_being_asked_for(mount, counters):
    path = mount.create("log", "buffers=single")
    wait_until(lambda: "relayfs/channels/log/records" in names(mount), "no figures")
    counters.refresh()
    n = counters.find("relayfs/channels/log/records")
    path.write_bytes(b"record\n")
    wait_until(lambda: counters.sum(n) == 1, "not set")


def test_figures_of_channels_that_went_with_a_server_go(mount):
    mount.create("log")
    assert "relayfs/channels/log/records" in values(mount)
    mount.kill()
    subprocess.run(["fusermount3", "-u", "-z", mount.path], check=True)
    subprocess.run(["rm", "-r", mount.store / "log"], check=True)
    mount.start()
    assert not any("channels/log" in name for name in values(mount))


# --- names are freed, and nobody takes all of them ---


def test_figures_of_channels_that_come_and_go_leave_their_names_to_others(make_mount):
    mount = make_mount("counters=60")
    for i in range(12):
        mount.create(f"c{i}", "buffers=single subbuf_size=4K n_subbufs=4")
        assert values(mount)[f"relayfs/channels/c{i}/records"] == 0
        (mount.path / f"c{i}").write_bytes(b"record\n" * (i + 1))
        assert values(mount)[f"relayfs/channels/c{i}/bytes"] == 7 * (i + 1)
        mount.command(f"remove c{i}")
        assert not any("channels" in name for name in values(mount))
    write_names(mount, "add a/b")
    assert own_names(mount).keys() == {"a/b"}


def test_channels_take_half_of_all_names_and_get_them_when_others_go(make_mount):
    mount = make_mount("counters=60")
    for i in range(4):
        mount.create(f"c{i}", "buffers=single subbuf_size=4K n_subbufs=4")
        values(mount)
    shown = {name.split("/")[2] for name in values(mount) if "channels" in name}
    assert len(shown) == 2
    for i in range(30):
        write_names(mount, f"add a/{i}")
    for path in shown:
        mount.command(f"remove {path}")
    values(mount)
    assert {name.split("/")[2] for name in values(mount) if "channels" in name} == {"c0", "c1", "c2", "c3"} - shown


def test_a_user_has_a_quota_of_names_and_the_refusal_says_so(make_mount, unprivileged: User):
    mount = make_mount("counters=320,control_mode=0666")
    add = f'for i in $(seq 21); do echo "add theirs/$i" >{mount.path}/counters.names || exit $i; done'
    assert unprivileged.run("bash", "-c", add).returncode == 21
    assert len(own_names(mount)) == 20
    assert "20 names" in mount.error_log
    write_names(mount, "add roots/a")
    assert User(12345, 12345).python(HOLD, mount.path, "others/a", "0200").returncode == 0


def test_one_user_does_not_take_the_places_of_all_owners(open_mount, unprivileged: User):
    mount = open_mount
    for mode in ("0200", "0220", "0222", "0202"):
        assert unprivileged.python(HOLD, mount.path, f"g{mode}/a", mode).returncode == 0
    assert "Disk quota exceeded" in unprivileged.python(HOLD, mount.path, "more/a", "0002").stderr
    # What is deleted is room again.
    number = own_names(mount)["g0202/a"]
    assert unprivileged.run("sh", "-c", f"echo del {number} >{mount.path}/counters.names").returncode == 0
    assert unprivileged.run("sh", "-c", f"echo add new/a mode=0002 >{mount.path}/counters.names").returncode == 0
    assert not (mount.path / f".counters/{unprivileged.uid}-{unprivileged.gid}-0606").exists()


def test_names_of_an_older_store_that_are_no_text_are_shown_as_they_are(make_mount, scratch_store):
    scratch_store.mkdir(0o700, exist_ok=True)
    (scratch_store / ".lock").touch()
    with Counters(scratch_store) as counters:
        counters.add("cafe/12", help="help")
    names = scratch_store / ".counters/names"
    names.write_bytes(names.read_bytes().replace(b"cafe/12", b"caf\xe9/\xff\xfe").replace(b"help\0", b"h\xc3(p\0"))
    mount = make_mount()
    assert b"caf\xe9/\xff\xfe kind=counter" in (mount.path / "counters.names").read_bytes()
    assert b"caf\xe9/\xff\xfe 0\n" in (mount.path / "counters.txt").read_bytes()
    shown = forking.run([RELAYCTL, "counters", "-m", mount.path, "caf*"], capture_output=True, check=False)
    assert (shown.returncode, shown.stdout.split()[1:], shown.stderr) == (0, [rb"caf\xe9/\xff\xfe"], b"")


def test_commands_that_are_no_text_are_refused(mount):
    descriptor = os.open(mount.path / "counters.names", os.O_WRONLY)
    for line in (b"frob\xff\xfe\n", b"add \xff kind=\xff\n", b"del \xff\n", b"add \xff/a mode=\xfe\n"):
        with pytest.raises(OSError, match="Invalid argument"):
            os.write(descriptor, line)
    os.close(descriptor)
    assert (mount.path / "error_log").read_bytes()


def test_nobody_takes_the_group_of_the_figures(open_mount, unprivileged: User):
    assert "PermissionError" in unprivileged.python(HOLD, open_mount.path, "relayfs/channels/x/records", "0200").stderr


def test_counters_of_a_user_count_against_his_share_of_the_memory(make_mount, unprivileged: User):
    mount = make_mount("size=64M,user_size=1M,control_mode=0666")
    create = f"echo create big buffers=single subbuf_size=128K n_subbufs=7 >{mount.control}"
    assert unprivileged.run("sh", "-c", create).returncode == 0
    refused = unprivileged.python(HOLD, mount.path, "theirs/a", "0200").stderr
    if native.n_possible_cpus() < 20:
        assert refused == ""
    create = f"echo create more buffers=single subbuf_size=4K n_subbufs=20 >{mount.control}"
    unprivileged.run("sh", "-c", create)
    for mode in ("0220", "0222", "0202"):
        refused += unprivileged.python(HOLD, mount.path, f"g{mode}/a", mode).stderr
    assert "No space left on device" in refused
    assert "user_size" in mount.error_log
    assert User(12345, 12345).python(HOLD, mount.path, "others/a", "0200").returncode == 0


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_list_of_many_counters_is_made_in_milliseconds(mount, counters):
    """Each change makes a new list, and whoever lists the mount's directory asks how long it is."""
    for i in range(8000):
        counters.add(f"g/{i}", native.CounterSpec(help="x" * 100))
    start = cpu_seconds(mount.server)
    for i in range(40):
        counters.add(f"more/{i}", native.CounterSpec())
        assert (mount.path / "counters.names").stat().st_size > 8000 * 100
    assert (cpu_seconds(mount.server) - start) / 40 < 0.03
    assert len(names(mount)) == 8040 + 2
