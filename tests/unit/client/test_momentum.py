"""Client momentum: the law, what is kept of it, and that an update counts once."""

import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.numpy import save_file
from typer.testing import CliRunner

from ostraka import files
from ostraka.cli import app
from ostraka.client import momentum
from ostraka.client.kept import InMemory, KeptFiles
from ostraka.client.momentum import Momentum, is_statistic, moved
from ostraka.config import DEFAULT_MOMENTUM, Manifest, Tensor
from ostraka.errors import ConfigError, ServiceError, StateError
from ostraka.transport import ostraka_pb2 as wire

BATCH_NORM = Manifest(
    (
        Tensor("conv.weight", (3,)),
        Tensor("bn.running_mean", (2,)),
        Tensor("bn.weight", (2,)),
        Tensor("bn.running_var", (2,)),
        Tensor("bn.num_batches_tracked", ()),
        Tensor("bn.bias", (2,)),
    )
)
ID, D = b"i" * 32, 17
MANIFEST = Manifest((Tensor("weight", (4, 3)), Tensor("bias", (5,))))
LARGEST = float(np.finfo(np.float32).max)

rows = arrays(np.float32, 12, elements=st.floats(-LARGEST, LARGEST, width=32))
betas = st.floats(0, 1, exclude_max=True)


# The law.


@given(rows, rows, betas)
def test_it_is_the_running_mean_rounded_once_and_statistics_are_as_measured(update, before, beta):
    sent = moved(update, before, beta, BATCH_NORM)
    exact = np.float64(beta) * before + (1 - np.float64(beta)) * update
    measured = np.repeat(
        [is_statistic(each.name) for each in BATCH_NORM.tensors], [3, 2, 2, 2, 1, 2]
    )
    assert measured.sum() == 5
    np.testing.assert_array_equal(sent, np.where(measured, update, exact.astype(np.float32)))
    assert np.isfinite(sent).all()


def test_the_law_in_numbers():
    """m_N = b m_(N-1) + (1 - b) u_N, from m = u."""
    mine = Momentum(0.75, Manifest.flat(1), InMemory())
    sent = [float(mine.apply(np.array([u], "<f4"), n)[0]) for n, u in enumerate([8, 4, 0, 1], 1)]
    assert sent == [8, 7, 5.25, 4.1875]


def test_noise_becomes_4_4_times_shorter_with_the_default():
    """By the square root of (1 + b) / (1 - b), once it has run for a while."""
    noise = np.random.default_rng(0).normal(size=(200, 2_000)).astype(np.float32)
    sent = noise[0]
    for update in noise[1:]:
        sent = moved(update, sent, DEFAULT_MOMENTUM, Manifest.flat(2_000))
    assert noise.std() / sent.std() == pytest.approx(4.4, rel=0.05)


@given(rows, betas)
def test_an_update_that_does_not_change_is_sent_as_it_is(update, beta):
    np.testing.assert_array_equal(moved(update, update, beta, BATCH_NORM), update)


def test_long_updates_are_worked_on_in_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    update, before = rng.normal(size=(2, 12)).astype(np.float32)
    whole = moved(update, before, 0.9, BATCH_NORM)
    for block in (1, 2, 5):
        monkeypatch.setattr(momentum, "_BLOCK", block)
        np.testing.assert_array_equal(moved(update, before, 0.9, BATCH_NORM), whole)


STATISTICS = ["running_mean", "bn1.running_var", "layer.0.bn.num_batches_tracked"]
LEARNED = ["weight", "running_mean.weight", "layer.bias", "variance", "var", "running"]


def test_statistics_are_known_by_torch_s_names():
    assert all(map(is_statistic, STATISTICS))
    assert not any(map(is_statistic, LEARNED))


# What is kept.


@pytest.fixture(params=["in memory", "in files"])
def keep(request, tmp_path):
    """Makes the momentum of one client, as a new process would."""
    memory = InMemory()

    def make(beta=0.5, manifest=MANIFEST):
        on_disk = KeptFiles(tmp_path / "alice.memory.momentum", "alice", ID, manifest, "momentum")
        return Momentum(beta, manifest, memory if request.param == "in memory" else on_disk)

    return make


def full(value, d=D):
    return np.full(d, value, "<f4")


def first_of(vector):
    assert len(set(vector.tolist())) == 1
    return float(vector[0])


