"""What a worker learns of a client's update in this run, which depends on the masking."""

import math
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ostraka.core import leakage as law
from ostraka_lab.report import (
    Block,
    Column,
    KeyFigure,
    Notice,
    Paragraph,
    Plot,
    Table,
    drawing,
    format,
)
from ostraka_lab.report.drawing import BLUE, MUTED, VERMILLION
from ostraka_lab.run_report.run_record import Experiment, RunRecord

_FLOAT_BITS = 32  # of one value of an update
_FLOOR = 1e-4  # bits; where the axis begins, which has no zero

_INSIDE = (
    "No worker took part. The enclave measured all distances by itself, and nothing of an update "
    "left it, masked or not."
)

_GAUSSIAN = (
    "One worker is given every update with Gaussian noise added, the other with the same noise "
    "taken away. Law 6 (the paper's corollary 1; docs/protocol.md lists all laws) bounds what one "
    "worker can learn of one update: for each of its values at most ½ log₂(1 + v / σ²) bits, where "
    "v is the variance of the value and σ² that of the noise. It holds if the noise of different "
    "clients is independent."
)

_POLAR = (
    "The noise that makes distances exact is orthogonal from client to client, so it is not "
    "independent. The polar attack uses that. One worker alone takes the polar decomposition of "
    "all rows that it was given together, which gives it the noise but for a small rest, and "
    "subtracts the noise. What is left correlates with the updates, with a signal-to-noise ratio "
    "of √((N + 1) / 2) for N clients, for any noise and dimension (docs/threat-model.md). Choose "
    "exact masking for anything but a comparison with the paper."
)


@dataclass(frozen=True)
class _Bar:
    """The most bits that a worker can learn. ours: with the masking of this run."""

    name: str
    bits: float
    ours: bool


def notice(experiment: Experiment) -> Notice | None:
    """Warn of a masking that leaks."""
    if not _gaussian(experiment):
        return None
    return Notice(
        "Gaussian masking leaks.",
        "It reproduces the paper. One worker alone can recognise updates by the polar attack, "
        "which finds the noise from all rows together, however large it is (see Leakage). Exact "
        "masking, the default, does not have this weakness.",
    )


def text(experiment: Experiment) -> list[Block]:
    """Say it in words."""
    if experiment.inside:
        return [Paragraph(_INSIDE)]
    if _gaussian(experiment):
        return [Paragraph(_GAUSSIAN), Notice("The bound is not the whole truth.", _POLAR)]
    return [Paragraph(_exact(experiment))]


def plots(run: RunRecord) -> list[Plot]:
    experiment = run.experiment
    if experiment.measured_dimension is None:
        return []
    return [_bound_plot(experiment), *([_polar_plot(experiment)] if _gaussian(experiment) else [])]


def table(run: RunRecord) -> Table | None:
    """The figures of a Gaussian run: budget, noise, and the price in precision."""
    experiment = run.experiment
    d = experiment.measured_dimension
    if not _gaussian(experiment) or d is None:
        return None
    bits = _budget(experiment)
    variance = law.clipped_variance(law.ROW_NORM, d)
    sigma = law.sigma_for(bits, variance=variance, d=d)
    bound = law.bound_bits(sigma, variance=variance, d=d)
    error = law.decoding_error(sigma, d=d, dtype=np.float64)
    rows = [
        ("values of a client that a worker is given", f"{d:,}"),
        ("noise, in clipping norms (σ)", f"{sigma:.4g}"),
        ("bound for one update (law 6: if noise were independent)", f"{bound:.3g} bits"),
        (
            f"the same over {format.count(len(run.rounds), 'round')}",
            f"{bound * len(run.rounds):.3g} bits",
        ),
        ("error of a squared distance, in squared clipping norms", f"{error:.2g}"),
        ("signal to noise of the polar attack", f"{_polar_signal(experiment.clients):.2f}"),
        (
            "how often it tells a true suspicion from a false one (AUC)",
            format.percent(_polar_auc(experiment.clients), decimals=1),
        ),
    ]
    return Table((Column("Quantity"), Column("value", number=True)), rows)


def figure(experiment: Experiment) -> KeyFigure:
    what = "Leaked to a worker"
    if experiment.inside:
        return KeyFigure(what, "0 bits", "no workers: the enclave measured alone", "good")
    if _gaussian(experiment):
        note = "Gaussian masking, by law 6; more by the polar attack (see Leakage)"
        return KeyFigure(what, f"≤ {_budget(experiment):g} bits", note, "caution")
    return KeyFigure(what, "0 bits", "exact masking: perfect secrecy", "good")


