"""A worker on a real Ray cluster of two nodes on this machine: whatever becomes of them, its
answers are those of one process, to the bit."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

pytest.importorskip("ray", reason="needs ray: make test-env")

from ostraka.config import Tiling
from ostraka.core import rules
from ostraka.core.field import P
from ostraka.core.gram import DTYPES, NumpyKernel, Values
from ostraka.crypto.aead import SealedGroups
from ostraka.crypto.channel import PendingChannel
from ostraka.crypto.hpke import HybridKey
from ostraka.crypto.identity import Identity
from ostraka.encoding import UNSIGNED
from ostraka.errors import ConfigError, OpenError, ServiceError
from ostraka.messages import ChannelOffer, MaskSeed, ShareTile
from ostraka.protocol.worker import Worker
from ostraka.transport.dial import Backoff
from ostraka.worker import RayKernel, RayOptions

pytestmark = pytest.mark.slow

ENCLAVE, ME = (Identity(bytes([seed]) * 32) for seed in (1, 2))
ROWS, TILE = 12, 4096
COLUMNS = Tiling(9 * TILE + 100, TILE)
SEED = bytes(range(100, 132))
VALUES: dict[str, Values] = {"exact": "residues", "gaussian": "float64"}
PATIENCE_S = 300.0

# Ray leaves files open, so that its nodes are not children of the tests themselves.
CLUSTER = """
import json, sys
from ray.cluster_utils import Cluster
node = {"num_cpus": 1, "object_store_memory": 100_000_000}
head = {**node, "include_dashboard": False, **json.loads(sys.argv[1])}
cluster = Cluster(initialize_head=True, head_node_args=head)
raylets = lambda: {
    each.all_processes["raylet"][0].process.pid: each
    for each in (cluster.head_node, *cluster.worker_nodes)
}
for line in sys.stdin:
    match line.split():
        case ["add"]:
            cluster.add_node(**node)
        case ["remove", raylet]:
            cluster.remove_node(raylets()[int(raylet)], allow_graceful=False)
    logs = cluster.head_node.get_logs_dir_path()
    said = {"address": cluster.address, "logs": logs, "raylets": [*raylets()]}
    print(json.dumps(said), flush=True)
cluster.shutdown()
"""


@pytest.fixture(scope="module", autouse=True)
def quiet():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # How long a driver looks for a cluster that is gone, before Ray ends it.
        patch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "3")
        yield


class Cluster:
    """Nodes of one CPU each on this machine. raylets: the main process of each node."""

    address: str
    logs: str
    raylets: list[int]

    def __init__(self, nodes, **head):
        self._child: Any = subprocess.Popen(
            [sys.executable, "-c", CLUSTER, json.dumps(head)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(nodes - 1):
            self.do("add")
        self.do("show")

    def do(self, *command):
        print(*command, file=self._child.stdin, flush=True)
        said = iter(self._child.stdout.readline, "")
        vars(self).update(json.loads(next(line for line in said if line.startswith("{"))))

    def actors(self, title="ray::Actor"):
        """The processes of actors, by node."""
        return {raylet: children_of(raylet, title) for raylet in self.raylets}

    def all_actors(self):
        return [pid for pids in self.actors().values() for pid in pids]

    def shutdown(self):
        with self._child:
            self._child.stdin.close()


@pytest.fixture(scope="module")
def cluster(quiet):
    running = Cluster(2)
    yield running
    running.shutdown()


@pytest.fixture(scope="module")
def kernel(cluster):
    running = RayKernel(RayOptions(cluster.address))
    yield running
    running.close()


class Attempt:
    """The enclave's side of an attempt, with tiles that are random, and sealed as it seals them."""

    def __init__(self, masking, kernel):
        key = HybridKey()
        offer = ChannelOffer(
            federation=b"c" * 32,
            round_id=b"r" * 32,
            attempt_id=b"a" * 32,
            worker=ME.public,
            point=0,
            masking=masking,
            rows=ROWS,
            columns=COLUMNS.length,
            tile=TILE,
            key=key.public,
            signature=UNSIGNED,
        )
        pending = PendingChannel(offer, ENCLAVE, key, ME.public)
        worker = Worker(ME, receipt_key=ENCLAVE.public, kernel=kernel)
        self.computing, accept = worker.accept(pending.offer)
        self.channel = pending.finish(accept)
        self.values = VALUES[masking]
        self.layout = SealedGroups(COLUMNS, ROWS, DTYPES[self.values].itemsize)

    def tile(self, index):
        rng, shape = np.random.default_rng(index), (ROWS, COLUMNS.size(index))
        exact = self.values == "residues"
        block = rng.integers(0, P, shape, np.uint32) if exact else rng.normal(size=shape)
        sealed = memoryview(bytearray(self.layout.size(index)))
        for group in self.layout.groups():
            out = sealed[self.layout.part(index, group)]
            self.channel.seal_share(index, group.start, block[group.start : group.stop], out)
        return ShareTile(b"a" * 32, index, bytes(sealed))

    def add(self, *indices):
        for index in indices:
            self.computing.add(self.tile(index))

    def finish(self):
        self.add(*sorted(self.computing._left))
        return self.answer()

    def answer(self):
        return self.channel.open_answer(self.computing.answer().ciphertext)


