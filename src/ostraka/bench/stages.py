"""What `ostraka bench kernels` times: one small function per stage, and one table of them all.

A stage gets the workload and a stopwatch, and runs the clock over what the enclave would do. What
clients and workers do meanwhile is not counted.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ostraka.arrays import Float32, Float64
from ostraka.bench.first_pass import first_pass
from ostraka.bench.stopwatch import Stopwatch
from ostraka.bench.workload import Workload
from ostraka.core import distances, noise
from ostraka.crypto.stream import SecretStream

# Gram-Schmidt is run on at most this many values x rows: some ten seconds.
_MGS_WORK = 4_000_000_000


def open_updates(load: Workload, clock: Stopwatch) -> None:
    raw = np.empty(load.rules.tile, np.float32)
    with clock:
        for index in range(load.rules.tiles):
            out = raw[: load.rules.tile_length(index)]
            for row in range(load.clients):
                load.open_row(index, row, out)


def average(load: Workload, clock: Stopwatch) -> None:
    updates, weights = load.updates, _weights(load)
    mean = np.empty(load.rules.dimension, np.float32)
    with clock:
        for index in range(load.rules.tiles):
            part = load.rules.tile_slice(index)
            np.matmul(weights, updates[:, part], out=mean[part])


def floor(load: Workload, clock: Stopwatch) -> None:
    weights, block = _weights(load), _block(load)
    mean = np.empty(load.rules.dimension, np.float32)
    with clock:
        for index in range(load.rules.tiles):
            opened = load.open_tile(index, block)
            np.matmul(weights, opened, out=mean[load.rules.tile_slice(index)])


def inside_naive(load: Workload, clock: Stopwatch) -> None:
    _inside(load, clock, distances.add_naive)


def inside_blas32(load: Workload, clock: Stopwatch) -> None:
    _inside(load, clock, distances.add_gram32)


def inside_blas64(load: Workload, clock: Stopwatch) -> None:
    wide = np.empty((load.clients, load.rules.tile))

    def add(total: Float64, block: Float32) -> None:
        widened = wide[:, : block.shape[1]]
        np.copyto(widened, block)
        distances.add_gram(total, widened)

    _inside(load, clock, add)


def gaussian_online(load: Workload, clock: Stopwatch) -> None:
    first_pass(
        load.cohort,
        load.noise(),
        tiles=load.tiles(),
        noise=load.sealed_noise,
        workers=load.workers(),
        clock=clock,
        lanes=load.lanes,
    )


def noise_normals(load: Workload, clock: Stopwatch) -> None:
    seed = bytes(32)
    with clock:
        for index in range(load.rules.tiles):
            shape = (load.clients, load.rules.tile_length(index))
            SecretStream(seed, stream=index).normal(shape)


def noise_orth(load: Workload, clock: Stopwatch) -> None:
    gaussian = load.updates
    with clock:
        noise.constant_distance(gaussian, sigma=1.0)


def noise_mgs(load: Workload, clock: Stopwatch) -> None:
    n, d = load.clients, load.rules.dimension
    columns = min(d, max(n, _MGS_WORK // n**2))
    gaussian = load.updates[:, :columns]
    with clock:
        noise.gram_schmidt(gaussian, sigma=1.0)
    clock.extrapolate(part=columns, whole=d)


def _inside(load: Workload, clock: Stopwatch, add: Callable[[Float64, Float32], None]) -> None:
    block, total = _block(load), np.zeros((load.clients, load.clients))
    with clock:
        for index in range(load.rules.tiles):
            add(total, load.open_tile(index, block))


def _block(load: Workload) -> Float32:
    return np.empty((load.clients, load.rules.tile), np.float32)


def _weights(load: Workload) -> Float32:
    """The mean of the first k rows, as weights over all of them."""
    k = load.rules.kept(load.clients, load.rules.f)
    weights = np.zeros(load.clients, np.float32)
    weights[:k] = 1 / k
    return weights


@dataclass(frozen=True)
class Stage:
    """A row of the table.

    once: not repeated, because it is costly. extra: bytes of memory per value of an update, beyond
    the updates and their ciphertext.
    """

    run: Callable[[Workload, Stopwatch], None]
    what: str
    once: bool = False
    extra: int = 0


STAGES = {
    "open": Stage(open_updates, "open every update once (AES-256-GCM)"),
    "average": Stage(average, "average k updates in the clear"),
    "floor": Stage(floor, "open every update once and average k"),
    "inside_naive": Stage(inside_naive, "open, distances pair by pair in the enclave"),
    "inside_blas32": Stage(inside_blas32, "open, float32 Gram matrix in the enclave"),
    "inside_blas64": Stage(inside_blas64, "open, float64 Gram matrix in the enclave"),
    "gaussian_online": Stage(
        gaussian_online, "the enclave's first pass with Gaussian masks, and decoding", extra=8
    ),
    "noise_normals": Stage(noise_normals, "offline: secret normals for one set of noise"),
    "noise_orth": Stage(noise_orth, "offline: orthogonalise them by CholeskyQR", extra=8),
    "noise_mgs": Stage(noise_mgs, "offline: the same by modified Gram-Schmidt", once=True),
}
