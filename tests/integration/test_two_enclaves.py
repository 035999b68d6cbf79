"""Two enclaves on one machine. They differ in one byte of their code, and a client can tell."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import ostraka
from ostraka.crypto import updates
from ostraka.enclave import measurement
from ostraka.errors import AttestationRefused, Refusal

SOURCE = Path(ostraka.__file__).parents[1]


@pytest.fixture
def altered(tmp_path) -> Path:
    """A copy of the code with one letter of a comment changed, in a trusted module."""
    copy = tmp_path / "altered"
    shutil.copytree(SOURCE / "ostraka", copy / "ostraka", ignore=shutil.ignore_patterns("*.pyc"))
    module = copy / "ostraka" / "core" / "rules" / "krum.py"
    before = module.read_bytes()
    after = before.replace(b"Multi-Krum", b"Multi-Crum", 1)
    assert len(after) == len(before)
    assert sum(a != b for a, b in zip(after, before, strict=True)) == 1
    module.write_bytes(after)
    return copy


def join(deployment):
    client = ostraka.Client(
        deployment.address,
        name="client-1",
        key=deployment.key("client-1"),
        policy=deployment.policy,
        unsafe_simulation=True,
        timeout=300,
    )
    with client:
        client.fetch()
        return client.submit(np.ones(100, np.float32))


@pytest.mark.slow
def test_a_client_talks_to_the_honest_one_and_refuses_the_other(
    deploy, logged, altered, monkeypatch
):
    deployment = deploy(
        clients=3,
        f=0,
        masking="none",
        dimension=100,
        settings={"quorum": 3, "deadline_s": 1, "extensions": 1000},
    )
    sealed: list[object] = []
    real = updates.seal

    def watched(*arguments, **named):
        sealed.append(arguments)
        return real(*arguments, **named)

    monkeypatch.setattr(updates, "seal", watched)

    changed = deployment.enclave(PYTHONPATH=str(altered))
    with pytest.raises(AttestationRefused) as caught:
        join(deployment)
    assert caught.value.reason == Refusal.MEASUREMENT
    assert f"mrenclave is {measurement.measure().digest.hex()}" not in str(caught.value)
    assert not sealed
    assert not logged(changed, "UploadStarted")
    assert changed.stop() == 0

    shutil.rmtree(deployment.root / "state")  # Sealed to the altered code, and of no use to this.
    deployment.enclave()
    others = [deployment.client(i, np.ones(100, np.float32)) for i in (2, 3)]
    outcome = join(deployment)
    assert outcome.accepted
    assert sealed
    for other in others:
        other.wait_for("done 1 True")


@pytest.mark.slow
def test_the_sealed_state_of_one_is_nothing_to_the_other(deploy, altered):
    deployment = deploy(clients=3, f=0, masking="none", dimension=100)
    assert deployment.enclave().stop() == 0
    other = deployment.enclave(wait=False, PYTHONPATH=str(altered))
    other.wait_for("does not open under this enclave's key")
    assert other.child.wait(60) not in (0, None)
    assert deployment.enclave().stop() == 0