def _gaussian(experiment: Experiment) -> bool:
    return experiment.masking == "gaussian" and not experiment.inside


def _budget(experiment: Experiment) -> float:
    return experiment.leakage_bits or law.DEFAULT_BITS


def _exact(experiment: Experiment) -> str:
    alone = (
        "any one worker sees"
        if experiment.collusion == 1
        else (f"any {experiment.collusion} workers see together")
    )
    folded = f" folded to {experiment.sketch:,} values and" if experiment.sketch else ""
    return (
        "A worker learns nothing: zero bits, in each round and over all rounds. An update leaves "
        f"the enclave only{folded} masked with uniform numbers modulo 2³¹ − 1. "
        f"What {alone} is uniformly random for any updates: perfect secrecy, as long as "
        "the keystream of AES cannot be told from random numbers and no more workers than that "
        "collude. The published model is no secret, and says of the updates what their average "
        "says."
    )


def _bound_plot(experiment: Experiment) -> Plot:
    bars = _bars(experiment)

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set_xscale("log")
        top = max(bar.bits for bar in bars)
        axes.set_xlim(_FLOOR, top * 3e4)
        for place, bar in enumerate(bars):
            colour = BLUE if bar.ours else MUTED
            axes.barh(place, max(bar.bits, _FLOOR), height=0.55, color=colour)
            axes.annotate(
                _bits(bar.bits),
                (max(bar.bits, _FLOOR), place),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                color=colour,
                weight="bold" if bar.ours else "normal",
            )
        axes.set_yticks(range(len(bars)), [bar.name for bar in bars])
        for bar, label in zip(bars, axes.get_yticklabels(), strict=True):
            label.set_fontweight("bold" if bar.ours else "normal")
        axes.set_ylim(len(bars) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("bits (logarithmic)")
        drawing.powers_of_ten(axes.xaxis)

    caption = (
        "The most that a worker can learn of one update in one round. This run is in blue. For "
        "Gaussian masks it is the paper's bound (law 6 in docs/protocol.md), which assumes "
        "independent noise. Theirs is not: by the polar attack, which finds the noise from all "
        "rows together, one worker alone recognises updates under them."
    )
    return Plot("What one worker can learn of one update", caption, paint, height=2.1)


def _bars(experiment: Experiment) -> list[_Bar]:
    dimension = experiment.dimension or experiment.measured_dimension or 1
    masked = not experiment.inside
    bars = [
        _Bar("without masks", _FLOAT_BITS * dimension, ours=False),
        _Bar("Gaussian masks", _budget(experiment), ours=masked and _gaussian(experiment)),
        _Bar("exact masks", 0.0, ours=masked and not _gaussian(experiment)),
    ]
    return bars if masked else [*bars, _Bar("no workers", 0.0, ours=True)]


def _bits(bits: float) -> str:
    if bits == 0:
        return "0: nothing at all"
    return f"{bits:,.0f}" if bits >= 1 else f"{bits:g}"


def _polar_plot(experiment: Experiment) -> Plot:
    n = experiment.clients

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        counts = range(3, max(2 * n, 64) + 1)
        axes.plot(counts, [_polar_auc(count) for count in counts], color=VERMILLION)
        axes.plot([n], [_polar_auc(n)], "o", color=VERMILLION, markersize=7)
        axes.annotate(
            f"this run: {format.percent(_polar_auc(n), decimals=1)}",
            (n, _polar_auc(n)),
            xytext=(4, -16),
            textcoords="offset points",
            color=VERMILLION,
            weight="bold",
        )
        axes.set_ylim(0.48, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
        axes.set_xlabel("clients")
        axes.set_ylabel("suspicions told apart")

    caption = (
        "The polar attack on Gaussian masks: how often one worker alone tells a true suspicion "
        "about an update from a false one, at any noise. 50 % is guessing."
    )
    return Plot("The polar attack", caption, paint, height=2.1)


def _polar_signal(clients: int) -> float:
    return math.sqrt((clients + 1) / 2)


def _polar_auc(clients: int) -> float:
    """How often two unit normals that far apart are told apart: Phi(signal / sqrt(2))."""
    return (1 + math.erf(_polar_signal(clients) / 2)) / 2
