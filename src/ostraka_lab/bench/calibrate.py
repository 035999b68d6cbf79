"""Measures what `distances="auto"` needs to know: `python -m ostraka_lab.bench.calibrate`."""

import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from ostraka.calibration import Costs
from ostraka.config import DEFAULT_TILE, Manifest, Terms
from ostraka.protocol.enclave import Inside, Lanes, Offload
from ostraka.protocol.enclave.rows import RowReader
from ostraka.protocol.host import Prepared
from ostraka.protocol.round import enrol
from ostraka_lab.bench.process import Begin, Figures, report, run_module

_LEAST = 1e-4  # ns: what is lost in noise still has to be positive


def calibrate(begin: Begin, *, clients: int = 64, tiles: int = 2, repeat: int = 5) -> Costs:
    """Medians over `repeat` runs, each of every way of measuring."""
    begin("sealing updates", 0, repeat + 1)
    cohorts = [_Cohort(clients, tiles, workers) for workers in (2, 4, 6)]
    first, runs = cohorts[0], []
    for number in range(1, repeat + 1):
        begin(f"run {number}", number, repeat + 1)
        runs.append([first.opened(), first.inside(), *(cohort.masked() for cohort in cohorts)])
    opened, inside, *masked = (statistics.median(times) for times in zip(*runs, strict=True))
    values = clients * tiles * DEFAULT_TILE
    one, two, three = (max((total - opened) / values * 1e9, _LEAST) for total in masked)
    return Costs(max((inside - opened) / (clients * values) * 1e9, _LEAST), (one, two, three))


class _Cohort:
    """A closed round that is measured again and again, in CPU seconds."""

    def __init__(self, clients: int, tiles: int, workers: int) -> None:
        terms = Terms(Manifest.flat(tiles * DEFAULT_TILE), f=1, workers=workers)
        parties, rng = enrol(terms, clients=clients), np.random.default_rng(0)
        self._federation = parties.federation
        offer = self._federation.open()
        for client in parties.clients:
            update = rng.standard_normal(terms.dimension, dtype=np.float32)
            self._federation.take(parties.seal(client, offer, update))
        self._cohort = self._federation.close()

    def opened(self) -> float:
        """What both ways have in common."""
        reader = RowReader(self._cohort, Lanes())

        def open_all() -> None:
            for span in reader.spans(self._federation.tiles(self._cohort)):
                for start in range(0, len(reader.rows), reader.group):
                    rows = range(start, min(start + reader.group, len(reader.rows)))
                    reader.open(0, span, rows)

        return _cpu(open_all)

    def inside(self) -> float:
        inside = Inside(self._cohort)
        return _cpu(partial(inside.measure, self._federation.tiles(self._cohort)))

    def masked(self) -> float:
        offload = Offload(self._cohort, Prepared(self._federation.enclave).offline)
        workers = zip(self._federation.workers.values(), offload.offers, strict=True)
        masking = offload.connect([worker.accept(offer)[1] for worker, offer in workers])

        def mask_all() -> None:
            for _ in masking.encode(self._federation.tiles(self._cohort)):
                pass

        return _cpu(mask_all)


def _cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _figures(begin: Begin) -> Figures:
    figures: Figures = json.loads(calibrate(begin).to_json())
    return figures


def run_calibration(begin: Begin) -> Costs:
    """What one thread of this machine takes, measured in a process of its own."""
    return Costs.from_json(json.dumps(run_module("ostraka_lab.bench.calibrate", [], begin)))


if __name__ == "__main__":
    sys.exit(report(_figures))
