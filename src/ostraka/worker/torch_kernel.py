"""The kernel in torch, on a processor or a GPU: the same residues, to the bit, as in numpy.

Residues modulo p = 2^31 - 1 fit into int32 tensors. Their Gram matrix takes one of two routes, and
both are exact:

- float64: limbs of 15 and 16 bits and three real products (ostraka.core.field). A sum of up to 2^19
  columns is an integer below 2^53.
- int8: a residue x stands for the integer s of least size in its class, |s| < 2^30, and so has four
  balanced digits, s = d0 + 2^8 d1 + 2^16 d2 + 2^24 d3 with -128 <= d < 128. Then

      s s' = sum over i of 2^(16 i) di di' + sum over i < j of 2^(8 (i + j)) (di dj' + dj di')

  where the second half of each bracket is the transpose of the first: ten products of digits, in
  four calls. A sum of up to 2^16 columns is at most 2^30 in size, so int32 holds it.

Some GPUs multiply float64 at a small fraction of their int8 rate and others do not, so on CUDA both
routes are timed. A processor takes float64: without instructions for int8 that torch knows, the
other route was thirty times slower.

The sum stays on the device, and is copied back when its total is asked for.

The arithmetic below does not depend on the device and is tested on the processor. No GPU was at
hand, so the CUDA route has been written and type-checked, but not run. A kernel therefore compares
its device with numpy before it is used, because a worker whose library rounds is taken for a liar.
"""

import math
import time
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from ostraka.arrays import AnyArray, UInt32
from ostraka.core import field
from ostraka.core.field import P
from ostraka.core.gram import DTYPES, Sum, Values
from ostraka.errors import ConfigError

Route: TypeAlias = Literal["auto", "float64", "int8"]
_GramFunction: TypeAlias = Callable[[Tensor], Tensor]

# numpy's type of a block, and torch's type of the sum on the device.
_TYPES: dict[Values, tuple[type[Any], torch.dtype]] = {
    "float64": (np.float64, torch.float64),
    "residues": (np.int32, torch.int64),
}
# A block goes to the device in slabs of at most this many values, which bounds its memory.
_SLAB = 1 << 22
# The columns that are multiplied at once. On a processor the limbs should stay in the cache; on a
# GPU fewer and larger steps are better. Both numbers keep the sums of both routes exact.
_PANEL = {"cpu": 1 << 11, "cuda": 1 << 16}

_DIGITS = 4
# Adding 128 to each of the three low digits makes them bytes without a sign.
_BIAS = 0x808080
# CUDA multiplies int8 matrices of more than 16 rows, with sides that are multiples of 8. It is
# fastest with multiples of 32.
_ALIGNMENT = 32
_TIMINGS = 3


class TorchKernel:
    """The kernel of a worker with torch, on "cpu", "cuda" or "cuda:1".

    route: how residues are multiplied. "auto" is float64 on a processor; on CUDA it is the faster
    route, which is found by timing each class of shapes once.
    """

    def __init__(self, device: str = "cpu", *, route: Route = "auto") -> None:
        if route not in get_args(Route):
            raise ConfigError(f"no route {route!r}: choose one of {get_args(Route)}")
        self._device = _find(device)
        self._route = route
        self._fastest: dict[tuple[int, int], _GramFunction] = {}
        _check_exact(field_gram_int8 if route == "int8" else field_gram_float64, self._device)

    def begin(self, rows: int, values: Values) -> Sum:
        """Starts a sum that stays on the device until its total is asked for."""
        add = self._add_residues if values == "residues" else _add_float64
        return _TorchSum(rows, values, self._device, add)

    def _add_residues(self, total: Tensor, slab: Tensor) -> None:
        total += self._field_gram(slab)(slab)
        total %= P

    def _field_gram(self, slab: Tensor) -> _GramFunction:
        if self._route == "int8":
            return field_gram_int8
        if self._route == "float64" or self._device.type == "cpu":
            return field_gram_float64
        rows, columns = slab.shape
        shape_class = (rows.bit_length(), columns.bit_length())
        if shape_class not in self._fastest:
            self._fastest[shape_class] = faster_field_gram(slab)
        return self._fastest[shape_class]


