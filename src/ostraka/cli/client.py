"""`ostraka client fetch` and `ostraka client submit`."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import click
import numpy as np
import typer

from ostraka.arrays import Float32
from ostraka.cli.output import Json, progress, say, show
from ostraka.client.api import Client
from ostraka.client.events import Event, Report, Sending, Waiting
from ostraka.client.results import Model, Outcome, Update, flatten
from ostraka.core.metrics import NAMES
from ostraka.errors import FAILED, ConfigError, ServiceError
from ostraka.messages import vector_digest
from ostraka.model_file import named_tensors, read_model, write_model

Enclave = Annotated[str, typer.Option(help="HOST:PORT of the enclave's service.")]
Name = Annotated[str, typer.Option(help="This client's name on the roster.")]
Key = Annotated[Path, typer.Option(help="This client's key file.")]
Policy = Annotated[
    Path, typer.Option(help="File that says which enclaves to accept, such as policy.toml.")
]
Memory = Annotated[
    Path | None,
    typer.Option(help="File that is kept between runs; beside the key unless given."),
]
TlsCa = Annotated[Path | None, typer.Option(help="TLS, with the certificates in this PEM file.")]
Simulation = Annotated[
    bool,
    typer.Option("--unsafe-simulation", help="Accept a simulated enclave if the policy does."),
]
Timeout = Annotated[
    float | None,
    typer.Option(min=0, help="Seconds until giving up; without it, the client waits."),
]


def fetch(
    *,
    enclave: Enclave,
    name: Name,
    key: Key,
    policy: Policy,
    out: Annotated[Path, typer.Option(help="The model, as safetensors.")],
    memory: Memory = None,
    tls_ca: TlsCa = None,
    unsafe_simulation: Simulation = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Get the model of the open round.

    The enclave has to prove itself first, and its chain of receipts is followed. The command waits
    for a round to open. The exit code is 3 if the enclave or its receipts are refused.

    \b
    Examples:
      ostraka client fetch --enclave fl:7420 --name a --key a.key --policy p.toml --out m.st
    """
    with _events() as tell:
        client = Client(
            enclave,
            name=name,
            key=key,
            policy=policy,
            memory=memory,
            tls_ca=tls_ca,
            unsafe_simulation=unsafe_simulation,
            timeout=timeout,
            on_event=tell,
        )
        with client:
            model = client.fetch()
    _write(out, model)
    _warn_if_simulated(model)
    show(_fetched(out, model), figures=_model_figures(out, model), as_json=as_json)


def submit(
    update: Annotated[
        Path, typer.Argument(metavar="UPDATE", help="A safetensors file, or .npy for one vector.")
    ],
    *,
    enclave: Enclave,
    name: Name,
    key: Key,
    policy: Policy,
    base: Annotated[
        Path | None,
        typer.Option(help="The fetched model: UPDATE then holds weights, not a difference."),
    ] = None,
    for_round: Annotated[
        int | None, typer.Option("--round", help="Send it for this round only.")
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help=f"Report {', '.join(NAMES)}; may be repeated. Published as a mean, if at all.",
        ),
    ] = None,
    memory: Memory = None,
    tls_ca: TlsCa = None,
    unsafe_simulation: Simulation = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Send an update, and wait for the round's receipt.

    UPDATE is the difference from the model of the round that --round names. With --base it holds
    the weights after training, and the difference from that model is sent, after the federation's
    client momentum, which is kept beside the memory. An interrupted upload
    goes on where it stopped, and an enclave that restarts gets the update again, once it has proved
    itself.

    What --metric reports is sealed with the update. Where the federation's terms name it, the
    receipt has the mean of what all clients report, and otherwise it is not sent.

    The exit code is 0 if the update took part in the round, 1 if it did not, and 3 if the enclave
    or its receipts are refused.

    \b
    Examples:
      ostraka client submit w.st --enclave fl:7420 --name a --key a.key --policy p.toml --base m.st
      ostraka client submit d.npy --enclave fl:7420 --name a --key a.key --policy p.toml --round 3
      ostraka client submit w.st --enclave fl:7420 --name a --key a.key --policy p.toml \\
          --base m.st --metric loss=0.31 --metric accuracy=0.92
    """
    if base is None and for_round is None:
        raise ConfigError(
            "say which round the update is for, by --round (`ostraka client fetch` prints it) or "
            "by --base: an update that is sent for a second round can be read from two aggregates"
        )
    metrics = None if metric is None else dict(map(_metric, metric))
    given, start = _read(update), None if base is None else _read(base)
    with _events() as tell:
        client = Client(
            enclave,
            name=name,
            key=key,
            policy=policy,
            memory=memory,
            tls_ca=tls_ca,
            unsafe_simulation=unsafe_simulation,
            timeout=timeout,
            on_event=tell,
        )
        with client:
            model = client.fetch()
            _require_round(model, for_round)
            outcome = client.submit(_difference(given, start, model), metrics)
    _warn_if_simulated(model)
    show(_submitted(outcome), figures=_outcome_figures(outcome, model), as_json=as_json)
    if not outcome.accepted:
        raise typer.Exit(FAILED)


@contextmanager
def _events(
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[Event], None]]:
    """Show the client's events on stderr: a line for what is new, progress for what repeats.

    What is tried in vain is said again every half a minute. Ctrl-C says what has become of an
    update.
    """
    waited: set[str] = set()
    report = Report(clock, lambda event: say(str(event)))

    def known(event: Event) -> bool:
        if isinstance(event, Sending) and sys.stderr.isatty():
            return True  # The line of progress says it.
        if not isinstance(event, Waiting) or event.what not in waited:
            waited.update([event.what] if isinstance(event, Waiting) else [])
            return False
        return True

    with progress() as step:

        def tell(event: Event) -> None:
            if isinstance(event, Sending):
                step(str(event), event.sent, event.of)
            else:
                step(str(event), 0, 1)
            if not known(event):
                report(event)

        try:
            yield tell
        except KeyboardInterrupt as stopped:
            for note in getattr(stopped, "__notes__", ()):
                click.echo(f"ostraka: {note}", err=True)
            raise


def _metric(text: str) -> tuple[str, float]:
    """Read NAME=VALUE. Raises ConfigError; that the name and the range are right, too, is the
    client's business."""
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise ConfigError(f"--metric is NAME=VALUE, such as loss=0.3; got {text!r}") from None


