"""What a run shows while it goes on: a table that grows, or a line a round without a terminal."""

import statistics
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ostraka.cli.output import table

if TYPE_CHECKING:
    from ostraka_lab.metrics import RoundMetrics

_SHOWN = 15  # rounds that fit on a screen
_TICKS_PER_S = 4


@dataclass
class RoundView:
    """Shows the rounds of a run.

    rounds: of the whole run. plain: the accuracy of plain averaging so far, by round.
    """

    rounds: int
    attackers: frozenset[int]
    plain: Callable[[], dict[int, float | None]]
    console: Console = field(default_factory=lambda: Console(stderr=True, highlight=False))
    rows: list["RoundMetrics"] = field(default_factory=list)
    _doing: str = "starting"
    _live: Live | None = None

    def watching(self) -> AbstractContextManager[Any]:
        """Redraw the table while this is open, if there is a terminal."""
        if not self.console.is_terminal:
            return nullcontext()
        self._live = Live(
            console=self.console,
            get_renderable=self._picture,
            refresh_per_second=_TICKS_PER_S,
            transient=True,
        )
        return self._live

    def tell(self, what: str, done: int, of: int) -> None:
        self._doing = what

    def show_page(self, address: str) -> None:
        """Say where the run can be watched."""
        self.console.print(f"Live, while it runs: {address}", soft_wrap=True)

    def add(self, row: "RoundMetrics") -> None:
        self.rows.append(row)
        if self._live is None:
            self.console.print(self._line(row), soft_wrap=True)

    def table(self, rows: Iterable["RoundMetrics"] | None = None) -> Table:
        plain = self.plain()
        shown = table("round", "accuracy", "plain averaging", "loss", "Left out", "seconds")
        for row in self.rows if rows is None else rows:
            shown.add_row(
                str(row.round),
                percent(row.accuracy),
                percent(plain.get(row.round)),
                "-" if row.loss is None else f"{row.loss:.3f}",
                self._left_out(row),
                seconds(row.wall_s),
            )
        return shown

    def _line(self, row: "RoundMetrics") -> str:
        plain = self.plain().get(row.round)
        beside = f" (plain averaging {percent(plain)})" if plain is not None else ""
        return (
            f"[ROUND {row.round}/{self.rounds}] accuracy {percent(row.accuracy)}{beside}, "
            f"left out: {self._left_out(row)}, {seconds(row.wall_s)} s"
        )

    def _left_out(self, row: "RoundMetrics") -> str:
        """List the clients that were left out. A star marks an attacker."""
        if row.failure:
            return f"everybody: {row.failure}"

        def names(clients: Iterable[int]) -> str:
            return ", ".join(f"{each}{'*' * (each in self.attackers)}" for each in sorted(clients))

        parts = [
            names(row.dropped),
            *(f"{names(row.rejected)} rejected" for _ in range(bool(row.rejected))),
            *(f"{names(row.absent)} absent" for _ in range(bool(row.absent))),
        ]
        return "; ".join(part for part in parts if part) or "-"

    def _picture(self) -> RenderableType:
        done = len(self.rows) and self.rows[-1].round
        bar = ProgressBar(total=self.rounds, completed=done, width=40)
        return Group(self.table(self.rows[-_SHOWN:]), bar, Text(f"{self._doing}{self._left(done)}"))

    def _left(self, done: int) -> str:
        times = [row.wall_s for row in self.rows[-_SHOWN:] if row.wall_s]
        if not times or done >= self.rounds:
            return ""
        usual = statistics.median_low(times)
        return f"; about {timedelta(seconds=round(usual * (self.rounds - done)))} left"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def seconds(time: float | None) -> str:
    return "-" if time is None else f"{time:.1f}"
