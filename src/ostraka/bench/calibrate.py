"""Measures what `distances="auto"` needs to know about this machine."""

import statistics
import time
from collections.abc import Callable

import numpy as np

from ostraka.config import Manifest, RoundConfig
from ostraka.core.costs import Costs
from ostraka.roles.enclave import Cohort
from ostraka.roles.enclave.lanes import Lanes
from ostraka.roles.enclave.rows import RowReader
from ostraka.round import Host, Parties, Prepared, enrol

_FEW, _MANY = 2, 4  # workers


def calibrate(
    *, clients: int = 64, tiles: int = 8, repeat: int = 5, progress: Callable[[int], None]
) -> Costs:
    """Medians over `repeat` runs, each of every way of measuring. progress: called with its number."""
    benches = {workers: _Bench(clients, tiles, workers) for workers in (_FEW, _MANY)}
    runs = []
    for number in range(repeat):
        runs.append([*benches[_FEW].once(), benches[_MANY].once()[2]])
        progress(number + 1)
    opened, inside, few, many = (statistics.median(times) for times in zip(*runs, strict=True))
    values = clients * benches[_FEW].columns
    share = max((many - few) / (_MANY - _FEW), 0) / values
    least = 1e-4  # ns: a measurement lost in noise still has to be positive
    return Costs(
        gram=max((inside - opened) / (clients * values) * 1e9, least),
        mask=max(((few - opened) / values - _FEW * share) * 1e9, least),
        share=max(share * 1e9, least),
    )


class _Bench:
    """A cohort that is measured again and again."""

    def __init__(self, clients: int, tiles: int, workers: int) -> None:
        rules = RoundConfig(Manifest.flat(tiles * 16_384), f=1, workers=workers)
        self.columns = rules.columns.length
        self._parties: Parties = enrol(rules, clients=clients)
        self._host = Host(self._parties, Lanes())
        rng = np.random.default_rng(0)
        collecting = self._parties.enclave.open_round()
        for client in self._parties.clients:
            update = rng.standard_normal(self.columns, dtype=np.float32)
            self._host.collect(collecting, client.join(collecting.offer).seal(update).sealed)
        self._cohort: Cohort = collecting.close()

    def once(self) -> tuple[float, float, float]:
        """CPU seconds to open everything, to measure it inside, and to mask it."""
        prepared = Prepared(self._parties.enclave)
        connecting = self._cohort.offload(prepared.offline)
        workers = zip(self._parties.workers.values(), connecting.offers, strict=True)
        masking = connecting.connect([worker.accept(offer)[1] for worker, offer in workers])
        return (
            _cpu(self._open),
            _cpu(lambda: self._cohort.inside().measure(self._host.tiles(self._cohort))),
            _cpu(lambda: [None for _ in masking.encode(self._host.tiles(self._cohort))]),
        )

    def _open(self) -> None:
        reader: RowReader = self._cohort.reader(Lanes())
        for index, ciphertexts in enumerate(self._host.tiles(self._cohort)):
            reader.begin(index, ciphertexts)
            reader.each_group(
                lambda lane, rows, i=index, c=ciphertexts: reader.open(lane, i, rows, c)
            )


def _cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start
