"""The process of clients: an attacker sends what it wants, and a crash is one client's own."""

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from ostraka import federation_file
from ostraka.attestation.claims import in_process
from ostraka.cli.federation_folder import FEDERATION
from ostraka.client.results import Model
from ostraka.core import uploads
from ostraka.core.optimiser import FEDAVG, start
from ostraka.crypto.identity import Identity
from ostraka.crypto.stream import SecretStream
from ostraka.files import read_identity
from ostraka.model_file import read_model
from ostraka.protocol.client import Client as Role
from ostraka.protocol.enclave import Enclave
from ostraka_lab import client
from ostraka_lab.baselines import Clear, plain_average
from ostraka_lab.experiment import Experiment
from ostraka_lab.folder import Board, RunFolder, client_name
from ostraka_lab.run import found_run
from ostraka_lab.task import Participant, Task


@pytest.mark.slow
def test_it_loads_no_compiler_and_nothing_to_draw_with():
    """A dozen of these start at one time."""
    code = "import sys, ostraka_lab.client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "torch" in loaded
    assert not {"matplotlib", "sklearn", "tensorboardX", "rich", "torch._dynamo"} & loaded


@pytest.fixture
def fellows(tmp_path):
    task = Task.load(Experiment(clients=5, byzantine=1, steps=1))
    folder = RunFolder(tmp_path)
    return client.Fellows(folder, "nowhere", task, threading.Lock(), Board(folder.board))


def test_a_crash_is_one_clients_own_and_nobody_waits_for_it(fellows, caplog, monkeypatch):
    def crash(*_):
        raise MemoryError("no memory for this model")

    monkeypatch.setattr(client, "take_part", crash)
    participant = Participant(fellows.task, 3, fellows.task.model())
    client._run(fellows, participant)
    assert len(fellows.board.read([3], 1)) == 0
    (record,) = caplog.records
    assert record.ostraka_fields == {"client": "client-3", "why": "no memory for this model"}
    assert json.dumps(record.ostraka_fields)


def test_clients_of_one_process_train_one_at_a_time(fellows, monkeypatch):
    inside, most = 0, 0

    def train(self, start, number):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        trained = genuine(self, start, number)
        inside -= 1
        return trained

    genuine = Participant.train
    monkeypatch.setattr(Participant, "train", train)
    (manifest, model), shared = fellows.task.first(), fellows.task.model()
    fetched = Model(1, model, manifest, bytes(32), simulated=True)
    updates = {}

    def work(number):
        participant = Participant(fellows.task, number, shared)
        updates[number] = client._train(fellows, participant, fetched).update

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    alone = Participant(fellows.task, 2, fellows.task.model())
    np.testing.assert_array_equal(updates[2], alone.train(model, 1).update)


def joined(folder, name, number):
    """A round of this number, as a client of the run's federation has joined it."""
    federation = federation_file.load(folder.federation / FEDERATION).federation()
    first = start(read_model(folder.first_model)[1], FEDAVG)
    enclave = Enclave(federation, Identity(b"e" * 32), state=first)
    role = Role(name, read_identity(folder.federation / "keys" / f"{name}.key"), federation)
    offer = enclave.open_round().offer
    one = role.join(offer, in_process(offer, enclave.receipt_key))
    return replace(one, offer=replace(offer, number=number))


def goes_out(experiment, folder):
    """What clients of one process send in two rounds of the same start (2, n, d).

    The second is opened again.
    """
    task = found_run(folder, experiment, command="")
    fellows = client.Fellows(folder, "nowhere:1", task, threading.Lock(), Board(folder.board))
    model, shared = task.first()[1], task.model()
    participants = [Participant(task, number, shared) for number in experiment.numbers]
    clients = [client.LabClient(fellows, each) for each in participants]

    def send(number, participant, one):
        with fellows.turn:
            update = participant.train(model, number).update
        place = joined(folder, client_name(participant.number), number)
        return one._outgoing(place, update).widened()

    with ThreadPoolExecutor(experiment.clients) as pool:
        first, second, again = (
            np.stack(list(pool.map(partial(send, number), participants, clients)))
            for number in (1, 2, 2)
        )
    np.testing.assert_array_equal(second, again)
    return first, second


