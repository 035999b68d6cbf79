"""An enclave that anybody may have started answers where a worker looks for its own."""

import numpy as np
import pytest

from ostraka import federation_file

pytestmark = pytest.mark.slow

D = 40
ROWS = np.random.default_rng(0).normal(size=(4, D)).astype(np.float32)


def enrolled(deployment):
    """The workers' public keys, which anybody may know."""
    charter = federation_file.load_charter(federation_file.charter_path(deployment.config))
    return [worker.key.hex() for worker in charter.federation.workers]


def played(deployment, enclave):
    """One round of this federation with all its clients."""
    clients = [deployment.client(number, row) for number, row in enumerate(ROWS, 1)]
    enclave.wait_for("RoundPublished")
    for client in clients:
        client.wait_for("done 1 True")


def test_an_impostor_that_answers_first_gets_no_work_done(deploy, logged):
    plan = {"clients": len(ROWS), "workers": 2, "f": 0, "masking": "exact", "dimension": D}
    settings = {"count": 1, "linger_s": 600}
    honest, impostor = deploy(settings=settings, **plan), deploy(settings=settings, **plan)
    for mine, theirs in zip(enrolled(impostor), enrolled(honest), strict=True):
        for file in (impostor.config, impostor.policy):
            file.write_text(file.read_text().replace(mine, theirs))
    impostor.set(listen=honest.address)
    impostor.port = honest.port

    first = impostor.enclave()
    workers = honest.workers()
    for worker in workers:
        worker.wait_for("Disconnected")
    played(impostor, first)
    assert logged(first, "TooFewWorkers")
    first.kill()
    for worker in workers:
        whys = [each["why"] for each in logged(worker, "Disconnected")]
        assert any("not signed by the authority" in why for why in whys), whys
        assert not logged(worker, "Connected")
        assert not logged(worker, "AttemptAnswered")

    true = honest.enclave()
    for worker in workers:
        worker.wait_for("Connected")
    played(honest, true)
    assert not logged(true, "TooFewWorkers")
    assert all(logged(worker, "AttemptAnswered") for worker in workers)
