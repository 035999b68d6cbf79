"""A worker on Ray, as far as that goes without a cluster."""

import importlib.util
import subprocess
import sys
from collections import deque
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from ostraka.cli import app
from ostraka.config import Tiling
from ostraka.core import gram
from ostraka.core.field import P
from ostraka.core.gram import NumpyKernel
from ostraka.crypto.aead import SealedGroups
from ostraka.crypto.channel import Channel, ShareOpener
from ostraka.errors import ConfigError, LocalProtocolError, OpenError, ServiceError
from ostraka.files import write_identity
from ostraka.protocol.worker import MaskTile, SealedTile
from ostraka.worker import RayKernel, RayOptions
from ostraka.worker.ray_kernel import describe, understand

ROWS, COLUMNS = 5, Tiling(70, 32)
LAYOUT = SealedGroups(COLUMNS, ROWS, 4)
CHANNEL = Channel(b"s" * 32, b"transcript")
SPACE = np.empty((ROWS, COLUMNS.tile), np.uint32)


def sealed(index):
    block = np.random.default_rng(index).integers(0, P, (ROWS, COLUMNS.size(index)), np.uint32)
    out = memoryview(bytearray(LAYOUT.size(index)))
    for group in LAYOUT.groups():
        part = out[LAYOUT.part(index, group)]
        CHANNEL.seal_share(index, group.start, block[group.start : group.stop], part)
    return block, SealedTile(CHANNEL.shares, LAYOUT, index, bytes(out))


class FarKernel:
    """A kernel whose sums make blocks themselves, and say late that one does not open."""

    def begin(self, rows, values):
        return FarSum(NumpyKernel().begin(rows, values))


class FarSum:
    def __init__(self, running):
        self.running = running
        self.sources: deque[Any] = deque()

    def add(self, block):
        self.running.add(block)

    def add_from(self, source, space):
        self.sources.append(source)

    def total(self):
        while self.sources:
            self.running.add(self.sources.popleft().make(SPACE))
        return self.running.total()


@pytest.mark.parametrize("index", range(COLUMNS.count))
def test_a_sealed_tile_is_made_by_whoever_understands_its_description(index):
    block, tile = sealed(index)
    assert np.array_equal(understand(*describe(tile)).make(SPACE), block)


def test_a_mask_is_made_by_whoever_understands_its_description():
    mask = MaskTile(b"m" * 32, ROWS, COLUMNS, 1)
    assert understand(*describe(mask)) == mask
    assert np.array_equal(understand(*describe(mask)).make(SPACE), mask.make(SPACE))


def test_a_tile_with_another_key_does_not_open():
    described, body = describe(sealed(0)[1])
    for changed in (described | {"key": "00" * 32}, described | {"index": 1}):
        with pytest.raises(OpenError):
            understand(changed, body).make(SPACE)


def test_nothing_else_is_described():
    class Other:
        def make(self, space):
            return space

    with pytest.raises(LocalProtocolError, match="a Other cannot be sent"):
        describe(Other())


def test_what_holds_a_key_does_not_show_it():
    for each in (sealed(0)[1], ShareOpener(b"k" * 32), MaskTile(b"m" * 32, 1, COLUMNS, 0)):
        for secret in (CHANNEL.shares.key, b"k" * 32, b"m" * 32):
            assert secret.hex() not in repr(each)
            assert repr(secret)[2:-1] not in repr(each)


@pytest.mark.parametrize("kernel", [FarKernel(), NumpyKernel()])
def test_a_sum_makes_blocks_itself_or_gets_them_made(kernel):
    running, expected = kernel.begin(ROWS, "residues"), NumpyKernel().begin(ROWS, "residues")
    for index in range(COLUMNS.count):
        block, tile = sealed(index)
        expected.add(block)
        gram.add_from(running, tile, SPACE)
    assert np.array_equal(running.total(), expected.total())


