"""relayctl live: babeltrace2 shows traces while programs write them."""

from showing import serving

from relayfs_fuse import native

LAST_CPU = native.n_possible_cpus() - 1


def test_babeltrace2_shows_programs_that_come_and_go(store, run):
    trace = store.create("t")
    with serving("t", "--store", store.path) as server, server.showing("t") as shown:
        for n in range(6):
            program = run(trace, f"app{n}", cpu=n % native.n_possible_cpus())
            assert program.write_patiently(200) == 0
            program.declare("second")
            assert program.write_patiently(10) == 0
            program.end()
            shown.wait_for(lambda n=n: len(shown.lines) >= 210 * (n + 1))
        for n in range(6):
            assert shown.numbers(f"app{n}") == list(range(210))
        times = [event.ns for event in shown.events()]
        assert times == sorted(times)
        shown.finish()
        assert shown.lost() == 0
        server.finish()
