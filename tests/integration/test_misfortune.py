"""What else can happen to a federation: slow and lying workers, bad disks, signals, a wrong clock.

In every test the round comes out right in the end, or is done anew, and the operator is told why.
"""

import resource
import signal

import numpy as np
import pytest

# How long a worker is waited for in vain; the others have no longer to answer.
MEASURE_S = 5

# The model fits into a disk of this size, and the updates do not.
SMALL_DISK = 128 * 2**10

# No row has room in memory, so that all lie on the disk.
SPOOLED = {"memory_mib": 0}

# The enclave's service on a wall clock that is wrong by what a file says.
WRONG_CLOCK = """
import sys, time
from pathlib import Path
right, wrong_by = time.time, Path(sys.argv.pop(1))
time.time = lambda: right() + float(wrong_by.read_text())
from ostraka.enclave.__main__ import main
sys.exit(main())
"""


def attempts(play):
    return [event["workers"] for event in play.told("AttemptStarted")]


def start_all(play, *, gates=None):
    play.start_enclave()
    play.start_worker(1, gates)
    play.start_worker(2)
    play.start_clients()


# Workers.


@pytest.mark.slow
def test_a_worker_that_stands_still_costs_an_attempt_and_may_come_back(stage):
    play = stage(rounds=2, workers=3, settings={"workers": 2, "measure_s": MEASURE_S})
    later = play.gate()
    for name in play.names:
        play.client(name).gates["fetched", 2] = later
    play.start_enclave()
    stopped = play.deployment.worker(1)
    for number in (2, 3):
        play.start_worker(number)
    for number in (1, 2, 3):
        play.wait_for("WorkerJoined", worker=f"worker-{number}")
    stopped.child.send_signal(signal.SIGSTOP)
    play.start_clients()
    failed = play.wait_for("WorkerFailed")
    assert failed["worker"] == "worker-1"
    assert "in time" in failed["what"]
    play.wait_for("RoundPublished", number=1)
    stopped.child.send_signal(signal.SIGCONT)
    later.open()
    play.check()
    assert attempts(play)[:2] == [["worker-1", "worker-2"], ["worker-2", "worker-3"]]


@pytest.mark.slow
def test_without_a_spare_the_enclave_measures_by_itself(stage):
    play = stage(rounds=2, settings={"measure_s": MEASURE_S})
    gate = play.gate()
    play.start_enclave()
    play.start_worker(1, {play.tiles: gate})
    play.start_worker(2)
    for number in (1, 2):
        play.wait_for("WorkerJoined", worker=f"worker-{number}")
    play.start_clients()
    gate.wait_until_reached()
    play.wait_for("RoundPublished", number=1)
    gate.open()  # Its answer comes now, and must not pass for one in the next round.
    (chain, again) = play.check()
    assert attempts(play)[:2] == [["worker-1", "worker-2"], []]
    assert [event["worker"] for event in play.told("WorkerFailed")] == ["worker-1"]
    assert (chain.distances, again.distances) == ("inside", "workers")


@pytest.mark.slow
@pytest.mark.parametrize("spares", [0, 1])
def test_a_worker_that_lies_is_named_and_left_out(stage, spares):
    play = stage(workers=2 + spares, settings={"workers": 2})
    play.start_enclave()
    play.deployment.lying_worker(1)
    for number in range(2, 3 + spares):
        play.start_worker(number)
    for number in range(1, 3 + spares):
        play.wait_for("WorkerJoined", worker=f"worker-{number}")
    play.start_clients()
    play.check()
    assert [event["worker"] for event in play.told("WorkerLied")] == ["worker-1"]
    assert not play.told("WorkerFailed")
    rest = ["worker-2", "worker-3"] if spares else []
    assert attempts(play) == [["worker-1", "worker-2"], rest]


@pytest.mark.slow
def test_without_any_workers_rounds_are_measured_inside(stage):
    play = stage()
    play.start_enclave()
    play.start_clients()
    (receipt,) = play.check()
    assert attempts(play) == [[]]
    assert receipt.distances == "inside"


