"""`python -m ostraka.enclave`: the enclave's own entry, and all the code that its process runs.

`ostraka enclave`, the units, the lab and the Gramine manifest execute this. Everything is imported
at once, and `measurement.MEASURED` lists it: nothing is loaded later that was not measured.

It ends as every command of ours does (`errors.exit_code`).
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

# gRPC reads this when it is loaded. What it would log is about its own source code.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
if __name__ == "__main__":
    # gRPC loads these where they happen to be installed. An enclave needs none of them.
    blocked: Any = dict.fromkeys(("grpc_health", "grpc_reflection", "grpc_tools"))
    sys.modules.update(blocked)

from ostraka.enclave import commands
from ostraka.enclave.commands import Machine, Report
from ostraka.errors import IMPOSSIBLE, INTERRUPTED, TERMINATED, OstrakaError, exit_code

_PROGRAM = "ostraka enclave"
_ENCLAVE = """\
Run the enclave's service, or hand its state to a successor.

`python -m ostraka.enclave` does the same, and loads nothing but the enclave's own code."""
_ENCLAVE_EXAMPLES = """\
Examples:
  ostraka enclave run --config federation.toml
  ostraka enclave migrate request --from HEX --config federation.toml --out request.bin"""
_RUN = """\
Run a federation's rounds until all are done: collect updates, measure them, publish.

The platform is detected. Without a TEE the enclave does not start, unless simulation is asked for
by name. SIGTERM and Ctrl-C end it cleanly: a round that is being measured is finished, an open one
is given up. After a crash, start it again: it goes on after the last published round."""
_RUN_EXAMPLES = """\
Examples:
  ostraka enclave run --config federation.toml
  ostraka enclave run --config federation.toml --unsafe-simulation"""
_SHARD = """\
Serve the lead of a federation as one of its shards, until it has published all rounds.

A shard takes in, measures and averages a range of the values of all updates, and has that range of
the model. Lead and shards run the same code and prove themselves to each other; the federation's
shard_policy says what is accepted. Start one for each number below `enclave.shards` of the lead's
federation.toml, with copies of that file, of its charter, of the policy for shards and of the first
model. Of its file it takes `listen`, [storage], [limits] and the memory and threads of [enclave].

It joins the lead again whenever the connection ends, and waits for a lead that is not there yet. If
it is stopped or lost, a round that is open is given up, and opened anew when it is back. Its slices
of the model are in its state folder; the message about one that is missing names the file."""
_SHARD_EXAMPLES = """\
Examples:
  ostraka enclave shard --lead enclave.example:7420 --number 0 --config federation.toml
  ostraka enclave shard --lead enclave.example:7420 --number 1 --advertise shard-1.example:7420"""
_EVIDENCE = """\
Write what this machine's platform says of the enclave, to look at and to compare.

The evidence is bound to nothing, so no client accepts it: each client asks for its own.
`ostraka attest show` reads it out."""
_EVIDENCE_EXAMPLES = """\
Examples:
  ostraka enclave evidence --out evidence.bin
  ostraka enclave evidence --config federation.toml --unsafe-simulation"""
_MIGRATE = """\
Hand an enclave's sealed state to other code, or to another machine.

The federation's authority decides about it: it must have listed the hand-over under `successors`,
in the revision that is in force. Clients agree to it in their policies. The old enclave is stopped,
and retires for good."""
_MIGRATE_EXAMPLES = """\
Examples:
  ostraka enclave migrate request --from HEX --config new/federation.toml --out request.bin
  ostraka enclave migrate export request.bin --config old/federation.toml \\
    --policy policy.toml --out bundle.bin
  ostraka enclave migrate import bundle.bin --config new/federation.toml --policy policy.toml"""
_REQUEST = """\
In the new enclave: ask for the state of the old one.

Its folder must be empty, and keeps the key that the answer is sealed to. This prints the line that
the authority has to sign and that clients have to agree to; after a new revision, ask again."""
_REQUEST_EXAMPLES = """\
Examples:
  ostraka enclave migrate request --from HEX --config federation.toml --out request.bin"""
_EXPORT = """\
In the old enclave: hand everything over, and retire.

The enclave never starts again, even if the bundle does not arrive. The same request can be exported
again; no other can."""
_EXPORT_EXAMPLES = """\
Examples:
  ostraka enclave migrate export request.bin --policy policy.toml --out bundle.bin"""
_IMPORT = """\
In the new enclave: go on where the old one stopped."""
_IMPORT_EXAMPLES = """\
Examples:
  ostraka enclave migrate import bundle.bin --policy policy.toml"""


class Parser(argparse.ArgumentParser):
    """Shows help as it is written, and a mistake as one line on stderr, with exit code 2."""

    def __init__(self, **options: Any) -> None:
        as_written = argparse.RawDescriptionHelpFormatter
        super().__init__(formatter_class=as_written, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"ostraka: {message}; see `{self.prog} --help`\n")
        sys.exit(IMPOSSIBLE)


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


