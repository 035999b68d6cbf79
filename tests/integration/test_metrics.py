"""Metrics through real services: sealed by clients, published as a mean, refused by a policy."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

import ostraka
from ostraka.errors import AttestationRefused, ConfigError, Refusal

N, F, D = 5, 1, 200
LOSSES = (0.2, 0.4, 0.6, 1e6, None)  # the fourth lies, and the fifth reports nothing


def opened(deployment, number, **more):
    name = f"client-{number}"
    return ostraka.Client(
        deployment.address,
        name=name,
        key=deployment.key(name),
        policy=more.pop("policy", deployment.policy),
        unsafe_simulation=True,
        timeout=300,
        **more,
    )


@pytest.mark.slow
def test_clients_report_and_the_receipt_has_the_mean(deploy, tmp_path):
    settings = {"count": 2, "quorum": N, "linger_s": 120, "distances": "inside"}
    deployment = deploy(
        clients=N, f=F, dimension=D, report_metrics=("loss", "accuracy"), settings=settings
    )
    strict = deployment.policy.read_text().replace('["loss", "accuracy"]', '["loss"]')
    refusing = deployment.root / "strict.toml"
    refusing.write_text(strict)
    deployment.enclave()
    with opened(deployment, 1, policy=refusing) as client:
        with pytest.raises(AttestationRefused, match=r"report_metrics = \[.*accuracy") as refused:
            client.fetch()
        assert refused.value.reason is Refusal.METRICS

    rows = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
    outcomes = []
    with ExitStack() as stack, ThreadPoolExecutor(N) as threads:
        clients = [stack.enter_context(opened(deployment, 1 + row)) for row in range(N)]
        models = list(threads.map(lambda each: each.fetch(), clients))
        for unfit in ({"los": 1}, {"loss": float("nan"), "accuracy": 1}, {"loss": 0.1}):
            with pytest.raises(ConfigError):
                clients[0].submit(rows[0], metrics=unfit)

        def submit(row):
            said = {"loss": LOSSES[row], "accuracy": 0.5, "examples": 7}
            return clients[row].submit(rows[row], None if LOSSES[row] is None else said)

        outcomes = list(threads.map(submit, range(N)))
        after = list(threads.map(lambda each: each.fetch(), clients))
    assert {model.round for model in models} == {1}
    assert all(outcome.accepted for outcome in outcomes)
    (published,) = {outcome.receipt.metrics for outcome in outcomes}
    assert published.clients == 4
    assert published.loss == pytest.approx((0.2 + 0.4 + 0.6 + 10) / 4)
    assert (published.accuracy, published.examples) == (0.5, None)
    assert all(model.receipt.metrics == published for model in after)

    np.save(tmp_path / "update.npy", rows[0])
    commands = [
        deployment.spawn(
            f"submit-{number}",
            *("-m", "ostraka", "client", "submit", str(tmp_path / "update.npy"), "--json"),
            *("--enclave", deployment.address, "--name", f"client-{number}", "--round", "2"),
            *("--key", str(deployment.key(f"client-{number}")), "--policy"),
            *(str(deployment.policy), "--unsafe-simulation"),
            *("--metric", f"loss=0.{number}", "--metric", "accuracy=1"),
        )
        for number in range(1, N + 1)
    ]
    for command in commands:
        assert command.child.wait(300) == 0, command.lines
        told = json.loads(command.lines[-1])["metrics"]
        assert told == {"round": 2, "clients": N, "loss": pytest.approx(0.3), "accuracy": 1.0}
    status = deployment.spawn(
        "status", "-m", "ostraka", "status", "--enclave", deployment.address, "--json"
    )
    assert status.child.wait(300) == 0, status.lines
    shown = json.loads(status.lines[-1])["metrics"]
    assert [each["round"] for each in shown] == [1, 2]
