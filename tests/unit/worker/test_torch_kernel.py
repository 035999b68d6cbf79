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

    def host_memory(shape, *others, usual=torch_kernel._host_memory):
        copies.append(tuple(shape))
        return usual(shape, *others)

    monkeypatch.setattr(torch_kernel, "_SLAB", 50)
    kernel = TorchKernel()
    monkeypatch.setattr(torch_kernel, "_host_memory", host_memory)
    running = kernel.begin(4, values)
    for _ in range(3):
        running.add(np.ones((4, 90), DTYPES[values]))
    assert copies == 3 * ([(4, 12)] * 7 + [(4, 6)])
    running.total()
    assert copies[24:] == [(4, 4)]


@pytest.mark.parametrize("values", ["float64", "residues"])
def test_two_sums_of_one_kernel_are_apart(values):
    kernel, block = TorchKernel(), np.ones((2, 3), DTYPES[values])
    one, other = kernel.begin(2, values), kernel.begin(2, values)
    one.add(block)
    assert one.total().any()
    assert not other.total().any()


def test_the_faster_route_is_chosen_by_time(monkeypatch):
    slow = {"route": torch_kernel._int8_products}
    monkeypatch.setattr(torch_kernel, "_seconds", lambda route, _: float(route is slow["route"]))
    kernel, block = TorchKernel(), tensor(residues(3, 8))
    assert kernel._choose(block) is torch_kernel._float64_products
    slow["route"] = torch_kernel._float64_products
    assert kernel._choose(block) is torch_kernel._int8_products


def test_a_route_takes_time():
    assert torch_kernel._seconds(torch_kernel.field_gram_float64, tensor(residues(3, 8))) > 0


def refuse(*_):
    raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")


def saturate(a, b):
    """What a processor does that adds neighbouring products in 16 bits."""
    pairs = [a[:, k : k + 2].int() @ b[k : k + 2].int() for k in range(0, a.shape[1], 2)]
    return sum(pair.clamp(-(2**15), 2**15 - 1) for pair in pairs)


def off_by_one(a, b, product=torch._int_mm):
    """Wrong in one entry, for more than 32 rows alone."""
    products = product(a, b)
    products[-1, -1] += len(a) > 32
    return products


def events(caplog, kind):
    return [record.ostraka_fields for record in caplog.records if record.getMessage() == kind]


FAULTS = {
    "refused": (refuse, 9, "products of int8 do not run: CUBLAS_STATUS_NOT_SUPPORTED"),
    "wrong on hard residues": (saturate, 9, "products of int8 differ from those of float64"),
    "wrong at one shape": (off_by_one, 33, "products of int8 differ from those of float64"),
}


@pytest.mark.parametrize(("product", "rows", "why"), FAULTS.values(), ids=FAULTS.keys())
def test_a_wrong_int8_product_means_float64_and_no_lie(monkeypatch, caplog, product, rows, why):
    monkeypatch.setattr(torch, "_int_mm", product)
    kernel = TorchKernel(route="int8")
    for _ in range(2):
        found, expected = sums(kernel, rows, "residues", [residues(rows, 100)] * 3)
        assert np.array_equal(found, expected)
    # Once, because it is not tried again.
    assert events(caplog, "Float64Used") == [
        {"device": "cpu", "rows": rows, "columns": 100, "why": why}
    ]


def test_a_shape_that_is_right_is_trusted_beside_one_that_is_wrong(monkeypatch, caplog):
    monkeypatch.setattr(torch, "_int_mm", off_by_one)
    kernel = TorchKernel(route="int8")
    for rows in (9, 40):
        found, expected = sums(kernel, rows, "residues", [residues(rows, 300)])
        assert np.array_equal(found, expected)
    assert kernel._products(tensor(residues(9, 300))) is torch_kernel._int8_products
    assert kernel._products(tensor(residues(40, 300))) is torch_kernel._float64_products
    assert [event["rows"] for event in events(caplog, "Float64Used")] == [40]


def test_each_shape_that_a_device_multiplies_is_chosen_for_once(monkeypatch):
    chosen_for = []

    def choose(panel):
        chosen_for.append(tuple(panel.shape))
        return torch_kernel._int8_products

    kernel = TorchKernel()
    monkeypatch.setattr(kernel, "_choose", choose)
    monkeypatch.setattr(kernel, "_device", torch.device("meta"))
    shapes = [(4, 100), (4, 100), (5, 128), (5, 130), (33, 130), (4, 97)]
    chosen = [kernel._products(torch.empty(shape, device="meta")) for shape in shapes]
    assert chosen_for == [(4, 100), (5, 130), (33, 130)]
    assert set(chosen) == {torch_kernel._int8_products}


