"""The process of one peer: `python -m ostraka_lab.bench.peers.peer_process NAME CONTEST`.

A small contest first, so that nothing is loaded or set up on the clock.
"""

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ostraka_lab.bench.clock import measured
from ostraka_lab.bench.machine import forget_peak, peak_bytes, resident_bytes
from ostraka_lab.bench.peers.contest import Contest
from ostraka_lab.bench.peers.entrant import Entrant
from ostraka_lab.bench.peers.reference import averaged
from ostraka_lab.bench.process import Begin, Figures, report

_MIB = 2**20
_SMALL = 8192

# Where each enters. A module is loaded in its own process only: some need packages that are not
# everywhere.
ENTRANCES = {
    "flower": ("flower", "enter"),
    "byzfl-torch": ("byzfl", "enter_torch"),
    "byzfl-numpy": ("byzfl", "enter_numpy"),
    "blas-clear": ("clear", "enter"),
    "floor": ("floor", "enter"),
    "ostraka-gaussian": ("ours", "gaussian"),
    "ostraka-exact": ("ours", "exact"),
    "ostraka-exact-sketch": ("ours", "exact_sketch"),
    "ostraka-sketch-inside": ("ours", "sketch_inside"),
}


def take(name: str, contest: Contest, begin: Begin) -> Figures:
    """One run of one peer."""
    enter = _entrance(name)
    small = max(_SMALL, 16 * contest.clients)
    enter(replace(contest, dim=min(contest.dim, small))).run()
    begin(name, 0, 1)
    entrant = enter(contest)
    forget_peak()
    before = resident_bytes()
    aggregate, cost = measured(entrant.run)
    figures: Figures = {
        "cpu_s": cost.cpu_s,
        "wall_s": cost.wall_s,
        "peak_rss_mib": peak_bytes() / _MIB,
        "inputs_rss_mib": before / _MIB,
    }
    figures |= entrant.details()
    if "selected" not in figures:
        found = averaged(contest, aggregate, from_weights=entrant.from_weights)
        figures["selected"] = found
    return figures


def _entrance(name: str) -> Callable[[Contest], Entrant]:
    module, function = ENTRANCES[name]
    enter: Callable[[Contest], Entrant] = getattr(
        importlib.import_module(f"ostraka_lab.bench.peers.{module}"), function
    )
    return enter


if __name__ == "__main__":
    asked = Contest(**json.loads(sys.argv[2]))
    sys.exit(report(partial(take, sys.argv[1], asked)))