def test_a_number_that_comes_again_begins_from_the_one_before(keep):
    sent = [first_of(keep().apply(full(u), n)) for n, u in [(1, 8), (1, 8), (2, 4), (2, 4), (3, 0)]]
    assert sent == [8, 8, 6, 6, 3]
    # Another update in its place counts as if it had been the first.
    assert first_of(keep().apply(full(10), 3)) == 8
    assert first_of(keep().apply(full(0), 4)) == 4


def test_a_client_that_missed_numbers_goes_on_from_its_last_one(keep):
    sent = [first_of(keep().apply(full(u), n)) for n, u in [(1, 8), (5, 4), (5, 4), (9, 0)]]
    assert sent == [8, 6, 6, 3]


def test_the_newest_two_are_kept(keep):
    for number in (1, 2, 3, 3, 7):
        keep().apply(full(1), number)
        assert len(keep().kept.numbers()) <= 2
    assert keep().kept.numbers() == {3, 7}


def test_what_is_of_a_later_number_is_of_another_course_of_events(keep):
    """A copy was brought back, or numbers were abandoned."""
    for number in (1, 7, 8):
        keep().apply(full(100), number)
    assert keep().kept.numbers() == {7, 8}
    assert first_of(keep().apply(full(4), 3)) == 4
    assert keep().kept.numbers() == {3}
    # Number 9 goes on from what this client sent, although it has missed those in between.
    assert first_of(keep().apply(full(0), 9)) == 2


def test_what_is_not_finite_never_enters_it(keep):
    keep().apply(full(8), 1)
    for bad in (np.nan, np.inf):
        np.testing.assert_array_equal(keep().apply(full(bad), 2), full(bad))
    assert keep().kept.numbers() == {1}
    assert first_of(keep().apply(full(0), 2)) == 4


def test_what_was_sent_can_be_changed_without_a_change_of_the_momentum(keep):
    given = full(8)
    sent = keep().apply(given, 1)
    sent += 1
    given += 1
    assert first_of(keep().apply(full(0), 2)) == 4


def test_with_a_momentum_of_zero_nothing_is_kept_and_nothing_is_read(keep, tmp_path):
    keep().apply(full(8), 1)
    before = sorted(tmp_path.iterdir())
    for each in before:
        each.write_bytes(b"rubbish")
    update = full(3)
    keep(beta=0).require_usable(2)
    assert keep(beta=0).apply(update, 2) is update
    assert sorted(tmp_path.iterdir()) == before


# Files.


@pytest.fixture
def on_disk(tmp_path):
    """alice's momentum after two numbers."""
    mine = KeptFiles(tmp_path / "alice.memory.momentum", "alice", ID, MANIFEST, "momentum")
    for number, value in ((1, 8), (2, 4)):
        Momentum(0.5, MANIFEST, mine).apply(full(value), number)
    return mine