def no_memory(*_):
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def no_workspace(*_):
    raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")


@pytest.mark.parametrize("fail", [no_memory, no_workspace])
@pytest.mark.parametrize("values", ["float64", "residues"])
def test_without_memory_slabs_are_halved_until_one_fits(monkeypatch, caplog, values, fail):
    def upload(block, device, usual=torch_kernel._upload):
        return fail() if block.size > 300 else usual(block, device)

    kernel = TorchKernel()
    monkeypatch.setattr(torch_kernel, "_upload", upload)
    blocks = [residues(9, b, seed=b).astype(DTYPES[values]) % 1000 for b in (100, 40, 1, 70)]
    found, expected = sums(kernel, 9, values, blocks)
    assert np.array_equal(found, expected)
    # 9 rows of 25 columns are the first to fit, and all that come later are cut so at once.
    assert events(caplog, "SlabHalved") == [
        {"device": "cpu", "rows": 9, "columns": columns} for columns in (100, 50)
    ]


@pytest.mark.parametrize("values", ["float64", "residues"])
def test_what_was_multiplied_before_memory_ran_out_is_not_added_twice(monkeypatch, values):
    calls = []

    def panels(block, usual=torch_kernel._panels):
        for number, panel in enumerate(usual(block)):
            calls.append(block.shape[1])
            if number == 1 and block.shape[1] > 40:
                no_memory()
            yield panel

    kernel = TorchKernel()
    monkeypatch.setitem(torch_kernel._PANEL, "cpu", 20)
    monkeypatch.setattr(torch_kernel, "_panels", panels)
    blocks = [residues(3, 90).astype(DTYPES[values]) % 1000] * 2
    found, expected = sums(kernel, 3, values, blocks)
    assert np.array_equal(found, expected)
    assert calls[:2] == [90, 90]
    assert 45 in calls


def test_a_device_without_memory_for_one_column_says_what_to_do(monkeypatch):
    kernel = TorchKernel()
    monkeypatch.setattr(torch_kernel, "_upload", no_memory)
    with pytest.raises(ConfigError, match="cpu has no memory for one column of 3 rows: free some"):
        kernel.begin(3, "residues").add(residues(3, 90))
    monkeypatch.undo()
    found, expected = sums(kernel, 3, "residues", [residues(3, 90)])
    assert np.array_equal(found, expected)


def test_no_doubt_is_cast_on_int8_because_memory_ran_out(monkeypatch):
    kernel, panel = TorchKernel(route="int8"), tensor(residues(3, 8))
    with monkeypatch.context() as patched:
        patched.setattr(torch, "_int_mm", no_memory)
        with pytest.raises(torch.cuda.OutOfMemoryError):
            kernel._products(panel)
    assert kernel._products(panel) is torch_kernel._int8_products


def test_another_failure_is_no_lack_of_memory(monkeypatch):
    kernel = TorchKernel()
    monkeypatch.setattr(torch_kernel, "_float64_products", refuse)
    with pytest.raises(RuntimeError, match="NOT_SUPPORTED"):
        kernel.begin(3, "residues").add(residues(3, 90))


def test_uploads_and_products_are_queued_apart_and_few_slabs_are_in_flight(monkeypatch):
    """What the device is asked for, in order; streams of the processor do it at once."""
    asked = []
    event = torch.cpu.Event
    monkeypatch.setattr(event, "record", lambda _, stream: asked.append(("record", stream)))
    monkeypatch.setattr(event, "synchronize", lambda self: asked.append(("wait for", self)))
    monkeypatch.setattr(torch.cpu.Stream, "wait_stream", lambda *two: asked.append(("after", two)))
    running = TorchKernel().begin(2, "residues")
    for _ in range(4):
        running.add(residues(2, 10))
    streams = (running._uploads, running._products, running._downloads)  # type: ignore[attr-defined]
    uploads, products, downloads = streams
    assert len(set(streams)) == 3
    queued = [("after", (products, uploads)), ("record", products)]
    assert [each for each in asked if each[0] != "wait for"] == queued * 4
    kinds = [what for what, _ in asked]
    # The first wait is for the first of two slabs, before the third.
    assert kinds == ["after", "record"] * 2 + ["wait for", "after", "record"] * 2
    del asked[:]
    running.total()
    assert asked[:2] == [("after", (downloads, products)), ("record", downloads)]
    assert [what for what, _ in asked[2:]] == ["wait for"]


def test_auto_on_a_processor_is_float64_untimed(monkeypatch):
    monkeypatch.setattr(torch_kernel, "_doubt_int8", refuse)
    monkeypatch.setattr(torch_kernel, "_int8_products", refuse)
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
