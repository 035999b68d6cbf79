"""Witnesses, clients that confirm in a thread, and a federation that goes on without its state."""

import re
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import ostraka
from ostraka.client.memory import MemoryFile
from ostraka.encoding import decode, digest
from ostraka.errors import OstrakaError
from ostraka.messages import Abandon, Certificate, Certified, Receipt
from ostraka.transport import ostraka_pb2 as wire
from ostraka.transport.dial import dial
from ostraka.transport.ostraka_pb2_grpc import EnclaveStub

CLIENTS, DIMENSION = 3, 30
SETTINGS = {"quorum": 3, "deadline_s": 600, "count": 2, "linger_s": 600}


def take_part(deployment, name: str, rounds: int = 2) -> ostraka.Client:
    """One client, until so many rounds are published."""
    with connect(deployment, name) as client:
        for _ in range(rounds):
            model = client.fetch()
            client.submit(np.full(DIMENSION, model.round, np.float32))
    return client


def connect(deployment, name: str, **options) -> ostraka.Client:
    return ostraka.Client(
        deployment.address,
        name=name,
        key=deployment.key(name),
        policy=deployment.policy,
        unsafe_simulation=True,
        timeout=300,
        on_event=lambda event: None,
        **options,
    )


def all_take_part(deployment, rounds: int = 2) -> list[threading.Thread]:
    names = [f"client-{number}" for number in range(1, CLIENTS + 1)]
    threads = [
        threading.Thread(target=take_part, args=(deployment, name, rounds), daemon=True)
        for name in names
    ]
    for each in threads:
        each.start()
    return threads


def join_all(threads: list[threading.Thread]) -> None:
    for each in threads:
        each.join(300)
        assert not each.is_alive()


def chain(deployment) -> list[Certified | Abandon]:
    with dial(deployment.address) as channel:
        links = EnclaveStub(channel).GetChain(wire.ChainRequest(), timeout=60)
        return [
            decode(Certified, link.certified) if link.certified else decode(Abandon, link.abandon)
            for link in links
            if link.certified or link.abandon
        ]


def proved(link: Certified | Abandon) -> tuple[Receipt, Certificate]:
    """The receipt of a round that was published, and what proves it."""
    assert isinstance(link, Certified)
    assert link.certificate is not None
    return link.receipt, link.certificate


def command(deployment, *arguments: str, code: int = 0) -> str:
    process = deployment.spawn("command", "-m", "ostraka", *arguments)
    assert process.child.wait(300) == code, process.lines
    process._reader.join(300)
    return "\n".join(process.lines)


@pytest.fixture
def witnessed(deploy):
    """A federation whose outcomes a witness confirms beside the clients."""
    deployment = deploy(
        clients=CLIENTS, f=0, masking="none", dimension=DIMENSION, settings=SETTINGS
    )
    key = deployment.root / "keys" / "auditor.key"
    said = command(deployment, "witness", "enrol", "--name", "auditor", "--out", str(key))
    lines = said[said.index("[[witness]]") :]
    public = re.search('key = "([0-9a-f]{64})"', lines)
    assert public is not None
    with deployment.config.open("a") as file:
        file.write("\n" + lines + "\n")
    policy = deployment.policy.read_text()
    policy = re.sub("(?m)^# witnesses = .*$", f'witnesses = ["{public[1]}"]', policy)
    deployment.policy.write_text(policy)
    deployment.set(confirm="both")
    return deployment


def witness(deployment, *more: str):
    return deployment.spawn(
        "auditor",
        *("-m", "ostraka", "witness", "run", "--enclave", deployment.address),
        *("--name", "auditor", "--key", str(deployment.key("auditor"))),
        *("--policy", str(deployment.policy), "--unsafe-simulation", *more),
    )


@pytest.mark.slow
def test_nothing_is_published_without_the_witness_and_it_writes_one_line_a_round(witnessed):
    enclave = witnessed.enclave()
    threads = all_take_part(witnessed)
    enclave.wait_for("RoundProposed")
    for _ in range(20):  # All clients have confirmed by now, or will have: it is not enough.
        assert chain(witnessed) == []
    running = witness(witnessed)
    join_all(threads)
    running.wait_for("confirmed the outcome of round 2")
    assert running.stop() == 0
    published = [proved(link) for link in chain(witnessed)]
    votes = (witnessed.root / "keys" / "auditor.votes").read_text().splitlines()
    assert [line.split()[:2] for line in votes] == [
        [str(receipt.number), digest(certificate.proposal).hex()]
        for receipt, certificate in published
    ]
    assert all("auditor" in {vote.voter for vote in each.votes} for _, each in published)


@pytest.mark.slow
def test_a_witness_that_lost_its_memory_still_has_its_record(witnessed):
    enclave = witnessed.enclave()
    record = witnessed.root / "keys" / "auditor.votes"
    record.write_text(f"1 {'ab' * 32} {'cd' * 32}\n")
    threads = all_take_part(witnessed, rounds=1)
    enclave.wait_for("RoundProposed")
    running = witness(witnessed)
    running.wait_for("has a vote for round 1 already")
    assert chain(witnessed) == []
    running.stop()
    record.unlink()  # The test's own lie; an owner must not do this.
    witness(witnessed).wait_for("confirmed the outcome of round 1")
    join_all(threads)