def expected(masking):
    attempt = Attempt(masking, NumpyKernel())
    attempt.add(*range(COLUMNS.count))
    return attempt.answer()


def children_of(parent, title):
    """The children of a process that call themselves so."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            theirs = int(stat.read_text().rpartition(")")[2].split()[1])
            if theirs == parent and title in (stat.parent / "cmdline").read_text():
                found.append(int(stat.parent.name))
    return found


def wait_until(condition):
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.2)


def events(caplog, event):
    return [each.ostraka_fields for each in caplog.records if each.getMessage() == event]


def actors_ready(caplog):
    """How many there were when the last one joined."""
    return [0, *(event["actors"] for event in events(caplog, "ActorReady"))][-1]


@pytest.mark.parametrize("masking", ["exact", "gaussian"])
def test_sealed_tiles_give_the_answer_of_one_process(kernel, masking):
    attempt = Attempt(masking, kernel)
    attempt.add(*range(COLUMNS.count))
    assert attempt.answer() == expected(masking)


def test_a_seed_gives_the_answer_of_one_process(kernel, cluster):
    answers = []
    for each in (kernel, NumpyKernel()):
        attempt = Attempt("exact", each)
        attempt.computing.add_seed(MaskSeed(b"a" * 32, attempt.channel.seal_seed(SEED)))
        answers.append(attempt.answer())
    assert answers[0] == answers[1]
    keys = [SEED, attempt.channel.shares.key]
    for file in Path(cluster.logs).rglob("*"):
        text = file.read_bytes() if file.is_file() else b""
        for secret in keys:
            assert secret not in text, file
            assert secret.hex().encode() not in text, file


def test_plain_blocks_and_sums_beside_each_other(kernel):
    rng = np.random.default_rng(0)
    far, near = ([each.begin(5, "residues") for _ in "ab"] for each in (kernel, NumpyKernel()))
    for _ in range(5):
        for mine, theirs in zip(far, near, strict=True):
            block = rng.integers(0, P, (5, 300), np.uint32)
            theirs.add(block)
            mine.add(block)
            block[:] = 0  # The caller may change it.
    for mine, theirs in zip(far, near, strict=True):
        assert np.array_equal(mine.total(), theirs.total())
        assert np.array_equal(mine.total(), theirs.total())


@pytest.mark.parametrize("place", [0, 4, COLUMNS.count - 1])
def test_a_tile_that_does_not_open_ends_the_attempt_and_no_other(kernel, place):
    attempt = Attempt("exact", kernel)
    tiles = [attempt.tile(index) for index in range(COLUMNS.count)]
    damaged = bytearray(tiles[place].ciphertext)
    damaged[-1] ^= 1
    tiles[place] = ShareTile(b"a" * 32, place, bytes(damaged))

    def take_all():
        for tile in tiles:
            attempt.computing.add(tile)
        attempt.answer()

    with pytest.raises(OpenError, match=f"^{OpenError('share')}$"):
        take_all()
    following = Attempt("exact", kernel)
    following.add(*range(COLUMNS.count))
    assert following.answer() == expected("exact")


def test_an_actor_that_fails_ends_the_attempt_and_no_other(kernel, caplog):
    running = kernel.begin(5, "residues")
    running.add(np.zeros((1, 3), np.uint32))  # three values are no rows of five
    with pytest.raises(ServiceError, match=r"an actor .* failed: RayTaskError\(ValueError\)"):
        running.total()
    assert "cannot reshape" in events(caplog, "ActorFailed")[0]["why"]
    test_sealed_tiles_give_the_answer_of_one_process(kernel, "exact")


def test_a_second_worker_on_the_cluster_is_refused(kernel, cluster):
    with pytest.raises(ConfigError, match=rf"\(process {os.getpid()} .* are one colluder"):
        RayKernel(RayOptions(cluster.address))
    test_sealed_tiles_give_the_answer_of_one_process(kernel, "exact")


def test_a_node_is_lost_with_the_blocks_that_it_has(kernel, cluster, caplog):
    """Its actor is stopped first, so that it has surely not answered. Another node takes over."""
    caplog.set_level(logging.INFO)
    (doomed,) = (raylet for raylet, held in cluster.actors("ray::Holder").items() if not held)
    (actor,) = cluster.actors()[doomed]
    attempt = Attempt("exact", kernel)
    os.kill(actor, signal.SIGSTOP)
    try:
        attempt.add(0, 1, 2)
        cluster.do("remove", doomed)
    finally:
        os.kill(actor, signal.SIGKILL)
    attempt.add(*range(3, COLUMNS.count))
    assert attempt.answer() == expected("exact")
    assert sum(lost["blocks"] for lost in events(caplog, "ActorLost")) >= 1
    # The next node gets an actor in place of the lost one.
    cluster.do("add")
    wait_until(lambda: Attempt("exact", kernel).finish() and actors_ready(caplog) == 2)


def test_an_actor_is_killed_again_and_again(kernel, cluster):
    attempt, killed = Attempt("gaussian", kernel), 0
    for index in range(COLUMNS.count):
        attempt.add(index)
        if index % 4 == 0:
            for actor in cluster.all_actors()[:1]:  # None is there while the last are replaced.
                os.kill(actor, signal.SIGKILL)
                killed += 1
    assert killed
    assert attempt.answer() == expected("gaussian")


def test_more_gpus_than_a_node_has_are_refused(kernel, cluster):
    kernel.close()
    wait_until(lambda: not cluster.all_actors())
    with pytest.raises(ConfigError, match=r"1 CPU and 1 GPUs .* has [23] nodes .* room for 0"):
        RayKernel(RayOptions(cluster.address, gpus=1))


def test_a_round_with_one_worker_on_ray_and_one_not(kernel, cluster, deploy, logged):
    kernel.close()
    n, f, d = 8, 2, 20_000
    rng = np.random.default_rng(5)
    rows = (rng.normal(size=d) + 0.3 * rng.normal(size=(n, d))).astype(np.float32)
    rows[n - f :] *= -3
    deployment = deploy(
        clients=n,
        f=f,
        workers=2,
        dimension=d,
        composition=rules.parse("multi-krum"),
        settings={"count": 2, "deadline_s": 120, "linger_s": 60, "disclose_selection": True},
    )
    enclave = deployment.enclave()
    on_ray = deployment.worker(1, "--ray", cluster.address, "--ray-actors", "2")
    deployment.worker(2)
    enclave.wait_for("WorkerJoined", after=enclave.wait_for("WorkerJoined"))
    clients = [deployment.client(i + 1, rows[i]) for i in range(n)]
    for client in clients:
        client.wait_for("done 1 True")
    on_ray.wait_for("AttemptAnswered")
    assert logged(enclave, "AttemptStarted")[-1]["workers"] == ["worker-1", "worker-2"]
    assert not logged(enclave, "WorkerFailed")
    out = deployment.root / "model.safetensors"
    fetching = deployment.spawn(
        "fetch",
        *("-m", "ostraka", "client", "fetch", "--enclave", deployment.address),
        *("--name", "client-1", "--key", str(deployment.key("client-1"))),
        *("--policy", str(deployment.policy), "--unsafe-simulation", "--out", str(out), "--json"),
    )
    assert fetching.child.wait(PATIENCE_S) == 0, fetching.lines
    (model,) = load_file(out).values()
    np.testing.assert_allclose(model, rows[: n - f].mean(axis=0, dtype=float), rtol=1e-5, atol=1e-7)
    assert len(cluster.all_actors()) == 2
    assert on_ray.stop() == 0
    wait_until(lambda: not cluster.all_actors())
    next_one = deployment.worker(1, "--ray", cluster.address)
    next_one.wait_for("RayConnected")
    assert cluster.all_actors()
    next_one.kill()
    wait_until(lambda: not cluster.all_actors())


@pytest.mark.soak
def test_a_cluster_that_is_gone_fails_the_attempt_and_is_found_again(caplog):
    first = Cluster(1)
    port = int(first.address.rpartition(":")[2])
    try:
        options = RayOptions(first.address)
        kernel = RayKernel(options, backoff=Backoff(0.1, 0.5))
        attempt = Attempt("exact", kernel)
        attempt.add(0)
    finally:
        first.shutdown()
    with pytest.raises(ServiceError):
        attempt.finish()
    wait_until(lambda: events(caplog, "RayLost"))
    with pytest.raises(ServiceError, match="tries to connect again"):
        kernel.begin(2, "residues")
    second = Cluster(1, gcs_server_port=port)
    try:
        wait_until(lambda: kernel._driver is not None)
        test_sealed_tiles_give_the_answer_of_one_process(kernel, "exact")
    finally:
        kernel.close()
        second.shutdown()
