"""The torch kernel gives the numpy kernel's residues to the bit, by either route."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from ostraka.arrays import AnyArray, UInt32  # noqa: E402
from ostraka.core import field  # noqa: E402
from ostraka.core.field import P  # noqa: E402
from ostraka.core.gram import DTYPES, NumpyKernel  # noqa: E402
from ostraka.errors import ConfigError  # noqa: E402
from ostraka.worker import torch_kernel  # noqa: E402
from ostraka.worker.torch_kernel import TorchKernel  # noqa: E402

HAS_CUDA = torch.cuda.is_available()
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")),
]
ROUTES = [torch_kernel.field_gram_float64, torch_kernel.field_gram_int8]
# Row and column counts around every boundary: the least that CUDA multiplies, its alignment, and a
# panel of the processor.
SHAPES = [
    (1, 1),
    (1, 2049),
    (2, 7),
    (2, 4100),
    (16, 8),
    (17, 31),
    (17, 33),
    (32, 64),
    (33, 100),
    (65, 24),
    (3, 0),
    (0, 3),
]


def residues(n: int, b: int, seed: int = 0) -> UInt32:
    return np.random.default_rng(seed).integers(0, P, (n, b), dtype=np.uint32)


def by_integers(block: UInt32) -> AnyArray:
    """The Gram matrix modulo p in Python's own integers."""
    integers = block.astype(object)
    products = [
        [sum(a * b for a, b in zip(x, y, strict=True)) % P for y in integers] for x in integers
    ]
    return np.array(products, np.int64).reshape(len(block), len(block))


def tensor(block: UInt32):
    return torch.from_numpy(block.view(np.int32))


def from_digits(*digits: int) -> int:
    return sum(digit * 256**i for i, digit in enumerate(digits)) % P


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("n", "b"), SHAPES)
def test_field_gram_is_that_of_python_integers(route, n, b):
    block = residues(n, b)
    assert np.array_equal(route(tensor(block)).numpy(), by_integers(block))


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "value",
    [0, 1, P - 1, P // 2, P // 2 + 1, 0xFFFF, 0x10000, from_digits(-128, -128, -128, -63)],
)
def test_field_gram_of_one_extreme_residue(route, value):
    block = np.full((5, 2500), value, np.uint32)
    assert np.array_equal(route(tensor(block)).numpy(), np.full((5, 5), 2500 * value**2 % P))


