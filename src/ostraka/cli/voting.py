"""`ostraka witness run`, `ostraka client confirm`, and what goes on after an enclave was lost."""

import signal
from pathlib import Path
from typing import Annotated

import click
import typer

from ostraka import federation_file
from ostraka.cli.client import Enclave, Key, Memory, Policy, Simulation, TlsCa
from ostraka.cli.output import Json, show
from ostraka.cli.worker import stopped_by_signals
from ostraka.client import abandoning
from ostraka.client.abandoning import Testimony
from ostraka.client.attesting import Verifier
from ostraka.client.events import Confirmed, Event, Report
from ostraka.client.memory import MemoryFile
from ostraka.client.voting import Record, Voter
from ostraka.errors import INTERRUPTED, ConfigError
from ostraka.federation_file import abandon_path, abandoned_model_path, charter_path
from ostraka.files import read_identity, read_policy
from ostraka.messages import NO_PROPOSAL, vector_digest
from ostraka.model_file import read_model, write_model

Name = Annotated[str, typer.Option(help="This party's name on the roster.")]
_VOTES = ".votes"

FederationToml = Annotated[Path, typer.Argument(help="The federation.toml.")]


def run_witness(
    *,
    enclave: Enclave,
    name: Name,
    key: Key,
    policy: Policy,
    record: Annotated[
        Path | None, typer.Option(help="One line a round; beside the key unless given.")
    ] = None,
    memory: Memory = None,
    tls_ca: TlsCa = None,
    unsafe_simulation: Simulation = False,
) -> None:
    """Confirm each outcome once, until stopped.

    A witness sees no update and no model. It makes sure that the enclave has one history: of each
    round it confirms one outcome, ever, and writes a line about it that it never forgets. Keep the
    key, the memory and the record on a disk that is not restored from copies; who loses them needs
    a new key. SIGTERM ends it with exit code 0, Ctrl-C with 130.

    \b
    Examples:
      ostraka witness run --enclave fl:7420 --name auditor --key auditor.key --policy policy.toml
    """
    who, file = _who(name, key, policy, memory, unsafe_simulation=unsafe_simulation)
    lines = Record(record or key.with_suffix(_VOTES))
    _run(Voter(enclave, who, file, tls_ca, _Lines(), record=lines))


def confirm(
    *,
    enclave: Enclave,
    name: Name,
    key: Key,
    policy: Policy,
    memory: Memory = None,
    tls_ca: TlsCa = None,
    unsafe_simulation: Simulation = False,
) -> None:
    """Confirm outcomes until stopped, without taking part.

    `submit` and `fetch` confirm by themselves. Run this beside a client that trains for a long
    time, or that does not take part in every round, so that others need not wait for it.

    \b
    Examples:
      ostraka client confirm --enclave fl:7420 --name a --key a.key --policy p.toml
    """
    who, file = _who(name, key, policy, memory, unsafe_simulation=unsafe_simulation)
    _run(Voter(enclave, who, file, tls_ca, _Lines()))