class _TorchSum:
    """A Gram matrix in the device's memory."""

    def __init__(
        self,
        rows: int,
        values: Values,
        device: torch.device,
        add: Callable[[Tensor, Tensor], None],
    ) -> None:
        on_host, on_device = _TYPES[values]
        self._host_type = on_host
        self._result_type = DTYPES[values]
        self._total = torch.zeros(rows, rows, dtype=on_device, device=device)
        self._add = add

    def add(self, block: AnyArray) -> None:
        """Adds a block some columns at a time, which bounds the device's memory."""
        width = max(1, _SLAB // max(1, len(block)))
        for start in range(0, block.shape[1], width):
            slab = block[:, start : start + width].view(self._host_type)
            self._add(self._total, _upload(slab, self._total.device))

    def total(self) -> AnyArray:
        """Waits for the device, and copies the sum from it."""
        # astype makes a copy even on the processor, where the tensor is host memory itself.
        return self._total.cpu().numpy().astype(self._result_type)


def _add_float64(total: Tensor, slab: Tensor) -> None:
    for panel in _panels(slab):
        total.addmm_(panel, panel.t())


def field_gram_float64(block: Tensor) -> Tensor:
    """Returns all inner products of the rows modulo p, (n, n) int64. block: (n, b) int32."""
    return _sum(_float64_products, block)


def field_gram_int8(block: Tensor) -> Tensor:
    """Does the same as `field_gram_float64`, by products of int8 digits."""
    return _sum(_int8_products, block)


def faster_field_gram(block: Tensor) -> _GramFunction:
    """Returns the faster route for this block and its device; float64 if int8 cannot be used."""
    try:
        # This first run also warms both up. The int8 product has no public name, and was refused or
        # wrong on some devices and shapes.
        if not torch.equal(field_gram_int8(block), field_gram_float64(block)):
            return field_gram_float64
    except RuntimeError:
        return field_gram_float64
    return min((field_gram_float64, field_gram_int8), key=lambda route: _seconds(route, block))


def _sum(products: _GramFunction, block: Tensor) -> Tensor:
    total = torch.zeros(len(block), len(block), dtype=torch.int64, device=block.device)
    for panel in _panels(block):
        total += products(panel)
    return total % P


def _panels(block: Tensor) -> tuple[Tensor, ...]:
    panels: tuple[Tensor, ...] = torch.split(block, _PANEL[block.device.type], dim=1)
    return panels


def _float64_products(panel: Tensor) -> Tensor:
    """Returns the (n, n) residues of a panel, (n, b <= 2^19) int32 residues."""
    high = (panel >> 16).to(torch.float64)
    low = (panel & 0xFFFF).to(torch.float64)
    high_sums = (high @ high.t()).to(torch.int64)
    low_sums = (low @ low.t()).to(torch.int64)
    high += low
    cross = (high @ high.t()).to(torch.int64) - high_sums - low_sums
    # 2^32 is 2 modulo p. Everything is below 2^54 + 2^47 + 2^53.
    return (2 * high_sums + ((cross % P) << 16) + low_sums) % P


def _int8_products(panel: Tensor) -> Tensor:
    """Returns the (n, n) residues of a panel, (n, b <= 2^16) int32 residues."""
    n, b = panel.shape
    rows = _aligned(n)
    # Zeros beyond the edges add nothing to any product.
    digits = torch.zeros(_DIGITS, rows, _aligned(b), dtype=torch.int8, device=panel.device)
    digits[:, :n, :b] = _digits(panel)
    squares = torch.zeros(rows, rows, dtype=torch.int64, device=panel.device)
    crosses = torch.zeros_like(squares)
    for i in range(_DIGITS):
        # Rows times columns in memory order is the one layout that every GPU takes.
        products = torch._int_mm(digits[i], digits[i:].flatten(0, 1).t())  # (rows, (4 - i) rows)
        square, *others = torch.split(products, rows, dim=1)
        squares.add_(square, alpha=_power(2 * i))
        for j, cross in enumerate(others, start=i + 1):
            crosses.add_(cross, alpha=_power(i + j))
    # Sums of at most 2^30 times powers of at most 2^24: everything is below 2^57.
    return (squares + crosses + crosses.t())[:n, :n] % P


def _digits(residues: Tensor) -> Tensor:
    """Returns the balanced digits in base 256, (4, n, b) int8, lowest first. residues: int32."""
    n, b = residues.shape
    # The 31st bit is set exactly where x > (p - 1)/2.
    signed = residues - (residues >> 30) * P
    # The low three bytes of the sum are digits plus 128, and flipping the top bit of such a byte
    # subtracts the 128 again. The top byte is the fourth digit itself, -64 to 64.
    packed = ((signed + _BIAS) ^ _BIAS).contiguous()
    return packed.view(torch.int8).view(n, b, _DIGITS).permute(2, 0, 1)


def _power(exponent: int) -> int:
    """Returns 256^exponent modulo p, where 2^31 is 1."""
    return 1 << (8 * exponent % 31)


def _aligned(side: int) -> int:
    return _ALIGNMENT * max(1, math.ceil(side / _ALIGNMENT))


def _upload(block: AnyArray, device: torch.device) -> Tensor:
    """Returns a copy on the device. The block's own memory is not needed after that.

    A GPU copies from pinned memory while the host goes on. That memory is torch's, which does not
    use it again before the copy is done.
    """
    dtype = torch.from_numpy(np.empty(0, block.dtype)).dtype
    host = torch.empty(block.shape, dtype=dtype, device="cpu", pin_memory=device.type == "cuda")
    np.copyto(host.numpy(), block)
    return host.to(device, non_blocking=True)


def _seconds(route: _GramFunction, block: Tensor) -> float:
    """Returns the time of the shortest of a few runs."""
    times = []
    for _ in range(_TIMINGS):
        _finish(block.device)
        start = time.perf_counter()
        route(block)
        _finish(block.device)
        times.append(time.perf_counter() - start)
    return min(times)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _find(name: str) -> torch.device:
    """Returns a device of torch. Raises ConfigError if it is not here."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"torch knows no device {name!r}") from None
    if device.type not in _PANEL:
        raise ConfigError(f"no kernel for torch device {name!r}: choose 'cpu' or 'cuda:<number>'")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            cuda = torch.version.cuda
            build = f"{torch.__version__}, built {f'for CUDA {cuda}' if cuda else 'without CUDA'}"
            raise ConfigError(f"no device {name!r} here: torch {build}, finds {count} CUDA devices")
    return device


def _check_exact(route: _GramFunction, device: torch.device) -> None:
    """Raises ConfigError unless this device gives what numpy gives on the hardest residues."""
    block = _hard_residues()
    try:
        found = route(_upload(block.view(np.int32), device)).cpu().numpy()
    except RuntimeError as error:
        raise ConfigError(f"{route.__name__} does not run on {device}: {error}") from error
    if not np.array_equal(found, field.gram(block)):
        raise ConfigError(f"{route.__name__} is not exact on {device}")


def _hard_residues() -> UInt32:
    """Returns (33, 520) residues with the largest digits and limbs that there are.

    They stand in runs of eight, so that a sum of neighbours that saturates is noticed.
    """
    top, low = 0x7F7F7F, -0x808080
    integers = [0, 1, -1, P // 2, -(P // 2), top, low, (63 << 24) + top, -(63 << 24) + low]
    integers += [0x7FFF, 0x8000, 0xFFFF, 0x10000, -0xFFFF, -0x10000]
    values = np.array([integer % P for integer in integers], np.uint32)
    columns = np.arange(520) // 8
    block: UInt32 = values[(np.arange(33)[:, None] * (columns + 1) + columns) % len(values)]
    return block