@pytest.mark.parametrize("route", ROUTES)
@given(
    n=st.integers(1, 40),
    b=st.integers(1, 90),
    pool=st.lists(st.integers(0, P - 1), min_size=1, max_size=6),
    seed=st.integers(0, 2**32),
)
def test_field_gram_equals_numpy(route, n, b, pool, seed):
    rng = np.random.default_rng(seed)
    extremes = np.array([0, 1, P - 1, P // 2, P // 2 + 1, *pool], np.uint32)
    block = np.where(rng.random((n, b)) < 0.5, rng.choice(extremes, (n, b)), residues(n, b, seed))
    assert np.array_equal(route(tensor(block)).numpy(), field.gram(block))


@pytest.mark.parametrize(("n", "b"), [(1, 1), (16, 8), (17, 31), (33, 100)])
def test_cuda_would_take_every_int8_product(monkeypatch, n, b):
    shapes = []

    def strict(left, right, product=torch._int_mm):
        shapes.append((*left.shape, right.shape[1]))
        assert left.dtype == right.dtype == torch.int8
        assert left.is_contiguous()
        assert right.t().is_contiguous()
        return product(left, right)

    monkeypatch.setattr(torch, "_int_mm", strict)
    torch_kernel.field_gram_int8(tensor(residues(n, b)))
    # Ten products of digits in four calls.
    assert len(shapes) == 4
    assert sum(columns for *_, columns in shapes) == 10 * shapes[0][0]
    for rows, inner, columns in shapes:
        assert rows > 16
        assert inner % 8 == columns % 8 == 0


@pytest.mark.parametrize(
    ("products", "value"),
    [
        (torch_kernel._int8_products, from_digits(-128, -128, -128, -63)),
        (torch_kernel._float64_products, P - 1),
    ],
)
def test_a_full_panel_of_the_largest_limbs_does_not_overflow(products, value):
    columns = max(torch_kernel._PANEL.values())
    assert columns * 128**2 < 2**31
    assert columns * 2**34 < 2**53
    block = np.full((1, columns), value, np.uint32)
    assert products(tensor(block)).item() == columns * value**2 % P


@given(st.lists(st.integers(0, P - 1), min_size=1, max_size=50))
def test_digits_are_balanced_and_make_up_the_residue(values):
    digits = torch_kernel._digits(tensor(np.array([values], np.uint32)))
    assert digits.dtype == torch.int8
    assert [from_digits(*column) for column in digits[:, 0].T.tolist()] == values


def test_digits_by_hand():
    values = [0, 127, 128, 255, P - 1, P - 128, P - 129, P // 2, P // 2 + 1]
    digits = torch_kernel._digits(tensor(np.array([values], np.uint32)))[:, 0].T.tolist()
    assert digits == [
        [0, 0, 0, 0],
        [127, 0, 0, 0],
        [-128, 1, 0, 0],
        [-1, 1, 0, 0],
        [-1, 0, 0, 0],
        [-128, 0, 0, 0],
        [127, -1, 0, 0],
        [-1, 0, 0, 64],
        [1, 0, 0, -64],
    ]


def sums(kernel, rows, values, blocks):
    """The totals of this kernel and of numpy's over the same blocks."""
    found, expected = kernel.begin(rows, values), NumpyKernel().begin(rows, values)
    for block in blocks:
        found.add(block)
        expected.add(block)
    return found.total(), expected.total()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("route", ["auto", "float64", "int8"])
@pytest.mark.parametrize("slab", [1 << 22, 300])
@pytest.mark.parametrize("rows", [1, 9])
def test_a_sum_of_residues_is_numpy_s_to_the_bit(monkeypatch, device, route, slab, rows):
    monkeypatch.setattr(torch_kernel, "_SLAB", slab)
    blocks = [residues(rows, b, seed=b) for b in (2100, 1, 0, 33, 2100, 2049, 7)]
    found, expected = sums(TorchKernel(device, route=route), rows, "residues", blocks)
    assert found.dtype == expected.dtype == np.uint32
    assert np.array_equal(found, expected)
    assert np.array_equal(found, field.gram(np.concatenate(blocks, axis=1)))


@pytest.mark.parametrize("device", DEVICES)
def test_a_sum_of_the_largest_residues_stays_a_residue(device):
    """The inner product of 1 and -1 is p - 1, and fifty of them are above 2^36."""
    blocks = [np.array([[1], [P - 1]], np.uint32)] * 50
    found, _ = sums(TorchKernel(device), 2, "residues", blocks)
    assert found.tolist() == [[50, P - 50], [P - 50, 50]]


@pytest.mark.parametrize("device", DEVICES)
def test_kernel_takes_any_layout_and_leaves_the_block_alone(device):
    whole = residues(20, 90)
    whole.flags.writeable = False
    for block in (whole[:, 3:50], whole[::2], whole[:, ::-1], whole.T):
        found, _ = sums(TorchKernel(device, route="int8"), len(block), "residues", [block])
        assert np.array_equal(found, field.gram(block))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("n", "b"), SHAPES)
def test_a_sum_of_floats_is_numpy_s_up_to_rounding(monkeypatch, device, n, b):
    monkeypatch.setattr(torch_kernel, "_SLAB", 1000)
    rng = np.random.default_rng(0)
    blocks = [np.ones((n, 1)), rng.standard_normal((n, b)), rng.standard_normal((n, 13))]
    found, expected = sums(TorchKernel(device), n, "float64", blocks)
    assert found.dtype == expected.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14 * (b + 14))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("values", ["float64", "residues"])
@pytest.mark.parametrize("rows", [1, 4])
def test_a_sum_without_blocks_is_zero(device, values, rows):
    found, expected = sums(TorchKernel(device), rows, values, [])
    assert found.dtype == expected.dtype
    assert np.array_equal(found, np.zeros((rows, rows)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("values", ["float64", "residues"])
def test_the_caller_may_use_a_block_s_memory_again(device, values):
    """As a worker does, which opens every tile into the same block."""
    blocks = [residues(5, 400, seed).astype(DTYPES[values]) % 1000 for seed in range(6)]
    running, space = TorchKernel(device).begin(5, values), np.empty((5, 400), DTYPES[values])
    for block in blocks:
        space[:] = block
        running.add(space)
        space[:] = 1
    expected = sum(block.astype(np.int64) @ block.astype(np.int64).T for block in blocks)
    assert np.array_equal(running.total(), expected % P)


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_uploaded_is_a_copy_from_the_start(device):
    """A GPU may read it after the call has returned."""
    block = residues(3, 5).view(np.int32)
    uploaded = torch_kernel._upload(block, torch.device(device))
    expected = block.copy()
    block[:] = 0
    assert np.array_equal(uploaded.cpu().numpy(), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("values", ["float64", "residues"])
def test_a_total_is_the_caller_s_own(device, values):
    running = TorchKernel(device).begin(2, values)
    block = np.ones((2, 3), DTYPES[values])
    running.add(block)
    first = running.total()
    running.add(block)
    assert np.array_equal(first, np.full((2, 2), 3))
    running.total()[:] = 0
    assert np.array_equal(running.total(), np.full((2, 2), 6))


@pytest.mark.parametrize("values", ["float64", "residues"])
def test_a_sum_leaves_the_device_once(monkeypatch, values):
    copies = []

    def copy(tensor, cpu=torch.Tensor.cpu):
        copies.append(tuple(tensor.shape))
        return cpu(tensor)

    kernel = TorchKernel()
    monkeypatch.setattr(torch_kernel, "_SLAB", 50)
    monkeypatch.setattr(torch.Tensor, "cpu", copy)
    running = kernel.begin(4, values)
    for _ in range(3):
        running.add(np.ones((4, 90), DTYPES[values]))
    assert not copies
    running.total()
    assert copies == [(4, 4)]


@pytest.mark.parametrize("values", ["float64", "residues"])
def test_two_sums_of_one_kernel_are_apart(values):
    kernel, block = TorchKernel(), np.ones((2, 3), DTYPES[values])
    one, other = kernel.begin(2, values), kernel.begin(2, values)
    one.add(block)
    assert one.total().any()
    assert not other.total().any()


def test_the_faster_route_is_chosen_by_time(monkeypatch):
    slow = {"route": torch_kernel.field_gram_int8}
    monkeypatch.setattr(torch_kernel, "_seconds", lambda route, _: float(route is slow["route"]))
    block = tensor(residues(3, 8))
    assert torch_kernel.faster_field_gram(block) is torch_kernel.field_gram_float64
    slow["route"] = torch_kernel.field_gram_float64
    assert torch_kernel.faster_field_gram(block) is torch_kernel.field_gram_int8


def test_a_route_takes_time():
    assert torch_kernel._seconds(torch_kernel.field_gram_float64, tensor(residues(3, 8))) > 0


def refuse(*_):
    raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")


def saturate(a, b):
    """What a processor does that adds neighbouring products in 16 bits."""
    pairs = [a[:, k : k + 2].int() @ b[k : k + 2].int() for k in range(0, a.shape[1], 2)]
    return sum(pair.clamp(-(2**15), 2**15 - 1) for pair in pairs)


@pytest.mark.parametrize(("product", "fault"), [(refuse, "does not run"), (saturate, "not exact")])
def test_an_int8_product_that_cannot_be_used_is_never_used(monkeypatch, product, fault):
    monkeypatch.setattr(torch, "_int_mm", product)
    monkeypatch.setattr(torch_kernel, "_seconds", lambda route, _: len(route.__name__))
    with pytest.raises(ConfigError, match=f"int8 {fault}|int8 is {fault}"):
        TorchKernel(route="int8")
    hard = tensor(torch_kernel._hard_residues())
    assert torch_kernel.faster_field_gram(hard) is torch_kernel.field_gram_float64


def test_auto_times_each_class_of_shapes_once(monkeypatch):
    timed = []

    def faster(block):
        timed.append(tuple(block.shape))
        return torch_kernel.field_gram_int8

    kernel = TorchKernel()
    monkeypatch.setattr(torch_kernel, "faster_field_gram", faster)
    monkeypatch.setattr(kernel, "_device", torch.device("meta"))
    shapes = [(4, 100), (4, 100), (5, 120), (5, 130), (9, 130), (4, 127)]
    chosen = [kernel._field_gram(torch.empty(shape, device="meta")) for shape in shapes]
    assert timed == [(4, 100), (5, 130), (9, 130)]
    assert set(chosen) == {torch_kernel.field_gram_int8}


def test_auto_on_a_processor_is_float64_untimed(monkeypatch):
    monkeypatch.setattr(torch_kernel, "faster_field_gram", refuse)
    monkeypatch.setattr(torch_kernel, "field_gram_int8", refuse)
    found, expected = sums(TorchKernel(), 2, "residues", [residues(2, 5)])
    assert np.array_equal(found, expected)


def test_hard_residues_reach_every_extreme_digit():
    hard = torch_kernel._hard_residues()
    assert hard.max() == P - 1
    digits = torch_kernel._digits(tensor(hard))
    assert digits[:3].amin((1, 2)).tolist() == [-128] * 3
    assert digits[:3].amax((1, 2)).tolist() == [127] * 3
    assert (digits[3].min().item(), digits[3].max().item()) == (-64, 64)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("abacus", "knows no device 'abacus'"),
        ("meta", "choose 'cpu' or 'cuda:<number>'"),
        ("cuda:99", r"no device 'cuda:99' here: torch .* finds \d+ CUDA devices"),
    ],
)
def test_an_absent_device_is_a_config_error(device, message):
    with pytest.raises(ConfigError, match=message):
        TorchKernel(device)


def test_a_device_beyond_the_last_is_a_config_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert torch_kernel._find("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ConfigError, match=r"'cuda:2' here: .* finds 2 CUDA devices"):
        torch_kernel._find("cuda:2")


def test_an_unknown_route_is_a_config_error():
    with pytest.raises(ConfigError, match="no route 'int4'"):
        TorchKernel(route="int4")  # type: ignore[arg-type]