# Clients.


@pytest.mark.slow
def test_an_upload_that_stalls_is_cut_off_and_later_goes_on_where_it_stopped(stage):
    play = stage(settings={"idle_s": 4})
    gate = play.gate()
    play.client("client-1").gates["half", 1] = gate
    start_all(play)
    refused = play.wait_for("UploadRefused")
    assert (refused["client"], refused["why"]) == ("client-1", "too slow")
    for name in play.names[1:]:
        play.wait_for("UploadCompleted", client=name)
    gate.open()
    play.check()
    missing = [event["missing"] for event in play.told("UploadStarted", client="client-1")]
    assert missing[0] == 20
    assert 0 < missing[-1] < 20


# Disks.


def spool_of(play):
    (spool,) = play.state.glob("spool-round-*.bin")
    return spool


def flip(play, client, tile):
    """One bit of what a client has sent, where it lies on the disk."""
    rows, size = len(play.names), 4 * 1024 + 16
    place = (tile * rows + play.names.index(client)) * size
    with spool_of(play).open("r+b") as spool:
        spool.seek(place)
        (byte,) = spool.read(1)
        spool.seek(place)
        spool.write(bytes([byte ^ 1]))


def limit_files(play, size):
    """The enclave can write no file beyond this size; to it that is the same as a full disk."""
    limits = (size, resource.RLIM_INFINITY)
    resource.prlimit(play.enclave.child.pid, resource.RLIMIT_FSIZE, limits)


@pytest.mark.slow
def test_a_full_disk_refuses_who_comes_late_and_nobody_else(stage):
    play = stage(rounds=2, settings=SPOOLED | {"grace_s": 4})  # once all but one have arrived
    late, later = play.gate(), play.gate()
    play.client("client-1").gates["fetched", 1] = late
    for name in play.names:
        play.client(name).gates["fetched", 2] = later
    start_all(play)
    for name in play.names[1:]:
        play.wait_for("UploadCompleted", client=name)
    limit_files(play, SMALL_DISK)
    late.open()
    refused = play.wait_for("UploadRefused")
    assert refused["client"] == "client-1"
    assert "make room" in refused["why"]
    play.wait_for("RoundPublished", number=1)
    limit_files(play, resource.RLIM_INFINITY)
    later.open()
    play.check(rejected={1: {"client-1": "incomplete when the round closed"}})
    assert {event["client"] for event in play.told("UploadRefused")} == {"client-1"}


@pytest.mark.slow
def test_a_disk_that_is_full_for_a_while_delays_the_round(stage):
    play = stage(settings=SPOOLED)
    start = play.gate()
    for name in play.names:
        play.client(name).gates["fetched", 1] = start
    start_all(play)
    play.wait_for("RoundOpened")
    limit_files(play, SMALL_DISK)
    start.open()
    for name in play.names:
        play.wait_for("UploadRefused", client=name)
    limit_files(play, resource.RLIM_INFINITY)
    (receipt,) = play.check()
    assert receipt.participants == len(play.names)


@pytest.mark.slow
@pytest.mark.parametrize(
    "held", ["client-8", "worker-1"], ids=["while collecting", "while the workers compute"]
)
def test_a_corrupt_spool_costs_its_client_the_round(stage, held):
    reason = "a tile changed after it arrived"
    play = stage(rounds=2, settings=SPOOLED)
    gate = play.gate()
    if held == "client-8":
        play.client(held).gates["fetched", 1] = gate
    start_all(play, gates={play.tiles: gate} if held == "worker-1" else None)
    gate.wait_until_reached()
    for name in play.names:
        if name != held:
            play.wait_for("UploadCompleted", client=name)
    flip(play, "client-3", tile=5)
    gate.open()
    play.check(rejected={1: {"client-3": reason}})
    rejected = [(event["client"], event["reason"]) for event in play.told("ClientRejected")]
    assert rejected == [("client-3", reason)]


