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

torch._int_mm, the product of int8, has no public name, and was refused or wrong on some devices and
shapes. Each shape that it is called with is therefore compared with float64 first, on the panel at
hand and on the hardest residues; a shape that differs is multiplied in float64 from then on, and
the log says so. A worker whose library rounds would be taken for a liar.

The sum stays on the device, and is copied back when its total is asked for. Uploads, products and
downloads are queued in streams of their own: while the device multiplies a slab it takes in the
next, and the host prepares the one after that. If the device runs out of memory, slabs become half
as large, and the one that did not fit is tried again.

No GPU was at hand. All of this runs on the processor and is tested there, through torch's streams
of the processor, which do everything at once. What was never run: the same calls on CUDA, pinned
memory, whether the three really overlap, and the timing of the routes against each other. A kernel
compares its device's float64 with numpy before it is used.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from ostraka import logs
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
# One slab is multiplied while the next is uploaded. More would only take memory.
_IN_FLIGHT = 2
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
# What cuBLAS says instead when there is no memory for its own needs.
_NO_WORKSPACE = "CUBLAS_STATUS_ALLOC_FAILED"
# Both have streams and events. Those of the processor do nothing.
_STREAMS: dict[str, Any] = {"cpu": torch.cpu, "cuda": torch.cuda}
_LOG = logging.getLogger("ostraka.worker")


@dataclass(frozen=True)
class Float64Used:
    """Products of int8 cannot be trusted at this shape: float64 takes their place."""

    device: str
    rows: int
    columns: int
    why: str


@dataclass(frozen=True)
class SlabHalved:
    """The device ran out of memory. columns: of the slab that did not fit."""

    device: str
    rows: int
    columns: int