class _Renamed(argparse.Action):
    """An option of version 0.1, which has another name now."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        parser.error(f"{self.option_strings[0]} is {self.const} now")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code."""
    asked = parser().parse_args(arguments)
    try:
        _show(asked.command(asked), as_json=getattr(asked, "json", False))
    except OstrakaError as error:
        sys.stderr.write(f"ostraka: {error}\n")
        return exit_code(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _show(report: Report | None, *, as_json: bool) -> None:
    """Text for people; or the figures as the last line of stdout, and the text on stderr."""
    if report is None:
        return
    (sys.stderr if as_json else sys.stdout).write(f"{report.text}\n")
    if as_json:
        sys.stdout.write(f"{json.dumps(report.figures)}\n")


def parser() -> Parser:
    """Every command of the enclave's process, with its options and its help."""
    root = Parser(prog=_PROGRAM, description=_ENCLAVE, epilog=_ENCLAVE_EXAMPLES)
    below = _commands(root)
    _add_run(below)
    _add_shard(below)
    _add_evidence(below)
    migrate = _commands(_command(below, "migrate", _MIGRATE, _MIGRATE_EXAMPLES))
    _add_request(migrate)
    _add_export(migrate)
    _add_import(migrate)
    return root


def _add_run(below: Commands) -> None:
    run = _command(below, "run", _RUN, _RUN_EXAMPLES)
    _add_machine(run)
    run.add_argument("--log-json", action="store_true", help="log as JSON lines")
    run.set_defaults(command=lambda asked: commands.run(_machine(asked), log_json=asked.log_json))


def _add_shard(below: Commands) -> None:
    shard = _command(below, "shard", _SHARD, _SHARD_EXAMPLES)
    _add_machine(shard)
    shard.add_argument("--lead", metavar="HOST:PORT", required=True, help="where the lead listens")
    shard.add_argument(
        "--number", metavar="N", type=int, required=True, help="which shard this is, counted from 0"
    )
    shard.add_argument(
        "--advertise",
        metavar="HOST:PORT",
        help="where clients and workers find this shard (default: where it listens, if that is one "
        "address)",
    )
    shard.add_argument(
        "--tls-ca", metavar="FILE", type=Path, help="certificates that vouch for the lead"
    )
    shard.add_argument("--log-json", action="store_true", help="log as JSON lines")
    shard.set_defaults(
        command=lambda asked: commands.run_shard(
            _machine(asked),
            lead=asked.lead,
            number=asked.number,
            advertise=asked.advertise,
            tls_ca=asked.tls_ca,
            log_json=asked.log_json,
        )
    )


def _add_evidence(below: Commands) -> None:
    evidence = _command(below, "evidence", _EVIDENCE, _EVIDENCE_EXAMPLES)
    _add_config(evidence)
    _add_out(evidence, "the evidence", Path("evidence.bin"))
    evidence.set_defaults(
        command=lambda asked: commands.evidence(
            Machine(asked.config, asked.unsafe_simulation), out=asked.out
        )
    )


def _add_request(below: Commands) -> None:
    request = _command(below, "request", _REQUEST, _REQUEST_EXAMPLES)
    _add_machine(request)
    request.add_argument(
        "--from",
        dest="predecessor",
        metavar="HEX",
        required=True,
        help="the old enclave's receipt key; `ostraka status` shows it, a client has proof of it",
    )
    _add_out(request, "the request")
    _add_json(request)
    request.set_defaults(
        command=lambda asked: commands.request(
            _machine(asked), predecessor=asked.predecessor, out=asked.out
        )
    )


def _add_export(below: Commands) -> None:
    export = _command(below, "export", _EXPORT, _EXPORT_EXAMPLES)
    export.add_argument("path", metavar="REQUEST", type=Path, help="the new enclave's request")
    _add_machine(export)
    _add_policy(export)
    _add_out(export, "the bundle")
    _add_json(export)
    export.set_defaults(
        command=lambda asked: commands.export(
            _machine(asked), asked.path, policy=asked.policy, out=asked.out
        )
    )


def _add_import(below: Commands) -> None:
    take_over = _command(below, "import", _IMPORT, _IMPORT_EXAMPLES)
    take_over.add_argument("path", metavar="BUNDLE", type=Path, help="what the old one exported")
    _add_machine(take_over)
    _add_policy(take_over)
    _add_json(take_over)
    take_over.set_defaults(
        command=lambda asked: commands.take_over(_machine(asked), asked.path, policy=asked.policy)
    )


def _machine(asked: argparse.Namespace) -> Machine:
    return Machine(asked.config, asked.unsafe_simulation, asked.key_release, asked.key_broker)


def _add_config(command: Parser) -> None:
    command.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        default=Path("federation.toml"),
        help="the federation file (default: federation.toml)",
    )
    command.add_argument(
        "--unsafe-simulation",
        action="store_true",
        help="no TEE: use simulation/ beside the file; hides nothing",
    )
    command.add_argument(
        "--unsafe-simulate",
        action=_Renamed,
        nargs=0,
        const="--unsafe-simulation",
        help=argparse.SUPPRESS,
    )


def _add_machine(command: Parser) -> None:
    """The options of a command that opens sealed state."""
    _add_config(command)
    command.add_argument(
        "--key-release",
        metavar="COMMAND",
        help="TDX and Nitro: the command that asks a key broker",
    )
    command.add_argument("--key-broker", metavar="HEX", help="the key broker's public key, in hex")


def _add_policy(command: Parser) -> None:
    command.add_argument(
        "--policy",
        metavar="FILE",
        type=Path,
        required=True,
        help="what is accepted as the other enclave, such as policy.toml",
    )


def _add_out(command: Parser, what: str, default: Path | None = None) -> None:
    command.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        default=default,
        required=default is None,
        help=f"where to write {what}" + (f" (default: {default})" if default else ""),
    )


def _add_json(command: Parser) -> None:
    command.add_argument(
        "--json", action="store_true", help="print one JSON object, last on stdout"
    )


def _commands(group: Parser) -> Commands:
    """Where the commands of a group are added. Without one of them, the group shows its help."""

    def show_help(_: argparse.Namespace) -> Report:
        return Report(group.format_help().rstrip())

    group.set_defaults(command=show_help)
    return group.add_subparsers(title="commands", metavar="COMMAND")


def _command(below: Commands, name: str, what: str, examples: str) -> Parser:
    summary = what.partition("\n")[0].rstrip(".")
    return below.add_parser(name, help=summary, description=what, epilog=examples)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    sys.exit(main())
