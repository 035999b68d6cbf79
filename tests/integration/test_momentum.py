"""Client momentum over real processes: each update counts once, whoever dies in between."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from ostraka.model_file import read_model
from ostraka_lab.baselines import Clear
from ostraka_lab.experiment import Experiment
from ostraka_lab.task import Task

CLIENT = """
import os, signal, sys
import numpy as np
import ostraka
from ostraka.crypto import updates

address, name, root, dies = sys.argv[1:]
given = np.load(f"{root}/updates-{name}.npy")

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

with ostraka.Client(
    address, name=name, key=f"{root}/keys/{name}.key", policy=f"{root}/policy.toml",
    unsafe_simulation=True, timeout=300,
) as client:
    while not (model := client.fetch()).finished:
        if model.round == int(dies):
            updates.seal = die
        client.submit(given[model.round - 1])
        print("done", model.round, flush=True)
    np.save(f"{root}/final-{name}.npy", model.vector)
    print("finished", flush=True)
"""


def running_means(updates, beta):
    """m_N = b m_(N-1) + (1 - b) u_N in float64, from m = u: (rounds, n, d)."""
    sent = [updates[0].astype(np.float64)]
    for row in updates[1:]:
        sent.append(beta * sent[-1] + (1 - beta) * row)
    return np.stack(sent)


@pytest.mark.slow
def test_three_rounds_in_which_a_client_and_the_enclave_are_killed(deploy):
    """With f = 0 the default rule is the mean, and the sum of means is known beforehand."""
    n, d, beta = 4, 5_000, 0.75
    settings = {"count": 3, "quorum": n, "linger_s": 120, "distances": "inside"}
    deployment = deploy(clients=n, f=0, dimension=d, settings=settings | {"client_momentum": beta})
    updates = np.random.default_rng(3).normal(size=(3, n, d)).astype(np.float32)
    names = [f"client-{i + 1}" for i in range(n)]
    for i, name in enumerate(names):
        np.save(deployment.root / f"updates-{name}.npy", updates[:, i])

    def start(name, dies=0):
        arguments = (deployment.address, name, str(deployment.root), str(dies))
        return deployment.spawn(name, "-c", CLIENT, *arguments)

    enclave = deployment.enclave()
    victim = start(names[0], dies=2)
    others = [start(name) for name in names[1:]]
    assert victim.child.wait(300) == -signal.SIGKILL
    kept = {path.name[-2:] for path in (deployment.root / "keys").glob("client-1.*.momentum-*")}
    assert kept == {"-1", "-2"}

    def has_sent(name):
        def matches(line):
            said = json.loads(line) if line.startswith("{") else {}
            ours = {"event": "UploadCompleted", "client": name}
            return ours.items() <= said.items()

        return matches

    # All others have sent for round 2, which is then opened again.
    opened = enclave.wait_for(lambda line: '"RoundOpened"' in line and '"number": 2' in line)
    for name in names[1:]:
        enclave.wait_for(has_sent(name), after=opened)
    enclave.kill()
    deployment.enclave()
    for each in (start(names[0]), *others):
        each.wait_for("finished")

    expected = running_means(updates, beta).mean(axis=1).sum(axis=0)
    for name in names:
        final = np.load(deployment.root / f"final-{name}.npy")
        np.testing.assert_allclose(final, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_run_of_the_lab_ends_with_the_model_of_the_clear(tmp_path):
    """Attackers know what honest clients send, after momentum, in both."""
    experiment = Experiment(
        clients=5, byzantine=1, attack="ipm", rounds=3, steps=2, client_momentum=0.9
    )
    clear = Clear(Task.load(experiment), experiment.defence)
    *_, last = clear.rounds()
    options = ("--clients=5", "--byzantine=1", "--attack=ipm", "--rounds=3", "--steps=2")
    more = ("--client-momentum=0.9", "--processes=1", "--out", str(tmp_path / "run"))
    command = ("train", *options, *more)
    done = subprocess.run(
        [sys.executable, "-m", "ostraka", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    over_services = read_model(tmp_path / "run" / "model.safetensors")[1]
    moved = np.linalg.norm(last.model - Task.load(experiment).first()[1])
    assert np.linalg.norm(over_services - last.model) < 1e-4 * moved