@pytest.mark.slow
def test_a_spool_that_is_lost_makes_a_null_step_and_the_next_round_goes_on(stage):
    """The number is used up: a host that could try again would learn from each try."""
    play = stage(rounds=2, settings=SPOOLED)
    gate = play.gate()
    play.client("client-8").gates["fetched", 1] = gate
    start_all(play)
    gate.wait_until_reached()
    for name in play.names[:-1]:
        play.wait_for("UploadCompleted", client=name)
    with spool_of(play).open("r+b") as spool:
        spool.truncate(0)
    gate.open()
    assert play.wait_for("NullStep")["number"] == 1
    results = [client.result() for client in play.clients.values()]
    first, second = play.chain()
    assert "1 valid updates" in first.failure
    assert {each.reason for each in first.rejected} == {"a tile changed after it arrived"}
    assert [each.client for each in first.rejected] == play.names[:-1]
    assert first.kept == 0
    mean = play._check_round(second, {})
    for result in results:
        np.testing.assert_allclose(result.vector, mean, rtol=1e-6, atol=1e-6)
    assert not play.told("RoundSkipped")


@pytest.mark.slow
@pytest.mark.parametrize("file", ["model-00000001.sealed", "ledger/00000001.sealed"])
def test_what_cannot_be_stored_is_not_published_until_it_can(stage, file):
    play = stage(rounds=2)
    play.start_enclave()
    (play.state / file).mkdir()  # No file can be put in the place of a directory.
    for number in (1, 2):
        play.start_worker(number)
    play.start_clients()
    place = play.enclave.wait_for("StorageFailed")
    play.enclave.wait_for("StorageFailed", after=place)
    assert not play.told("RoundPublished")
    assert not any(client.outcomes for client in play.clients.values())
    (play.state / file).rmdir()
    play.check()
    assert not play.told("RoundSkipped")


@pytest.mark.slow
def test_a_revision_that_cannot_be_stored_waits_until_it_can(stage):
    play = stage(rounds=3)
    gates = [play.gate() for _ in range(3)]
    for name in play.names:
        for number, gate in enumerate(gates, 1):
            play.client(name).gates["fetched", number] = gate
    start_all(play)
    gates[0].wait_until_reached()
    obstacle = play.state / "ledger" / "00000002.sealed"  # 0 is the founding, 1 the first round
    obstacle.mkdir()
    play.deployment.set(revision=2, leakage_bits=0.002)
    gates[0].open()
    ignored = play.wait_for("FederationIgnored")
    assert "00000002" in ignored["why"]
    gates[1].wait_until_reached()
    obstacle.rmdir()
    for gate in gates[1:]:
        gate.open()
    chain = play.check()
    assert [receipt.revision for receipt in chain] == [1, 1, 2]


# Signals.


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_collecting_gives_the_round_up(stage, number):
    play = stage()
    gate = play.gate()
    play.client("client-8").gates["fetched", 1] = gate
    start_all(play)
    for name in play.names[:-1]:
        play.wait_for("UploadCompleted", client=name)
    play.enclave.child.send_signal(number)
    assert play.enclave.child.wait(60) == 0
    assert play.told("RoundSkipped")[0]["why"] == "the service is stopping"
    assert play.told("Stopping")
    assert not list(play.state.glob("spool-*"))
    play.start_enclave()
    gate.open()
    play.check()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_measuring_makes_the_outcome_durable_first(stage, number):
    """It is confirmed and published after the next start: nothing is measured twice."""
    play = stage(rounds=2)
    gate = play.gate()
    start_all(play, gates={play.tiles: gate})
    gate.wait_until_reached()
    play.enclave.child.send_signal(number)
    gate.open()
    assert play.enclave.child.wait(60) == 0
    assert [event["number"] for event in play.told("RoundProposed")] == [1]
    assert not play.told("RoundPublished")
    assert not play.told("RoundSkipped")
    assert (play.state / "pending.sealed").exists()
    measured = len(attempts(play))
    play.start_enclave()
    play.check()
    assert [event["number"] for event in play.told("RoundPublished")] == [1, 2]
    assert len(attempts(play)) == measured + 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_confirming_keeps_the_outcome(stage, number):
    play = stage()
    play.start_enclave()
    for worker in (1, 2):
        play.start_worker(worker)
    obstacle = play.state / "ledger" / "00000001.sealed"
    obstacle.mkdir()  # All confirm, and the record of it cannot be written.
    play.start_clients()
    play.wait_for("StorageFailed")
    play.enclave.child.send_signal(number)
    assert play.enclave.child.wait(60) == 0
    assert not play.told("RoundPublished")
    assert not play.told("RoundSkipped")
    obstacle.rmdir()
    play.start_enclave()
    play.check()
    assert len(play.told("RoundProposed")) == 2
    assert len(attempts(play)) == 1


