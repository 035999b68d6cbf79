"""Runs one experiment: real services, real clients, and the metrics of every round."""

import time
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from typing import TypeAlias

from ostraka.cli.federation_folder import Plan
from ostraka.core.metrics import NAMES
from ostraka.errors import ConfigError, LeakyMasking, ServiceError
from ostraka.model_file import write_model
from ostraka_lab.baselines import PLAIN
from ostraka_lab.children import Child, Children, Logged
from ostraka_lab.deployment import Deployment, Progress, Setting, found, move
from ostraka_lab.experiment import Experiment
from ostraka_lab.folder import Board, Records, RunFolder, client_name, client_number
from ostraka_lab.metrics import BaselineMetrics, Metrics, RoundMetrics, read, read_baseline
from ostraka_lab.task import UNJUDGED, AnyTask, Judge, load_task

Tell: TypeAlias = Callable[[str, int, int], None]
"""tell(what, done, of): what is going on, and how many of the rounds are over."""

_POLL_S = 0.05
_BASELINE = "baseline"
_SILENCE_S = 3600.0  # the longest time without a log line before a run is given up
_LEAVING_S = 30.0  # for clients to end after the last round
# A client that is much slower than the slowest so far is not waited for.
_PATIENCE, _LEAST_DEADLINE_S = 5.0, 30.0


def found_run(folder: RunFolder, experiment: Experiment, *, command: str) -> AnyTask:
    """Make everything that a run needs, and start nothing. Raises ConfigError.

    command: what makes the same run again.
    """
    composition = experiment.composition
    if experiment.k is not None and composition.options.k != experiment.k:
        raise ConfigError(f"k is an option of multi-krum, and not of {composition.plain}")
    task = load_task(experiment)
    manifest, first = task.first()
    experiment.require_sketch(manifest.dimension)
    folder.make()
    write_model(folder.first_model, manifest, first)
    found(folder.federation, _plan(folder, experiment), **_settings(experiment))
    folder.save(
        experiment,
        model=experiment.architecture,
        attack_scale=experiment.scale,
        attackers=experiment.attackers,
        composition=str(composition),
        dimension=manifest.dimension,
        holdings=task.holdings(),
        simulated=True,
        command=command,
    )
    return task


def run(
    folder: RunFolder, *, tell: Tell | None = None, live: Callable[[str], None] | None = None
) -> Generator[RoundMetrics]:
    """Run the rounds that are left, and yield each when it is published and evaluated.

    live: told where the federation's live page is, which is served only if this is given. All
    processes end with the generator. Raises ConfigError, ServiceError or RoundFailed.
    """
    experiment, _ = folder.load()
    done = len(read(folder.root))
    averaged = len(read_baseline(folder.root)) if experiment.resumes_in_the_clear else 0
    if done > experiment.rounds:
        raise ConfigError(f"{done} rounds are over, and {experiment.rounds} were asked for")
    if experiment.masking == "gaussian" and _working(experiment):
        warnings.warn(LeakyMasking(), stacklevel=2)
    task = load_task(experiment)
    metrics = Metrics(folder.root, first=done + 1, first_baseline=averaged + 1)
    with closing(metrics), Children(folder.logs) as children:
        address = move(folder.federation)
        deployment = Deployment(folder.federation, address, children)
        deployment.change(count=experiment.rounds)
        if live is not None and done < experiment.rounds:
            live(deployment.start_dashboard())
        yield from _Run(folder, task, deployment, metrics, tell or _ignore).rounds(done, averaged)


def _plan(folder: RunFolder, experiment: Experiment) -> Plan:
    return Plan(
        clients=experiment.clients,
        workers=experiment.workers,
        f=experiment.tolerated,
        masking=experiment.masking,
        model=folder.first_model,
        composition=experiment.composition,
        disclose_values=experiment.composition.discloses,
        upload=experiment.upload,
        report_metrics=NAMES if experiment.report_metrics else (),
    )


def _settings(experiment: Experiment) -> dict[str, Setting]:
    given: dict[str, Setting | None] = {
        "client_momentum": experiment.client_momentum,
        "count": experiment.rounds,
        "deadline_s": experiment.deadline_s,
        "distances": experiment.distances,
        "sketch": experiment.sketch,
    }
    return {name: value for name, value in given.items() if value is not None}


def _working(experiment: Experiment) -> int:
    """The number of workers: none where the enclave measures by itself."""
    inside = experiment.distances == "inside" or experiment.masking == "none"
    return 0 if inside else experiment.workers