def test_files_lie_beside_the_memory_and_are_private(on_disk, tmp_path):
    names = {path.name for path in tmp_path.iterdir()}
    stem = "alice.memory.momentum"
    assert names == {f"{stem}-1", f"{stem}-2", f"{stem}.lock"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def rewritten(on_disk, **changes):
    """What another client, federation or model would have written for number 2."""
    other = replace(on_disk, **changes)
    other.write(2, full(1, other.manifest.dimension))
    return on_disk._file(2).read_bytes()


def renamed(on_disk):
    return on_disk._file(1).read_bytes()


def flipped(on_disk, at):
    content = bytearray(on_disk._file(2).read_bytes())
    content[at] ^= 0x40
    return bytes(content)


OTHER_MODEL = Manifest((Tensor("weight", (4, 4)), Tensor("bias", (1,))))

UNUSABLE = {
    "an empty file": (lambda _: b"", "is damaged"),
    "rubbish": (lambda _: os.urandom(200), "is damaged"),
    "a length without a head": (lambda _: bytes(7) + b"\x30", "is damaged"),
    "a head of terabytes": (lambda _: b"\xff" * 8, "is damaged"),
    "half of the values": (lambda f: f._file(2).read_bytes()[: -2 * D], "is damaged"),
    "a value too many": (lambda f: f._file(2).read_bytes() + bytes(4), "is damaged"),
    "a bit that has flipped in the values": (lambda f: flipped(f, -3), "is damaged"),
    "a bit that has flipped in the head": (lambda f: flipped(f, 20), "is damaged"),
    "values that are not finite": (
        lambda f: (f.write(2, full(np.nan)), f._file(2).read_bytes())[1],
        "is damaged",
    ),
    "another client's": (lambda f: rewritten(f, client="bob"), "of client 'bob', not of 'alice'"),
    "another federation's": (
        lambda f: rewritten(f, federation=b"j" * 32),
        f"of the federation {'6a' * 32}",
    ),
    "another model's": (
        lambda f: rewritten(f, manifest=Manifest.flat(9)),
        "of another model, of 9 values",
    ),
    "that of a model of the same size": (
        lambda f: rewritten(f, manifest=OTHER_MODEL),
        "of another model, of 17 values",
    ),
    "that of another number": (renamed, "of round 1"),
}


@pytest.mark.parametrize(("spoil", "said"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_file_that_cannot_be_used_is_refused_and_named(on_disk, spoil, said):
    content = spoil(on_disk)
    on_disk._file(2).write_bytes(content)
    mine = Momentum(0.5, MANIFEST, on_disk)
    for use in (lambda: mine.require_usable(3), lambda: mine.apply(full(0), 3)):
        with pytest.raises(StateError, match=r"alice\.memory\.momentum-2: .*Delete the file") as no:
            use()
        assert said in str(no.value)
    # Nothing has changed, and what it says helps.
    assert on_disk._file(2).read_bytes() == content
    on_disk._file(2).unlink()
    assert first_of(mine.apply(full(0), 3)) == 4
    on_disk._file(3).unlink()
    on_disk._file(1).unlink()
    assert first_of(mine.apply(full(7), 3)) == 7


@given(content=st.binary(max_size=400))
def test_no_bytes_whatever_are_a_crash(content, tmp_path_factory):
    mine = KeptFiles(tmp_path_factory.mktemp("m") / "a.momentum", "alice", ID, MANIFEST, "momentum")
    mine._file(1).write_bytes(content)
    with pytest.raises(StateError, match="Delete the file"):
        mine.read(1)


def test_the_file_of_the_number_itself_is_never_read(on_disk):
    on_disk._file(3).write_bytes(b"rubbish")
    mine = Momentum(0.5, MANIFEST, on_disk)
    mine.require_usable(3)
    assert first_of(mine.apply(full(0), 3)) == 3


def test_other_files_in_the_folder_are_left_alone(on_disk, tmp_path):
    others = ["alice.memory.momentum-", "alice.memory.momentum-007", "alice.memory.momentum-x"]
    others += ["alice.memory.partial", "bob.memory.momentum-1", "bob.memory.momentum-1.partial"]
    for name in others:
        (tmp_path / name).write_bytes(b"of another")
    Momentum(0.5, MANIFEST, on_disk).apply(full(0), 9)
    assert {(tmp_path / name).read_bytes() for name in others} == {b"of another"}


def test_a_disk_that_cannot_be_written_to_is_told_of(on_disk, tmp_path, monkeypatch):
    away = KeptFiles(tmp_path / "gone" / "a.momentum", "alice", ID, MANIFEST, "momentum")
    with pytest.raises(StateError, match=r"a\.momentum: cannot be written \(No such file"):
        Momentum(0.5, MANIFEST, away).require_usable(1)

    def full_disk(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write", full_disk)
    with pytest.raises(StateError, match=r"No space left.*no update goes out"):
        Momentum(0.5, MANIFEST, on_disk).apply(full(0), 3)
    assert on_disk.numbers() == {1, 2}


DIES = """
import os, signal, sys
from pathlib import Path
import numpy as np
from ostraka.client.kept import KeptFiles
from ostraka.client.momentum import Momentum
from ostraka.config import Manifest
mine = KeptFiles(Path(sys.argv[1]), "alice", bytes(32), Manifest.flat(1000), "momentum")
real, calls = os.fsync, []
def fsync(opened):
    calls.append(opened)
    if len(calls) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    real(opened)
os.fsync = fsync
Momentum(0.5, mine.manifest, mine).apply(np.full(1000, 4, "<f4"), 2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("then", [2, 3])
@pytest.mark.parametrize("step", [1, 2])
def test_a_process_that_dies_while_it_writes_leaves_what_there_was(tmp_path, step, then):
    """Before the new file has its name, and after; then it goes on with this number, or a later."""
    path, manifest = tmp_path / "alice.memory.momentum", Manifest.flat(1000)
    mine = Momentum(0.5, manifest, KeptFiles(path, "alice", bytes(32), manifest, "momentum"))
    mine.apply(full(8, 1000), 1)
    died = subprocess.run([sys.executable, "-c", DIES, str(path), str(step)], check=False)
    assert died.returncode == -signal.SIGKILL
    assert mine.kept.numbers() == ({1} if step == 1 else {1, 2})
    assert len(list(tmp_path.glob("*.partial"))) == (1 if step == 1 else 0)
    has_two = step == 2 and then == 3
    assert first_of(mine.apply(full(4, 1000), then)) == (5 if has_two else 6)
    assert not list(tmp_path.glob("*.partial"))


RACES = """
import sys
from pathlib import Path
import numpy as np
from ostraka.client.kept import KeptFiles
from ostraka.client.momentum import Momentum
from ostraka.config import Manifest
mine = KeptFiles(Path(sys.argv[1]), "alice", bytes(32), Manifest.flat(50_000), "momentum")
for number in range(1, 16):
    Momentum(0.5, mine.manifest, mine).apply(np.full(50_000, float(sys.argv[2]), "<f4"), number)
"""


@pytest.mark.slow
def test_two_processes_of_one_client_spoil_nothing(tmp_path):
    path, manifest = tmp_path / "alice.memory.momentum", Manifest.flat(50_000)
    command = [sys.executable, "-c", RACES, str(path)]
    both = [subprocess.Popen([*command, value]) for value in ("1", "3")]
    assert [each.wait(120) for each in both] == [0, 0]
    mine = KeptFiles(path, "alice", bytes(32), manifest, "momentum")
    assert max(mine.numbers()) == 15
    for number in mine.numbers():
        assert 1 <= first_of(mine.read(number)) <= 3  # Raises if it is damaged.


# A client.


@pytest.fixture
def numbers(went_out):
    """What goes out for a number, if it is the same value everywhere."""

    def all_of():
        return [(number, first_of(update)) for number, update in went_out]

    return all_of


def test_rounds_move_the_model_by_the_running_mean(alice, connect, service):
    """By one client, and by a new process each time. Three others send zeros."""
    models = [service.state.model]
    for value in (8, 0, 8):
        alice.fetch()
        alice.submit(full(value))
        models.append(service.state.model)
    for value in (0, -8):
        with connect() as again:
            again.fetch()
            again.submit(full(value))
        models.append(service.state.model)
    steps = 4 * np.diff(models, axis=0).mean(axis=1)
    assert steps.tolist() == pytest.approx([8, 7.2, 7.28, 6.552, 5.0968], rel=1e-4)


def two_rounds(alice):
    alice.fetch()
    alice.submit(full(8))
    alice.fetch()


M_2 = pytest.approx(0.9 * 8 + 0.1 * 4, rel=1e-6)


def test_a_round_that_is_opened_again_gets_the_same(alice, service, numbers):
    two_rounds(alice)
    service.restart()
    assert alice.submit(full(4)).accepted
    assert numbers()[1:] == [(2, M_2), (2, M_2)]


def test_an_update_that_is_submitted_again_counts_once(alice, connect, service, numbers):
    """After an error, in a new process, and with another update."""
    two_rounds(alice)
    service.failures["Upload"] = [(grpc.StatusCode.PERMISSION_DENIED, "not now")]
    with pytest.raises(ServiceError):
        alice.submit(full(4))
    service.failures["Upload"] = [(grpc.StatusCode.PERMISSION_DENIED, "not now")]
    with pytest.raises(ServiceError):
        alice.submit(full(100))
    with connect() as again:
        again.fetch()
        assert again.submit(full(4)).accepted
    assert numbers()[1:] == [(2, M_2), (2, pytest.approx(17.2, rel=1e-6)), (2, M_2)]
    alice.fetch()
    alice.submit(full(0))
    assert numbers()[-1] == (3, pytest.approx(0.9 * 7.6, rel=1e-6))


def test_rounds_that_were_missed_count_for_nothing(alice, service, numbers):
    two_rounds(alice)
    service.publish()
    service.publish()
    assert alice.fetch().round == 4
    alice.submit(full(4))
    assert numbers()[-1] == (4, M_2)


def with_momentum(charter, value, revision):
    return charter(
        revision=revision, terms=replace(charter().federation.terms, client_momentum=value)
    )


def test_a_revision_changes_it(alice, service, charter, numbers, folder):
    two_rounds(alice)
    service.adopt(with_momentum(charter, 0.5, 2))
    alice.submit(full(4))  # The round was opened again under the new terms.
    assert numbers()[-1] == (2, 6)
    service.adopt(with_momentum(charter, 0.0, 3))
    before = sorted(folder.glob("*momentum-*"))
    alice.fetch()
    alice.submit(full(4))
    assert numbers()[-1] == (3, 4)
    assert sorted(folder.glob("*momentum-*")) == before
    service.adopt(with_momentum(charter, 0.5, 4))
    alice.fetch()
    alice.submit(full(0))
    assert numbers()[-1] == (4, 3)  # from number 2


def test_a_damaged_file_is_told_of_before_hours_of_training(alice, service, kept, numbers):
    two_rounds(alice)
    alice.submit(full(4))
    file = kept.path.with_name(f"{kept.path.name}.momentum-2")
    file.write_bytes(b"rubbish")
    with pytest.raises(StateError, match=r"momentum-2: is damaged.*Delete the file"):
        alice.fetch()
    file.unlink()
    alice.fetch()
    alice.submit(full(0))
    assert numbers()[-1] == (3, pytest.approx(7.2, rel=1e-6))


def test_a_file_that_is_damaged_meanwhile_keeps_the_update_back(alice, service, kept, numbers):
    two_rounds(alice)
    file = kept.path.with_name(f"{kept.path.name}.momentum-1")
    content = file.read_bytes()
    file.write_bytes(content[:-4])
    arrived = len(service.arrived)
    with pytest.raises(StateError, match="Delete the file"):
        alice.submit(full(4))
    assert len(service.arrived) == arrived
    file.write_bytes(content)
    assert alice.submit(full(4)).accepted
    assert numbers()[-1] == (2, M_2)


def test_a_value_that_is_not_finite_leaves_no_trace(alice, service, folder):
    alice.fetch()
    with pytest.raises(ConfigError, match="a NaN"):
        alice.submit(full(np.nan))
    assert not list(folder.glob("*.momentum-*"))


CHILD = """
import os, signal, sys
import numpy as np
import ostraka
from ostraka.crypto import updates

def seal(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

folder, address = sys.argv[1:]
client = ostraka.Client(address, name="alice", key=f"{folder}/alice.key",
    policy=f"{folder}/policy.toml", unsafe_simulation=True, timeout=60)
client.fetch()
updates.seal = seal
client.submit(np.full(17, 4, "f4"))
"""


@pytest.mark.slow
def test_a_client_that_is_killed_between_writing_and_sending_counts_its_update_once(
    connect, host, folder, numbers
):
    with connect() as alice:
        two_rounds(alice)
    died = subprocess.run([sys.executable, "-c", CHILD, str(folder), host.address], check=False)
    assert died.returncode == -signal.SIGKILL
    assert sorted(path.name[-2:] for path in folder.glob("*.momentum-*")) == ["-1", "-2"]
    with connect() as again:
        again.fetch()
        again.submit(full(4))
    assert numbers()[-1] == (2, M_2)


def test_a_restart_in_the_middle_of_the_upload(alice, service, numbers):
    two_rounds(alice)
    service.breaks = [3]
    service.lies["AwaitOutcome"] = lambda honest: (
        service.lies.clear(),
        service.restart(),
        wire.OutcomeReply(pending=wire.Pending()),
    )[-1]
    assert alice.submit(full(4)).accepted
    assert numbers()[1:] == [(2, M_2), (2, M_2)]


def test_the_command_keeps_it_too(host, folder, service, numbers):
    for number, value in enumerate((8, 4), 1):
        update = {"weight": np.full((4, 3), value, "f4"), "bias": np.full(5, value, "f4")}
        save_file(update, folder / "update.st")
        options = ["--enclave", host.address, "--name", "alice", "--unsafe-simulation"]
        options += ["--key", str(folder / "alice.key"), "--policy", str(folder / "policy.toml")]
        line = ["client", "submit", str(folder / "update.st"), "--round", str(number), *options]
        result = CliRunner().invoke(app, line, prog_name="ostraka")
        assert result.exit_code == 0, result.output
    assert numbers() == [(1, 8), (2, M_2)]
