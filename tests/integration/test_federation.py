"""A whole federation of real processes: enclave, workers and clients over sockets."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from ostraka.core import rules

RNG = np.random.default_rng(7)


def honest_and_attackers(n, f, d):
    """Rows (n, d): the honest ones lie together, the attackers' are their opposite, and longer."""
    centre = RNG.normal(size=d)
    rows = centre + 0.3 * RNG.normal(size=(n, d))
    rows[n - f :] = -3 * rows[n - f :]
    return rows.astype(np.float32)


def multi_krum_mean(rows, f):
    """The float64 reference, written from the paper: clip, score, keep n - f, average."""
    rows = rows.astype(np.float64)
    norms = np.linalg.norm(rows, axis=1)
    limit = np.exp2(np.ceil(np.log2(4 * np.median(norms))))
    rows *= np.minimum(1, limit / norms)[:, None]
    squares = np.square(rows[:, None] - rows[None]).sum(axis=2)
    n = len(rows)
    scores = [np.sort(np.delete(squares[i], i))[: n - f - 2].sum() for i in range(n)]
    kept = np.sort(np.argsort(scores, kind="stable")[: n - f])
    return kept, rows[kept].mean(axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("masking", ["exact", "gaussian"])
def test_sixteen_clients_and_four_attackers(deploy, logged, masking):
    d, n, f = 20_000, 16, 4
    deployment = deploy(
        clients=n,
        f=f,
        masking=masking,
        dimension=d,
        composition=rules.parse("multi-krum"),
        settings={"count": 1, "deadline_s": 120, "linger_s": 60, "disclose_selection": True},
    )
    if masking == "gaussian":
        text = deployment.policy.read_text()
        deployment.policy.write_text(text.replace("maskings = [", 'maskings = ["gaussian", '))
    rows = honest_and_attackers(n, f, d)
    enclave = deployment.enclave()
    deployment.workers()
    enclave.wait_for("WorkerJoined", after=enclave.wait_for("WorkerJoined"))
    clients = [deployment.client(i + 1, rows[i]) for i in range(n)]
    for client in clients:
        client.wait_for("done 1 True")
    attempt = logged(enclave, "AttemptStarted")[-1]
    assert attempt["workers"] == ["worker-1", "worker-2"]
    kept, mean = multi_krum_mean(rows, f)
    assert kept.tolist() == list(range(n - f))
    out = deployment.root / "model.safetensors"
    fetching = deployment.spawn(
        "fetch",
        *("-m", "ostraka", "client", "fetch", "--enclave", deployment.address),
        *("--name", "client-1", "--key", str(deployment.key("client-1"))),
        *("--policy", str(deployment.policy), "--unsafe-simulation", "--out", str(out), "--json"),
    )
    assert fetching.child.wait(300) == 0, fetching.lines
    (model,) = load_file(out).values()
    np.testing.assert_allclose(model, mean, rtol=1e-6, atol=1e-9)
    assert json.loads(fetching.lines[-1])["simulated"]
    assert enclave.stop() == 0
    assert all(line["simulated"] for line in map(json.loads, enclave.lines))


@pytest.mark.slow
@pytest.mark.parametrize("masking", ["none", "exact"])
def test_a_federation_comes_to_the_same_whatever_memory_its_enclave_has(stage, masking):
    """Where a row is kept changes no bit of it, and no order in which rows are added up."""
    receipts = []
    for mib, spooled in ((0, 5), (3, 3), (8, 0)):  # A row takes 1.14 MiB.
        play = stage(
            clients=5,
            f=1,
            masking=masking,
            dimension=300_000,
            settings={"memory_mib": mib, "tile": 2**14, "quorum": 5},
        )
        last = play.gate()
        play.client("client-5").gates["fetched", 1] = last
        play.start_enclave()
        for number in (1, 2):
            play.start_worker(number)
        play.start_clients()
        for name in play.names[:-1]:
            play.wait_for("UploadCompleted", client=name)
        assert play.status()["spooled"] == max(0, spooled - 1)
        last.open()
        (receipt,) = play.check()
        receipts.append((receipt.model, receipt.selected))
    assert len(set(receipts)) == 1
    assert any(receipts[0][0])