@pytest.mark.slow
def test_a_stop_ends_the_wait_for_a_disk(stage):
    play = stage()
    play.start_enclave()
    obstacle = play.state / "model-00000001.sealed"
    obstacle.mkdir()
    for number in (1, 2):
        play.start_worker(number)
    play.start_clients()
    play.wait_for("StorageFailed")
    assert play.enclave.stop() == 0
    assert "disk" in play.told("RoundSkipped")[0]["why"]
    obstacle.rmdir()
    play.start_enclave()
    play.check()


# Two of a kind.


def refusal(process):
    """How a command ended, and its last words."""
    return process.child.wait(60), " ".join(process.lines[-5:])


@pytest.mark.slow
def test_a_second_enclave_on_the_same_state_is_refused(stage):
    play = stage()
    start = play.gate()
    play.client("client-1").gates["fetched", 1] = start
    start_all(play)
    code, words = refusal(play.deployment.enclave(wait=False))
    assert code == 1
    assert "another process uses this state" in words
    start.open()
    play.check()


@pytest.mark.slow
def test_a_second_enclave_on_the_same_port_is_refused(stage):
    play, other = stage(), stage()
    other.deployment.set(listen=play.deployment.address)
    play.start_enclave()
    code, words = refusal(other.deployment.enclave(wait=False))
    assert code == 2
    assert f"cannot listen on {play.deployment.address}" in words


# Clocks.


def start_with_wrong_clock(play):
    """Gives what sets by how many seconds the enclave's clock is wrong."""
    wrong_by = play.deployment.root / "wrong-by"

    def set_wrong_by(seconds):
        """At once: the enclave may read in the middle of a write."""
        new = wrong_by.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(wrong_by)

    set_wrong_by(0)
    command = ("run", "--config", str(play.deployment.config))
    flags = ("--unsafe-simulation", "--log-json")
    spawn = play.deployment.spawn
    play.enclaves.append(spawn("enclave", "-c", WRONG_CLOCK, str(wrong_by), *command, *flags))
    play.wait_for("ServiceStarted")
    play.start_clients()
    return set_wrong_by


@pytest.mark.slow
def test_a_clock_that_jumps_ahead_closes_no_round(stage):
    play = stage(settings={"deadline_s": 600})
    gate = play.gate()
    play.client("client-8").gates["fetched", 1] = gate
    set_wrong_by = start_with_wrong_clock(play)
    for name in play.names[:-1]:
        play.wait_for("UploadCompleted", client=name)
    set_wrong_by(3600)
    jumped = play.wait_for("ClockJumped")
    assert abs(jumped["seconds"] - 3600) < 60
    gate.open()
    (receipt,) = play.check()
    assert receipt.participants == len(play.names)
    assert len(play.told("ClockJumped")) == 1


@pytest.mark.slow
def test_a_clock_that_jumps_back_keeps_no_round_open(stage):
    play = stage(settings={"deadline_s": 8})
    gate = play.gate()
    play.client("client-8").gates["fetched", 1] = gate
    set_wrong_by = start_with_wrong_clock(play)
    gate.wait_until_reached()
    set_wrong_by(-3600)
    jumped = play.wait_for("ClockJumped")
    assert abs(jumped["seconds"] + 3600) < 60
    closed = play.wait_for("RoundClosed")
    assert closed["missing"] == ["client-8"]
    gate.open()
    play.check()