@pytest.mark.parametrize(
    ("attack", "upload"),
    [
        ("mimic", "float32"),
        ("sign-flip", "float32"),
        ("label-flip", "float32"),
        ("mimic", "bfloat16"),
        ("sign-flip", "float16"),
    ],
)
def test_clients_send_what_they_send_in_the_clear(tmp_path, attack, upload):
    """To the bit, momentum and residuals included; attackers and honest clients share a process."""
    experiment = Experiment(
        clients=5, byzantine=1, attack=attack, steps=1, rounds=2, client_momentum=0.5, upload=upload
    )
    rounds = goes_out(experiment, RunFolder(tmp_path / "run"))
    clear = Clear(Task.load(experiment), plain_average)
    model = clear.model
    for number, sent in enumerate(rounds, 1):
        clear.model = model
        np.testing.assert_array_equal(sent, clear.round(number).updates)


@pytest.mark.parametrize("attack", ["min-max", "shift", "lasting-mimic"])
def test_attackers_of_one_process_take_turns_with_what_they_know(tmp_path, monkeypatch, attack):
    """Twelve copies of 52 large updates do not fit; those who send the same work it out once."""
    inside, most, made = 0, 0, 0
    read, sends = Board.read, Participant.sends

    def counted_read(self, *arguments):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        rows = read(self, *arguments)
        inside -= 1
        return rows

    def counted_sends(self, own, number, known=None):
        nonlocal made
        made += known is not None
        return sends(self, own, number, known)

    monkeypatch.setattr(Board, "read", counted_read)
    monkeypatch.setattr(Participant, "sends", counted_sends)
    experiment = Experiment(clients=8, byzantine=3, attack=attack, steps=1, rounds=2)
    rounds = goes_out(experiment, RunFolder(tmp_path / "run"))
    assert most == 1
    assert made == (2 if attack == "min-max" else 9)  # of two rounds, or of three turns
    clear = Clear(Task.load(experiment), plain_average)
    model = clear.model
    for number, sent in enumerate(rounds, 1):
        clear.model = model
        np.testing.assert_array_equal(sent, clear.round(number).updates)


def test_an_attacker_copies_what_an_honest_client_sends_and_keeps_it_so(tmp_path):
    """It sees others' updates after their momentum, and its own momentum does not touch its own."""
    experiment = Experiment(
        clients=5, byzantine=1, attack="mimic", steps=1, rounds=2, client_momentum=0.5
    )
    _, second = goes_out(experiment, RunFolder(tmp_path / "run"))
    (attacker,) = experiment.attackers
    honest = np.delete(second, attacker - 1, axis=0)
    assert any(np.array_equal(second[attacker - 1], row) for row in honest)


@pytest.mark.parametrize("upload", ["float16", "int8"])
def test_an_attacker_is_held_to_the_range_of_the_format(upload):
    """What float16 cannot hold would not be sent at all; the largest value is a strong attack."""
    experiment = Experiment(
        clients=5,
        byzantine=1,
        attack="sign-flip",
        attack_scale=1e38,
        steps=1,
        rounds=2,
        upload=upload,
    )
    task = Task.load(experiment)
    (attacker,) = experiment.attackers
    own = np.full(task.first()[0].dimension, 0.5, "<f4")
    sent = Participant(task, attacker, task.model()).sends(own, 1)
    assert abs(sent).max() == uploads.find(upload).largest
    assert uploads.find(upload).encode(sent, SecretStream(bytes(32)).fill).norm > 1e3


def test_an_attacker_sends_what_the_library_would_keep_to_itself(tmp_path):
    experiment = Experiment(clients=5, byzantine=1, attack="nan", steps=1, rounds=2)
    first, _ = goes_out(experiment, RunFolder(tmp_path / "run"))
    (attacker,) = experiment.attackers
    assert np.isnan(first[attacker - 1]).any()
    assert np.isfinite(np.delete(first, attacker - 1, axis=0)).all()


def test_honest_clients_send_as_the_signed_terms_say(tmp_path):
    """The lab founds the federation with the experiment's momentum, and adds none of its own."""
    folder = RunFolder(tmp_path / "run")
    experiment = Experiment(clients=5, byzantine=1, attack="none", steps=1, client_momentum=0.25)
    task = found_run(folder, experiment, command="")
    charter = federation_file.load_charter(
        federation_file.charter_path(folder.federation / FEDERATION)
    )
    assert charter.federation.terms.client_momentum == 0.25
    fellows = client.Fellows(folder, "nowhere:1", task, threading.Lock(), Board(folder.board))
    one = client.LabClient(fellows, Participant(task, 1, task.model()))
    ones, zeros = np.ones(task.first()[0].dimension, "<f4"), np.zeros(task.first()[0].dimension)
    one._outgoing(joined(folder, "client-1", 1), ones)
    sent = one._outgoing(joined(folder, "client-1", 2), zeros.astype("<f4")).widened()
    np.testing.assert_array_equal(sent, np.full_like(sent, 0.25))
