"""Kernels are found by name in one table, and one more line there is all that a new one takes."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from ostraka.cli import app, worker
from ostraka.config import Manifest, Terms
from ostraka.core.field import P
from ostraka.core.gram import DTYPES, NumpyKernel
from ostraka.errors import IMPOSSIBLE, ConfigError
from ostraka.files import write_identity
from ostraka.protocol.enclave import Threads
from ostraka.protocol.round import enrol, play
from ostraka.worker import backends, kernel_for


class Abacus:
    """A kernel in Python's own integers. device: the name that it was asked for by."""

    def __init__(self, device):
        self.device, self.sums = device, []

    def begin(self, rows, values):
        self.sums.append(AbacusSum(rows, values))
        return self.sums[-1]


class AbacusSum:
    def __init__(self, rows, values):
        self.products, self.values = np.zeros((rows, rows), object), values

    def add(self, block):
        numbers = block.astype(object)
        self.products += numbers @ numbers.T

    def total(self):
        reduced = self.products % P if self.values == "residues" else self.products
        return reduced.astype(DTYPES[self.values])


@pytest.fixture
def abacus(monkeypatch):
    """Registers the kernel, which is all that it takes."""
    monkeypatch.setitem(backends.KERNELS, "abacus", Abacus)
    monkeypatch.setitem(backends.KERNELS, "abacus:<number>", Abacus)


@pytest.mark.usefixtures("abacus")
@pytest.mark.parametrize("device", ["abacus", "abacus:7"])
def test_a_registered_kernel_is_chosen_by_its_name(device):
    kernel, chosen = kernel_for(device)
    assert isinstance(kernel, Abacus)
    assert kernel.device == chosen == device
    with pytest.raises(ConfigError, match=r"'cuda:<number>', 'abacus', 'abacus:<number>'"):
        kernel_for("slide-rule")


@pytest.mark.usefixtures("abacus")
@pytest.mark.filterwarnings("ignore::ostraka.errors.LeakyMasking")
@pytest.mark.parametrize("masking", ["exact", "gaussian"])
def test_workers_with_a_registered_kernel_play_the_same_round(masking):
    rows = np.random.default_rng(0).normal(size=(7, 40)).astype(np.float32)
    # Weights that follow from distances would differ by the masks of an attempt.
    terms = Terms(Manifest.flat(40), f=1, rule="multi-krum", pre=(), tile=16, masking=masking)
    parties = enrol(terms, clients=7)
    expected = play(parties, rows, Threads())
    kernel: Any = backends.choose("abacus")
    workers: Any = parties.federation.workers.values()
    for each in workers:
        each._kernel = kernel
    found = play(parties, rows, Threads())
    assert found.receipt.distances == "workers"
    assert found.selected == expected.selected
    assert np.array_equal(found.aggregate, expected.aggregate)
    assert len(kernel.sums) == len(workers)


@pytest.mark.usefixtures("abacus")
def test_the_command_serves_with_a_registered_kernel(monkeypatch, tmp_path):
    staffs = []

    class Service:
        def __init__(self, address, staff, **options):
            staffs.append(staff)

        def run(self):
            """Serves no enclave."""

        stop = run

    monkeypatch.setattr(worker, "WorkerService", Service)
    write_identity(tmp_path / "me.key", "me")
    options = ["--enclave", "127.0.0.1:1", "--name", "me", "--key", str(tmp_path / "me.key")]
    options += ["--receipt-key", "00" * 32]
    result = CliRunner().invoke(app, ["worker", "run", *options, "--device", "abacus"])
    assert result.exit_code == 0, result.output
    assert [type(staff.kernel) for staff in staffs] == [Abacus]


def test_the_kernels_by_name():
    pytest.importorskip("torch")
    torch_kernel = pytest.importorskip("ostraka.worker.torch_kernel")
    assert isinstance(backends.choose("cpu"), NumpyKernel)
    assert isinstance(backends.choose("torch"), torch_kernel.TorchKernel)
    assert isinstance(backends.choose("torch-cpu"), torch_kernel.TorchKernel)


@pytest.mark.parametrize("device", ["cpu", "torch-cpu"])
def test_a_kernel_has_a_sum_in_each_of_several_threads(device):
    """As that of a worker has, which serves a lead and its shards."""
    if device != "cpu":
        pytest.importorskip("torch")
    kernel = backends.choose(device)
    draw = np.random.default_rng(0)
    blocks = draw.integers(0, P, (6, 5, 9, 300), dtype=np.uint32)  # sum, block, row, column

    def added(each):
        running = kernel.begin(9, "residues")
        for block in each:
            running.add(block)
        return running.total()

    def expected(each):
        rows = np.concatenate(each, axis=1).astype(object)
        return (rows @ rows.T % P).astype(np.uint32)

    with ThreadPoolExecutor(len(blocks)) as pool:
        for found, each in zip(pool.map(added, blocks), blocks, strict=True):
            assert np.array_equal(found, expected(each))


def test_an_address_is_given_once(tmp_path):
    options = ["--name", "me", "--key", str(tmp_path / "me.key"), "--receipt-key", "00" * 32]
    twice = ["--enclave", "a:1", "--enclave", "b:1", "--enclave", "a:1"]
    result = CliRunner().invoke(app, ["worker", "run", *twice, *options])
    assert result.exit_code == IMPOSSIBLE
    assert "--enclave a:1 is given twice" in result.output


OTHER_NAMES = [
    "",
    "gpu",
    "cuda:",
    "cuda:x",
    "cuda:-1",
    "cuda:1:1",
    "CPU",
    "cpu:1",
    "torch:0",
    "mps",
]


@pytest.mark.parametrize("device", OTHER_NAMES)
def test_choose_refuses_other_names(device):
    with pytest.raises(ConfigError, match="no kernel for device"):
        backends.choose(device)


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_choose_says_what_cuda_lacks(device):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("needs a machine without CUDA")
    with pytest.raises(ConfigError, match=f"no device '{device}' here: torch .* finds 0 CUDA"):
        backends.choose(device)


@pytest.mark.parametrize("device", ["torch", "cuda:0"])
def test_choose_without_torch_says_how_to_install_it(monkeypatch, device):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "ostraka.worker.torch_kernel", raising=False)
    with pytest.raises(ConfigError, match=r"in a clone, pip install .* -e '\.\[torch\]'"):
        backends.choose(device)
    assert isinstance(backends.choose("cpu"), NumpyKernel)


def test_importing_the_package_does_not_import_torch():
    code = "import sys, ostraka.worker.backends as b; b.choose('cpu')"
    code += "; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