def _read(path: Path) -> Update:
    """Read arrays by name, or one vector. Raises ConfigError."""
    if path.suffix != ".npy":
        return named_tensors(*read_model(path))
    try:
        vector: Float32 = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as unreadable:
        raise ConfigError(f"{path} cannot be read as an array: {unreadable}") from None
    return vector


def _difference(given: Update, start: Update | None, model: Model) -> Update:
    """Compute the update to send, in float64: weights are large, and updates are small."""
    if start is None:
        return given
    base = flatten(start, model.manifest)
    if vector_digest(base) != model.digest:
        raise ConfigError(
            f"--base is not the model of round {model.round}, which is open now: fetch that one, "
            "and train again"
        )
    return flatten(given, model.manifest).astype(np.float64) - base


def _require_round(model: Model, wanted: int | None) -> None:
    if model.finished:
        raise ServiceError("the federation has finished: there is no round to submit to")
    if wanted not in (None, model.round):
        raise ConfigError(
            f"round {model.round} is open, and the update is for round {wanted}: fetch the model "
            "of the open round, and train again"
        )


def _write(out: Path, model: Model) -> None:
    try:
        write_model(out, model.manifest, model.vector)
    except OSError as failed:
        raise ConfigError(f"{out}: {failed.strerror}") from None


def _warn_if_simulated(model: Model) -> None:
    if model.simulated:
        click.echo("warning: simulated: no TEE protects this enclave", err=True)


def _fetched(out: Path, model: Model) -> str:
    if model.finished:
        return f"{out}: the model after round {model.round}, the last one."
    return f"{out}: the model of round {model.round}, which is open."


def _submitted(outcome: Outcome) -> str:
    if outcome.receipt is not None and outcome.receipt.failure:
        why = outcome.receipt.failure
        return f"Round {outcome.round} is a null step, and the model is as it was: {why}"
    if outcome.receipt is None or not outcome.accepted:
        return f"The update took no part in round {outcome.round}: {outcome.reason}."
    note = f" ({outcome.receipt.note})" if outcome.receipt.note else ""
    return (
        f"Round {outcome.round} is published; the update took part in it. "
        f"Rule: {outcome.receipt.rule}{note}."
    )


def _model_figures(out: Path, model: Model) -> dict[str, Any]:
    return {
        "round": model.round,
        "finished": model.finished,
        "model": model.digest.hex(),
        "dimension": model.manifest.dimension,
        "out": str(out),
        "simulated": model.simulated,
    }


def _outcome_figures(outcome: Outcome, model: Model) -> dict[str, Any]:
    receipt = outcome.receipt
    return {
        "round": outcome.round,
        "accepted": outcome.accepted,
        "reason": outcome.reason,
        "null_step": receipt.failure or None if receipt else None,
        "model": receipt.model.hex() if receipt else None,
        "participants": receipt.participants if receipt else None,
        "kept": receipt.kept if receipt else None,
        "rule": receipt.rule if receipt else None,
        "note": receipt.note or None if receipt else None,
        "metrics": receipt.metrics.figures(receipt.number)
        if receipt is not None and receipt.metrics is not None
        else None,
        "simulated": model.simulated,
    }