class TorchKernel:
    """The kernel of a worker with torch, on "cpu", "cuda" or "cuda:1".

    route: how residues are multiplied. "int8" is that where it can be trusted. "auto" is float64 on
    a processor; on CUDA it is the faster one, which is found by timing each shape once.
    """

    def __init__(self, device: str = "cpu", *, route: Route = "auto") -> None:
        if route not in get_args(Route):
            raise ConfigError(f"no route {route!r}: choose one of {get_args(Route)}")
        self._device = _find(device)
        self._route = route
        self._chosen: dict[tuple[int, int], _GramFunction] = {}
        self._slab = _SLAB
        _check_exact(self._device)

    def begin(self, rows: int, values: Values) -> Sum:
        """Starts a sum that stays on the device until its total is asked for."""
        return _TorchSum(rows, values, self)

    @property
    def device(self) -> torch.device:
        return self._device

    def width(self, rows: int) -> int:
        """Returns the columns of a slab of so many rows."""
        return max(1, self._slab // max(1, rows))

    def halve(self, slab: AnyArray) -> None:
        """Makes slabs half as large as this one, which did not fit. Raises ConfigError for one
        column: no slab is smaller."""
        rows, columns = slab.shape
        if columns <= 1:
            raise ConfigError(
                f"{self._device} has no memory for one column of {rows} rows: free some, or serve "
                "with --device cpu"
            )
        self._slab = rows * (columns // 2)
        logs.event(_LOG, SlabHalved(str(self._device), rows, columns), logging.WARNING)

    def add_residues(self, total: Tensor, slab: Tensor) -> None:
        """Adds inner products modulo p. total: (n, n) int64, changed at the very end."""
        total += _sum(lambda panel: self._products(panel)(panel), slab)
        total.remainder_(P)

    def _products(self, panel: Tensor) -> _GramFunction:
        if self._route == "float64" or (self._route == "auto" and self._device.type == "cpu"):
            return _float64_products
        rows, columns = map(_aligned, panel.shape)
        if (rows, columns) not in self._chosen:
            self._chosen[rows, columns] = self._choose(panel)
        return self._chosen[rows, columns]

    def _choose(self, panel: Tensor) -> _GramFunction:
        """Returns what to multiply panels by that have the same sides, once these are aligned."""
        if (doubt := _doubt_int8(panel)) is not None:
            rows, columns = panel.shape
            used = Float64Used(str(self._device), rows, columns, doubt)
            logs.event(_LOG, used, logging.WARNING)
            return _float64_products
        if self._route == "int8":
            return _int8_products
        return min((_float64_products, _int8_products), key=lambda route: _seconds(route, panel))


class _TorchSum:
    """A Gram matrix in the device's memory, and the streams by which it is made."""

    def __init__(self, rows: int, values: Values, kernel: TorchKernel) -> None:
        self._host_type, on_device = _TYPES[values]
        self._result_type = DTYPES[values]
        self._kernel = kernel
        self._add = kernel.add_residues if values == "residues" else _add_float64
        device = kernel.device
        self._api = _STREAMS[device.type]
        self._uploads, self._products, self._downloads = (_stream(device) for _ in range(3))
        # In the stream that changes it: if the sum is given up, nothing else gets its memory before
        # what is queued is done.
        with self._api.stream(self._products):
            self._total = torch.zeros(rows, rows, dtype=on_device, device=device)
        # Slabs whose memory is in use, and what says that it is not any more.
        self._busy: deque[tuple[Tensor, Any]] = deque()

    def add(self, block: AnyArray) -> None:
        """Adds a block some columns at a time, which bounds the device's memory."""
        start = 0
        while start < block.shape[1]:
            width = self._kernel.width(len(block))
            slab = block[:, start : start + width].view(self._host_type)
            if self._fits(slab):
                start += width

    def total(self) -> AnyArray:
        """Waits for this sum, and copies it from the device. Other sums go on."""
        self._downloads.wait_stream(self._products)
        with self._api.stream(self._downloads):
            on_host = _host_memory(self._total.shape, self._total.dtype, self._total.device)
            on_host.copy_(self._total, non_blocking=True)
        _recorded(self._api, self._downloads).synchronize()
        return on_host.numpy().astype(self._result_type)

    def _fits(self, slab: AnyArray) -> bool:
        """Adds a slab, or makes slabs smaller because there is no memory for this one."""
        try:
            self._wait(_IN_FLIGHT - 1)
            self._queue(slab)
        except RuntimeError as error:
            if not _out_of_memory(error):
                raise
        else:
            return True
        self._wait(0)
        if self._total.device.type == "cuda":
            torch.cuda.empty_cache()
        self._kernel.halve(slab)
        return False

    def _queue(self, slab: AnyArray) -> None:
        """Has the device copy and then multiply a slab. Changes nothing if it cannot."""
        with self._api.stream(self._uploads):
            uploaded = _upload(slab, self._total.device)
        self._products.wait_stream(self._uploads)
        with self._api.stream(self._products):
            self._add(self._total, uploaded)
        self._busy.append((uploaded, _recorded(self._api, self._products)))

    def _wait(self, most: int) -> None:
        """Waits until at most so many slabs are in use."""
        while len(self._busy) > most:
            self._busy[0][1].synchronize()
            self._busy.popleft()


def _stream(device: torch.device) -> Any:
    api = _STREAMS[device.type]
    return api.Stream(device) if device.type == "cuda" else api.Stream()


def _recorded(api: Any, stream: Any) -> Any:
    """Returns an event that has happened once everything is done that is in the stream now."""
    event = api.Event()
    event.record(stream)
    return event


def _out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or _NO_WORKSPACE in str(error)


def _add_float64(total: Tensor, slab: Tensor) -> None:
    """Adds inner products. total: (n, n) float64, changed at the very end."""
    part = torch.zeros_like(total)
    for panel in _panels(slab):
        part.addmm_(panel, panel.t())
    total += part


def field_gram_float64(block: Tensor) -> Tensor:
    """Returns all inner products of the rows modulo p, (n, n) int64. block: (n, b) int32."""
    return _sum(_float64_products, block)


def field_gram_int8(block: Tensor) -> Tensor:
    """Does the same as `field_gram_float64`, by products of int8 digits."""
    return _sum(_int8_products, block)


def _doubt_int8(panel: Tensor) -> str | None:
    """Returns why products of int8 cannot be trusted at this shape; None if they can be.

    This first run also warms both routes up.
    """
    try:
        for residues in (panel, _hard_like(panel)):
            if not torch.equal(_int8_products(residues), _float64_products(residues)):
                return "products of int8 differ from those of float64"
    except RuntimeError as error:
        if _out_of_memory(error):
            raise
        return f"products of int8 do not run: {error}"
    return None


def _hard_like(panel: Tensor) -> Tensor:
    """Returns the hardest residues, of this shape once its sides are aligned.

    So no panel that is multiplied by the same call has an entry that was not looked at.
    """
    n, b = map(_aligned, panel.shape)
    hard = torch.from_numpy(_hard_residues().view(np.int32)).to(panel.device)
    return hard.repeat(math.ceil(n / len(hard)), math.ceil(b / hard.shape[1]))[:n, :b]


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
    host = _host_memory(block.shape, dtype, device)
    np.copyto(host.numpy(), block)
    return host.to(device, non_blocking=True)


def _host_memory(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns memory of the host that this device can copy from and to while the host goes on."""
    return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=device.type == "cuda")


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


def _check_exact(device: torch.device) -> None:
    """Raises ConfigError unless this device's float64 gives numpy's products of the hardest
    residues."""
    block = _hard_residues()
    try:
        found = field_gram_float64(_upload(block.view(np.int32), device)).cpu().numpy()
    except RuntimeError as error:
        raise ConfigError(f"float64 products do not run on {device}: {error}") from error
    if not np.array_equal(found, field.gram(block)):
        raise ConfigError(f"float64 products are not exact on {device}")


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