@pytest.mark.slow
def test_a_client_that_trains_for_long_confirms_in_a_thread(deploy):
    """Four of six have to confirm, three send updates, and one is busy training."""
    deployment = deploy(
        clients=6,
        f=0,
        masking="none",
        dimension=DIMENSION,
        settings={**SETTINGS, "grace_s": 1, "extensions": 1000},
    )
    deployment.enclave()
    busy = connect(deployment, "client-6")
    with busy.confirming():
        busy.fetch()
        join_all(all_take_part(deployment, rounds=1))
        receipt, certificate = proved(chain(deployment)[0])
    assert receipt.participants == CLIENTS
    assert "client-6" in {vote.voter for vote in certificate.votes}


@pytest.fixture
def lost(deploy, tmp_path):
    """A federation whose enclave died in round 2 and lost its folder."""
    deployment = deploy(
        clients=CLIENTS, f=0, masking="none", dimension=DIMENSION, settings={**SETTINGS, "count": 4}
    )
    enclave = deployment.enclave()
    join_all(all_take_part(deployment, rounds=1))
    enclave.wait_for(lambda line: "RoundOpened" in line and '"number": 2' in line)
    model = tmp_path / "last.safetensors"
    command(
        deployment,
        *("client", "fetch", "--enclave", deployment.address, "--name", "client-1"),
        *("--key", str(deployment.key("client-1")), "--policy", str(deployment.policy)),
        *("--out", str(model), "--unsafe-simulation"),
    )
    enclave.kill()
    shutil.move(deployment.root / "state", tmp_path / "found-again")
    return deployment, model


def give_testimony(deployment, name: str, out: Path) -> Path:
    command(
        deployment,
        *("client", "testify", "--name", name, "--key", str(deployment.key(name))),
        *("--policy", str(deployment.policy), "--out", str(out)),
    )
    return out


def abandon(
    deployment,
    model: Path,
    *testimonies: Path,
    by: str = "authority",
    more: tuple = (),
    code: int = 0,
) -> str:
    return command(
        deployment,
        *("abandon", str(deployment.config), *map(str, testimonies), *more),
        *("--key", str(deployment.key(by)), "--model", str(model)),
        code=code,
    )


@pytest.mark.slow
def test_a_lost_federation_goes_on_with_proof(lost, tmp_path):
    deployment, model = lost
    names = [f"client-{number}" for number in range(1, CLIENTS + 1)]
    told = [give_testimony(deployment, name, tmp_path / f"{name}.testimony") for name in names]
    assert "do not prove" in abandon(deployment, model, told[0], code=2)
    other = tmp_path / "other.safetensors"
    save_file({name: each + 1 for name, each in load_file(model).items()}, other)
    assert "is not the model before round 2" in abandon(deployment, other, *told, code=2)
    assert "not the key of the authority" in abandon(
        deployment, model, *told, by="client-1", code=2
    )
    assert not deployment.config.with_suffix(".abandon").exists()
    assert "with proof" in abandon(deployment, model, *told)
    shutil.copytree(tmp_path / "found-again", deployment.root / "state")
    old = deployment.enclave(wait=False)
    old.wait_for("round 2 was abandoned since")
    assert old.child.wait(300) == 1
    shutil.rmtree(deployment.root / "state")
    deployment.enclave()
    join_all(all_take_part(deployment, rounds=1))
    gone, published = chain(deployment)
    assert isinstance(gone, Abandon)
    receipt, _ = proved(published)
    assert (gone.number, receipt.number) == (2, 3)
    assert receipt.previous == digest(gone)


@pytest.mark.slow
def test_without_proof_a_client_goes_on_by_its_owner_s_word_only(lost, tmp_path):
    deployment, model = lost
    told = give_testimony(deployment, "client-1", tmp_path / "client-1.testimony")
    assert "WITHOUT proof" in abandon(deployment, model, told, more=("--unproved",))
    deployment.enclave()
    with connect(deployment, "client-2") as client, pytest.raises(OstrakaError, match="owner's"):
        client.fetch()
    beside = deployment.config.with_suffix(".abandon")
    for number in range(1, CLIENTS + 1):
        name = f"client-{number}"
        command(
            deployment,
            *("client", "rejoin", str(beside), "--name", name),
            *("--key", str(deployment.key(name)), "--policy", str(deployment.policy)),
        )
        memory = MemoryFile.beside(deployment.key(name), name, deployment.federation_id).load()
        assert memory is not None
        assert isinstance(memory.last, Abandon)
    join_all(all_take_part(deployment, rounds=1))
    receipt, _ = proved(chain(deployment)[-1])
    assert receipt.number == 3