def give_testimony(
    *,
    name: Name,
    key: Key,
    policy: Policy,
    out: Annotated[Path, typer.Option(help="The testimony, for the federation's authority.")],
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Say how this client voted in the open round, because the enclave's state was lost.

    If it has not voted yet, it declares that it never will: it can then confirm no outcome of that
    round any more. The authority proves with such testimonies that nothing of the round was
    released (ostraka abandon).

    \b
    Examples:
      ostraka client testify --name a --key a.key --policy p.toml --out a.testimony
    """
    who, file = _who(name, key, policy, memory, unsafe_simulation=False)
    record = Record(key.with_suffix(_VOTES))
    testimony = abandoning.give_testimony(
        file, who.identity, record if record.path.exists() else None
    )
    abandoning.write(out, testimony)
    vote = testimony.confirmation
    none = vote.proposal == NO_PROPOSAL
    show(
        f"{out}: client {name!r} has confirmed "
        + (
            f"no outcome of round {vote.number}, and never will."
            if none
            else f"the outcome {vote.proposal.hex()} of round {vote.number}."
        ),
        figures={"round": vote.number, "proposal": None if none else vote.proposal.hex()},
        as_json=as_json,
    )


def abandon(
    federation: FederationToml,
    testimonies: Annotated[list[Path], typer.Argument(help="Of as many clients as possible.")],
    *,
    key: Annotated[Path, typer.Option(help="The authority's key file.")],
    model: Annotated[Path, typer.Option(help="The model before the lost round, safetensors.")],
    unproved: Annotated[
        bool,
        typer.Option(
            "--unproved",
            help="Sign without proof: each client takes part again only by its owner's word.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Give up the round of an enclave whose state was lost, so that a new one can go on.

    The testimonies of clients (ostraka client testify) say where the chain is, and prove that no
    outcome of the open round can have been confirmed. Then start an enclave with an empty folder
    for state: it goes on with the number behind, from the model before.

    \b
    Examples:
      ostraka abandon federation.toml *.testimony --key keys/authority.key --model last.st
    """
    file = federation_file.load(federation)
    charter = federation_file.load_charter(charter_path(federation))
    federation_file.require_signed(file, charter)
    authority = read_identity(key)
    if authority.public != charter.federation.authority:
        raise ConfigError(f"{key} is not the key of the authority that {federation} names")
    told = [federation_file.read_message(Testimony, path) for path in testimonies]
    signed, proved = abandoning.abandon(charter, told, authority)
    manifest, vector = read_model(model)
    if vector_digest(vector) != signed.model:
        raise ConfigError(
            f"{model} is not the model before round {signed.number}: that one has the digest "
            f"{signed.model.hex()}"
        )
    if not (proved or unproved):
        raise ConfigError(
            f"{len(signed.votes)} votes do not prove that nothing of round {signed.number} was "
            "released: bring the testimonies of more clients, or give --unproved; then each client "
            "takes part again only by its owner's word"
        )
    write_model(abandoned_model_path(federation), manifest, vector)
    abandoning.write(abandon_path(federation), signed)
    show(
        f"Round {signed.number} is abandoned, {'with' if proved else 'WITHOUT'} proof, in "
        f"{abandon_path(federation)}.",
        "Next: start an enclave beside it, with an empty folder for state.",
        figures={"round": signed.number, "proved": proved, "votes": len(signed.votes)},
        as_json=as_json,
    )


def rejoin(
    abandoned: Annotated[Path, typer.Argument(metavar="ABANDON", help="federation.abandon")],
    *,
    name: Name,
    key: Key,
    policy: Policy,
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Take part again behind an abandoned round, by your own word.

    Needed if nothing proves that no outcome of that round was released: then an update that is
    trained from the same model may be the same as one that was released before, and two aggregates
    with it may show it. Also needed by a client that was away before that round, and so cannot
    check by itself who confirms what follows.

    \b
    Examples:
      ostraka client rejoin federation.abandon --name a --key a.key --policy p.toml
    """
    who, file = _who(name, key, policy, memory, unsafe_simulation=False)
    signed = federation_file.load_abandon(abandoned)
    abandoning.accept(file, who.identity, signed, who.policy)
    show(
        f"Client {name!r} goes on behind round {signed.number}.",
        figures={"round": signed.number},
        as_json=as_json,
    )


def _who(
    name: str, key: Path, policy: Path, memory: Path | None, *, unsafe_simulation: bool
) -> tuple[Verifier, MemoryFile]:
    who = Verifier(name, read_identity(key), read_policy(policy), policy, unsafe_simulation)
    federation = who.policy.federation.id
    if memory is not None:
        return who, MemoryFile(memory, name, federation)
    return who, MemoryFile.beside(key, name, federation)


def _run(voter: Voter) -> None:
    voter.file.load()  # A memory that is damaged is told of now.
    click.echo(f"{voter.who.name} confirms outcomes of {voter.address}", err=True)
    with stopped_by_signals(voter.stop) as caught:
        voter.run()
    if signal.SIGINT in caught:
        raise typer.Exit(INTERRUPTED)


class _Lines:
    """Prints one line a round on stdout, and logs what goes wrong, now and then."""

    def __init__(self) -> None:
        self._report = Report()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Confirmed):
            click.echo(str(event))
        else:
            self._report(event)