class _Run:
    """One run. The enclave's log shows its progress, the clients' records what was published."""

    def __init__(
        self,
        folder: RunFolder,
        task: AnyTask,
        deployment: Deployment,
        metrics: Metrics,
        tell: Tell,
    ) -> None:
        self._folder = folder
        self._task = task
        self._experiment = task.experiment
        self._deployment = deployment
        self._metrics = metrics
        self._tell = tell
        names = tuple(map(client_name, self._experiment.numbers))
        self._progress = Progress(names, _working(self._experiment), self._experiment.rounds)
        self._records = Records(folder.rounds)
        self._board = Board(folder.board)
        # On this thread. Another that is inside torch when the interpreter ends aborts the process.
        self._judge = Judge(task, meanwhile=self._follow)
        # Below that, no round can be measured, or none is confirmed.
        least = self._experiment.composition.least(self._experiment.tolerated)
        self._needed = max(least, deployment.quorum)
        self._clients: dict[Child, tuple[int, ...]] = {}
        self._listening: list[tuple[Child, Callable[[Logged], None]]] = []

    def rounds(self, after: int, averaged: int) -> Iterator[RoundMetrics]:
        """Run those after round `after`. averaged: the rounds of plain averaging on record."""
        if after < self._experiment.rounds:
            self._start()
        if self._experiment.baseline and averaged < self._experiment.rounds:
            self._start_baseline(averaged)
        for number in range(after + 1, self._experiment.rounds + 1):
            self._until(partial(self._records.has, number))
            scores = self._scores(number)
            self._until(lambda: self._progress.published >= number)  # noqa: B023 (called here)
            row = self._row(number, scores)
            if number == self._experiment.rounds:
                self._export()  # A run whose rounds are all on record has its model.
            self._metrics.write(row)
            self._adapt_deadline(number)
            yield row
        self._finish()

    def _start(self) -> None:
        """Start the clients last: once all workers are there, the first round need not wait."""
        deployment = self._deployment
        self._board.forget()
        self._listening = [(deployment.start_enclave(), self._progress.hear_enclave)]
        for number in range(1, _working(self._experiment) + 1):
            deployment.start_worker(number)
        self._until(lambda: self._progress.ready)
        for group in self._experiment.groups:
            self._start_clients(group)

    def _start_baseline(self, done: int) -> None:
        arguments = (str(self._folder.root), PLAIN, str(done))
        child = self._deployment.children.start(
            _BASELINE, "ostraka_lab.baselines", *arguments, serves=False
        )
        self._listening.append((child, self._hear_baseline))

    def _hear_baseline(self, event: Logged) -> None:
        if event.get("event") == "ClearRoundDone":
            self._metrics.baseline(BaselineMetrics.from_json(event))

    def _start_clients(self, group: tuple[int, ...]) -> None:
        name = "-".join(dict.fromkeys(map(str, (group[0], group[-1]))))
        child = self._deployment.start_client(
            client_name(group[0]) if len(group) == 1 else f"clients-{name}",
            "ostraka_lab.client",
            str(self._folder.root),
            self._deployment.address,
            *map(str, group),
        )
        self._clients[child] = group
        self._listening.append((child, self._progress.hear_client))

    def _scores(self, number: int) -> dict[str, float | None]:
        if not self._experiment.evaluates(number):
            return UNJUDGED
        return self._judge.scores(self._records.model(number))

    def _row(self, number: int, scores: dict[str, float | None]) -> RoundMetrics:
        record, times = self._records.round(number), self._progress.timed(number)
        absent = {client_number(name) for name in times.missing} - record.rejected.keys()
        taken = {*record.selected, *record.rejected, *absent}
        return RoundMetrics(
            round=number,
            **scores,
            selected=record.selected,
            dropped=tuple(sorted({*self._experiment.numbers} - taken)),
            rejected=record.rejected,
            absent=tuple(sorted(absent)),
            byzantine_selected=len({*record.selected} & {*self._experiment.attackers}),
            failure=record.failure,
            stages_s=times.stages,
            wall_s=times.wall,
            start_s=self._progress.start_up(number),
        )

    def _adapt_deadline(self, number: int) -> None:
        """Set the deadline of the next rounds by how long clients took in this one."""
        times = self._progress.timed(number)
        patience = max(_LEAST_DEADLINE_S, _PATIENCE * (times.closed - times.opened))
        self._deployment.change(deadline_s=min(self._experiment.deadline_s, patience))

    def _export(self) -> None:
        """Export the last model, and discard those before it."""
        last = self._experiment.rounds
        write_model(self._folder.model, self._task.first()[0], self._records.model(last))
        self._records.discard_before(last)

    def _finish(self) -> None:
        """Wait for the processes that end by themselves."""
        self._until(self._baseline_over)
        self._listen()
        self._deployment.children.wait(_LEAVING_S)

    def _baseline_over(self) -> bool:
        started = self._deployment.children.started
        return all(each.process.poll() is not None for each in started if each.name == _BASELINE)

    def _until(self, done: Callable[[], bool]) -> None:
        """Follow the logs until that is so. Raises ServiceError or RoundFailed if it cannot be."""
        heard = time.monotonic()
        while not done():
            if self._follow():
                heard = time.monotonic()
            elif time.monotonic() - heard > _SILENCE_S:
                raise self._listening[0][0].failed(f"has logged nothing for {_SILENCE_S:.0f} s")
            else:
                time.sleep(_POLL_S)

    def _follow(self) -> bool:
        """Look after all processes. Tells whether there were new log lines."""
        self._deployment.children.require_well()
        self._notice_lost()
        return self._listen()

    def _listen(self) -> bool:
        """Read new log lines. Tells whether there were any."""
        said = False
        for child, hear in self._listening:
            for event in child.events():
                hear(event)
                said = True
        self._tell(str(self._progress), self._progress.published, self._experiment.rounds)
        return said

    def _notice_lost(self) -> None:
        """Count clients whose process died as gone. Raises ServiceError if too few are left."""
        for child in [each for each in self._clients if each.failure()]:
            group = self._clients.pop(child)
            self._progress.lose(map(client_name, group), child.failure() or "")
            for client in group:
                self._board.leave(client)
        gone, over = self._progress.gone, self._progress.published >= self._experiment.rounds
        left = self._experiment.clients - len(gone)
        if left < self._needed and not over:
            reasons = "".join(f"\n  {name}: {why}" for name, why in gone.items())
            raise ServiceError(
                f"{left} clients are left, and a round needs {self._needed}:{reasons}"
            )


def _ignore(what: str, done: int, of: int) -> None:
    pass