BAD_OPTIONS: dict[str, Any] = {
    "no address": {"address": ""},
    "a cluster that would be started": {"address": "local"},
    "Ray's client": {"address": "ray://head:10001"},
    "a host alone": {"address": "head"},
    "no actor": {"actors": 0},
    "GPUs below none": {"gpus": -1.0},
    "GPUs that are no number": {"gpus": float("nan")},
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_options_that_cannot_work(case):
    with pytest.raises(ConfigError):
        RayOptions(**BAD_OPTIONS[case])


def test_a_worker_waits_a_minute_for_actors():
    assert RayOptions().patience_s == 60


def test_without_ray_it_says_how_to_install_it(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "ostraka.worker.ray_kernel.find_spec", lambda name: None if name == "ray" else found(name)
    )
    with pytest.raises(ConfigError, match=r"in a clone, pip install .* -e '\.\[ray\]'"):
        RayKernel(RayOptions())


def test_no_cluster_at_the_address():
    pytest.importorskip("ray", reason="needs ray: make test-env")
    with pytest.raises(ConfigError, match=r"no Ray cluster at '127\.0\.0\.1:1'"):
        RayKernel(RayOptions("127.0.0.1:1"))


def test_a_driver_that_dies_at_once_leaves_its_last_words(monkeypatch):
    pytest.importorskip("ray", reason="needs ray: make test-env")
    program = "import sys; print('first'); sys.exit('its last words')"
    monkeypatch.setattr("ostraka.worker.ray_kernel._PROGRAM", program)
    with pytest.raises(ConfigError, match="no connection to Ray: its last words"):
        RayKernel(RayOptions())


# Says that it is connected, and ends in the middle of the first sum.
FLEETING = """
import json, socket, sys
from ostraka.worker.ray_kernel import Line
line = Line(socket.socket(fileno=int(sys.argv[1])))
line.send(json.dumps({"nodes": 1, "cpus": 1.0, "gpus": 0.0, "actors": 1}).encode())
line.receive()
"""


def test_a_driver_that_ends_fails_the_attempt_and_not_the_worker(monkeypatch):
    pytest.importorskip("ray", reason="needs ray: make test-env")
    monkeypatch.setattr("ostraka.worker.ray_kernel._PROGRAM", FLEETING)
    kernel = RayKernel(RayOptions())
    running = kernel.begin(2, "residues")
    with pytest.raises(ServiceError, match="has lost its Ray cluster"):
        running.total()
    kernel.close()
    with pytest.raises(ServiceError):
        kernel.begin(2, "residues").total()


# Says that it is connected, and then that a reply of this size is coming.
BOASTING = (
    FLEETING
    + """
import struct, time
line.receive()
for _ in range({replies}):
    line.send(b'{{"failure": null, "why": ""}}')
    line.send(b"")
    line.receive(), line.receive()
line.send(b'{{"failure": null, "why": ""}}')
line._end.sendall(struct.pack(">Q", {size}))
line.receive()
"""
)


@pytest.mark.parametrize(("replies", "size"), [(0, 1), (1, 2 * 2 * 4 + 1), (1, 2**62)])
def test_a_reply_that_is_too_long_is_not_waited_for(monkeypatch, replies, size):
    """Who reaches the cluster can have the driver say anything."""
    pytest.importorskip("ray", reason="needs ray: make test-env")
    program = BOASTING.replace('{"nodes', '{{"nodes').replace('"actors": 1}', '"actors": 1}}')
    program = program.format(replies=replies, size=size)
    monkeypatch.setattr("ostraka.worker.ray_kernel._PROGRAM", program)
    kernel = RayKernel(RayOptions())
    running = kernel.begin(2, "residues")
    with pytest.raises(ServiceError, match="has lost its Ray cluster"):
        running.total()
    kernel.close()


NODES = [{"CPU": 4.0, "GPU": 2.0}, {"CPU": 8.0, "GPU": 1.0}, {"GPU": 8.0}, {"memory": 1.0}]
WANTED: dict[str, Any] = {
    "as many as have a processor": ({}, 12),
    "as many as were asked for": ({"actors": 5}, 5),
    "as many as have a GPU": ({"gpus": 1.0}, 3),
    "four on a GPU": ({"gpus": 0.25}, 8),
    "more than fit": ({"actors": 13}, "13 actors of 1 CPU each do not fit.* with room for 12"),
    "three GPUs together": ({"gpus": 3.0}, "of 1 CPU and 3 GPUs each do not fit.* room for 0"),
}


@pytest.mark.parametrize("case", WANTED)
def test_how_many_actors_there_are(monkeypatch, case):
    driver = pytest.importorskip("ostraka.worker.ray_driver", reason="needs ray: make test-env")
    monkeypatch.setattr(driver, "_nodes", lambda: NODES)
    options, expected = WANTED[case]
    if isinstance(expected, int):
        assert driver._wanted(RayOptions(**options)) == expected
    else:
        with pytest.raises(ConfigError, match=expected):
            driver._wanted(RayOptions(**options))


COMMANDS = {
    "no actor": (["--ray", "auto", "--ray-actors", "0"], "0 is not in the range x>=1"),
    "a device of this machine": (["--ray", "auto", "--device", "cuda"], "--gpus-per-actor 1"),
    "actors without a cluster": (["--ray-actors", "2"], "need --ray"),
    "GPUs without a cluster": (["--gpus-per-actor", "1"], "need --ray"),
    "a cluster at no address": (["--ray", "ray://head"], "no address of a Ray cluster"),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_the_command_refuses(tmp_path, case):
    added, message = COMMANDS[case]
    write_identity(tmp_path / "me.key", "me")
    options = ["--enclave", "127.0.0.1:1", "--name", "me", "--key", str(tmp_path / "me.key")]
    options += ["--receipt-key", "00" * 32]
    result = CliRunner().invoke(app, ["worker", "run", *options, *added])
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_the_workers_process_does_not_load_ray():
    code = "import sys, ostraka.worker, ostraka.cli.worker; sys.exit('ray' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
