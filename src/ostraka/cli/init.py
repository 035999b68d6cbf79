"""`ostraka init` and `ostraka sign`, and how clients and workers are enrolled.

A federation begins as a folder of files and keys, grows by lines that new members send to the
operator, and changes by revisions that its authority signs.
"""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import click
import grpc
import typer
from click.core import ParameterSource

from ostraka import federation_file
from ostraka.attestation.policy import toml_line
from ostraka.cli import federation_folder
from ostraka.cli.advice import DATA, Situation
from ostraka.cli.advice import advise as advised
from ostraka.cli.federation_folder import KEYS, POLICY, Plan, client_name, shard_folder
from ostraka.cli.output import Json, show
from ostraka.cli.rules import better_numbers, warn_of_copies
from ostraka.cli.templates import GRACE_S, member_lines
from ostraka.config import MASKINGS, Federation, Member
from ostraka.core import metrics, rules, uploads
from ostraka.enclave import measurement
from ostraka.encoding import encode
from ostraka.errors import ConfigError, ServiceError
from ostraka.federation_file import Enrolled, FederationFile, charter_path, require_newer
from ostraka.files import read_identity, write_identity
from ostraka.messages import Charter
from ostraka.transport.dial import dial
from ostraka.transport.ostraka_pb2 import AdoptRequest
from ostraka.transport.ostraka_pb2_grpc import EnclaveStub

_SECONDS = 30.0
_NOTHING = "none"
_SIMULATED = (
    "warning: this federation runs on a SIMULATED enclave, whose host can read all updates: "
    "use it to try things out, and for nothing else"
)

Name = Annotated[str, typer.Option(help="Letters, digits, dots, underscores, hyphens.")]
KeyFile = Annotated[
    Path | None, typer.Option("--out", help="The new key file; the name and .key unless given.")
]


def init(
    ctx: typer.Context,
    target: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new or an empty folder.")],
    *,
    clients: Annotated[int, typer.Option(help="Clients to enrol.")] = 12,
    workers: Annotated[int, typer.Option(help="Workers to enrol.")] = 2,
    f: Annotated[int, typer.Option("--f", help="How many Byzantine clients to tolerate.")] = 3,
    dimension: Annotated[
        int | None, typer.Option(help="Values in an update; the first model is zero.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="First model, as safetensors; a small one unless given.")
    ] = None,
    rule: Annotated[
        str,
        typer.Option(help="The aggregation rule, or all of it: arc+caf or multi-krum(k=5)."),
    ] = rules.DEFAULT,
    pre: Annotated[
        list[str] | None,
        typer.Option(
            help="Comes before the rule; may be repeated, and none is for nothing.",
            show_default=f"{', '.join(rules.DEFAULT_PRE)} before {rules.DEFAULT}, else none",
        ),
    ] = None,
    root: Annotated[
        str, typer.Option(help="The client that fltrust or monna trusts, by name or by number.")
    ] = "",
    advise: Annotated[
        bool,
        typer.Option(
            "--advise", help="Choose rule and masking by five answers, asked for unless given."
        ),
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(
            click_type=click.Choice(DATA), help="--advise only: how the clients' data compare."
        ),
    ] = None,
    disclose_values: Annotated[
        bool,
        typer.Option("--disclose-values", help="Let the median publish values of single clients."),
    ] = False,
    masking: Annotated[
        str,
        typer.Option(click_type=click.Choice(MASKINGS), help="How updates are masked."),
    ] = "exact",
    upload: Annotated[
        str, typer.Option(help=f"How values are sent: {', '.join(uploads.FORMATS)}.")
    ] = uploads.DEFAULT,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="Publish the mean of what clients report of it; may be repeated: "
            f"{', '.join(metrics.NAMES)}.",
            show_default="none",
        ),
    ] = None,
    shards: Annotated[
        int,
        typer.Option(help="Divide updates among this many enclaves, on machines of their own."),
    ] = 1,
    no_simulation: Annotated[
        bool, typer.Option("--no-simulation", help="Make no simulated platform.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a federation's folder for a first run.

    It holds the federation file, its signed charter, a policy for clients, a key for every party,
    and a simulated platform, so that everything can be tried on one machine. Every setting is in
    federation.toml, with a comment that says what it does.

    With --advise it asks how many clients there are (--clients), how many of them may be Byzantine
    (--f), whether their data are alike (--data), which client all others can trust (--root, or
    none), and how many workers there are (--workers, 0 if the enclave computes alone). The rule,
    the masking and the reasons for them are then in federation.toml.

    \b
    Examples:
      ostraka init first-run
      ostraka init first-run --clients 20 --f 5 --workers 3 --dimension 100000
      ostraka init first-run --rule arc+caf
      ostraka init first-run --upload int8 --metric loss --metric accuracy
      ostraka init first-run --rule geometric-median --pre clip --pre nnm
      ostraka init first-run --rule fltrust --root client-1
      ostraka init first-run --advise
      ostraka init first-run --advise --clients 25 --f 5 --data different --root none --workers 2
      ostraka init large --dimension 1000000 --shards 2
      ostraka init hospitals --model model.safetensors --no-simulation --json
    """
    reasons: tuple[str, ...] = ()
    if advise:
        given = _situation(ctx)
        advice = advised(given)
        clients, f, workers = given.clients, given.f, given.workers
        composition, masking, reasons = advice.composition, advice.masking, advice.reasons
    elif data is not None:
        raise ConfigError("--data is a question of --advise: without it, nothing depends on it")
    else:
        composition = _composition(rule, pre, root)
    plan = Plan(
        clients,
        workers,
        f,
        masking,
        dimension,
        model,
        simulation=not no_simulation,
        composition=composition,
        disclose_values=disclose_values,
        upload=upload,
        report_metrics=tuple(metric or ()),
        grace_s=GRACE_S,
        reasons=reasons,
        shards=shards,
    )
    if disclose_values and not plan.composition.discloses:
        raise ConfigError(
            f"{plan.composition} publishes no values of single clients, so terms and policies need "
            "not allow it: leave out --disclose-values"
        )
    file = federation_folder.create(target, plan, now=int(time.time()))
    federation = file.federation()
    simulated = plan.simulation
    figures = {
        "folder": str(target),
        "clients": clients,
        "workers": workers,
        "f": f,
        "rule": str(plan.composition),
        "masking": plan.masking,
        "reasons": reasons,
        "upload": upload,
        "report_metrics": metric or [],
        "dimension": federation.terms.dimension,
        "revision": federation.revision,
        "authority": federation.authority.hex(),
        "federation_digest": federation.digest().hex(),
        "shards": shards,
        "simulation": simulated,
        "measurement": measurement.measure().digest.hex() if simulated else None,
    }
    show(
        f"Made {target}: {clients} clients, of which {f} may be Byzantine, and {workers} workers.",
        f"Rule: {plan.composition} (see: ostraka rules --n {clients} --f {f}).",
        *(f"  {each}" for each in reasons),
        _contents(simulated, shards),
        *_next(file, plan),
        figures=figures,
        as_json=as_json,
    )
    if simulated:
        click.echo(_SIMULATED, err=True)
    if f and not plan.composition.robust:
        click.echo(_NOT_ROBUST.format(rule=plan.composition, f=f), err=True)
    if clients <= 3 * f:
        ways = [*better_numbers(plan.composition, clients, f)] or [f"at least {3 * f + 1} clients"]
        click.echo(_STALLS.format(n=clients, f=f, ways=", or ".join(ways)), err=True)
    warn_of_copies(plan.composition, clients, f)


def _situation(ctx: typer.Context) -> Situation:
    """The answers: what the command line says, and what is asked for otherwise.

    Raises ConfigError for what --advise would decide by itself, and if there is no answer.
    """
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    given = {n for n, source in sources.items() if source is ParameterSource.COMMANDLINE}
    if chosen := sorted(given & _ADVISED):
        options = ", ".join(f"--{name.replace('_', '-')}" for name in chosen)
        raise ConfigError(f"--advise chooses the rule and the masking: leave out {options}")
    answers = {}
    for name, (question, usual, kind) in _QUESTIONS.items():
        if name in given:
            answers[name] = ctx.params[name]
            continue
        try:
            answers[name] = click.prompt(question, usual, type=kind, err=True)
        except click.Abort:
            every = ", ".join(f"--{each}" for each in _QUESTIONS)
            raise ConfigError(f"--advise needs five answers: type them, or give {every}") from None
    root = "" if answers["root"] in ("", _NOTHING) else client_name(answers["root"])
    return Situation(**answers | {"root": root})


_ADVISED = {"rule", "pre", "masking", "disclose_values"}
# By the options that answer them: the question, what holds if the answer is empty, and its type.
_QUESTIONS: dict[str, tuple[str, Any, Any]] = {
    "clients": ("How many clients are there", 12, int),
    "f": ("How many of them may be Byzantine", 3, int),
    "data": (
        "Are their data alike, or has each client more of some kinds",
        "different",
        click.Choice(DATA),
    ),
    "root": ("Which client can all others trust, with data like theirs", _NOTHING, str),
    "workers": ("How many workers are there beside the enclave, 0 for none", 2, int),
}


def _composition(text: str, pre: list[str] | None, root: str) -> rules.Composition:
    """The rule, what comes before it, and their options. Raises ConfigError.

    text: what --rule says. It may hold the rest, as receipts show it.
    """
    names, bracket, options = text.partition("(")
    *before, rule = names.split("+")
    if before and pre:
        raise ConfigError("say what comes before the rule in --rule or by --pre, not by both")
    if pre and _NOTHING in pre and len(pre) > 1:
        raise ConfigError("--pre none means that nothing comes before the rule: give it alone")
    if pre:
        before = [each for each in pre if each != _NOTHING]
    elif not before:
        before = list(rules.usual_pre(rule))
    given = rules.Options(root=client_name(root)) if root else None
    return rules.parse("+".join((*before, rule)) + bracket + options, given)


_NOT_ROBUST = (
    "warning: {rule} is not robust: each of the f = {f} Byzantine clients can move the model; "
    "see: ostraka rules"
)
_STALLS = (
    "warning: outcomes need the confirmation of more than (n + f)/2 clients. With n = {n} and "
    "f = {f}, rounds stand still if f clients are silent. They go on if n > 3f: take {ways}"
)


def _contents(simulated: bool, shards: int) -> str:
    lines = [
        "  federation.toml      terms, roster and settings; after a change: ostraka sign",
        "  federation.charter   terms and roster, signed",
        "  policy.toml          which enclaves clients accept",
        "  keys/                one private key each, to hand to its owner and to delete here",
    ]
    if simulated:
        lines.append("  simulation/          a platform that only plays a TEE")
    if shards > 1:
        lines.append("  shards.toml          what shards have to prove, signed as it is")
        lines.append("  shard-0/ ...         the files of each shard, for a machine of its own")
    return "\n".join(lines)


def _next(file: FederationFile, plan: Plan) -> list[str]:
    """The commands that start it, each for a terminal of its own. Shards need workers' streams."""
    simulated = " --unsafe-simulation" * plan.simulation
    run = f"ostraka enclave run --config {file.path}{simulated}"
    if plan.shards == 1:
        return [f"Next: {run}"]
    configs = [shard_folder(file.folder, each) / file.path.name for each in range(plan.shards)]
    lead = file.enclave.listen
    shards = [
        f"  ostraka enclave shard --lead {lead} --number {number} --config {config}{simulated}"
        for number, config in enumerate(configs)
    ]
    listening = [federation_file.load(each).enclave.listen for each in configs]
    everywhere = " ".join(f"--enclave {each}" for each in (lead, *listening))
    keys, policy = file.folder / KEYS, file.folder / POLICY
    workers = [
        f"  ostraka worker run {everywhere} --name {name} --key {keys / f'{name}.key'} "
        f"--policy {policy}{simulated}"
        for name in plan.names()[1]
    ]
    return ["Next, each in a terminal of its own:", f"  {run}", *shards, *workers]


def sign(
    federation: Annotated[
        Path, typer.Argument(metavar="FEDERATION", help="Such as federation.toml.")
    ],
    *,
    key: Annotated[Path, typer.Option(help="The authority's key file.")],
    push: Annotated[
        str | None, typer.Option(help="Also bring it to the running enclave at HOST:PORT.")
    ] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="TLS, with the certificates in this PEM file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Sign a federation's terms and roster again, after a change.

    Writes the charter beside the file. The enclave finds it there before its next round, or gets it
    by --push. A change without a new revision number is refused, because clients follow revisions
    upwards only. The operator's own settings, such as deadlines and limits, need no new signature.

    \b
    Examples:
      ostraka sign federation.toml --key keys/authority.key
      ostraka sign federation.toml --key keys/authority.key --push enclave.example:7420
    """
    file = federation_file.load(federation)
    beside = charter_path(federation)
    charter = federation_file.sign(file, read_identity(key))
    before = federation_file.load_charter(beside).federation if beside.exists() else None
    if before is not None:
        require_newer(file, before)
    federation_file.write_charter(beside, charter)
    if push is not None:
        _bring(charter, push, tls_ca)
    signed = charter.federation
    composed = _rules(signed, before)
    figures = {
        "charter": str(beside),
        "revision": signed.revision,
        "previous_revision": None if before is None else before.revision,
        "changed": signed != before,
        **composed,
        "report_metrics": list(signed.terms.report_metrics),
        "policy_shards": [each.hex() for each in _policies_of_shards(signed, before)],
        "federation_digest": signed.digest().hex(),
        "pushed": push is not None,
    }
    words = f"Signed revision {signed.revision} of {file.about.name}, into {beside}."
    same = "Terms and roster are those that were signed before." if signed == before else ""
    brought = f"Brought to {push}: in force from its next round." if push is not None else ""
    rule, more = _changed_rule(**composed), _more_metrics(signed, before)
    said = [same, rule, more, _changed_shards(signed, before), brought]
    show(words, *filter(None, said), figures=figures, as_json=as_json)
    warn_of_copies(signed.terms.composition, len(signed.clients), signed.terms.f)


def _rules(signed: Federation, before: Federation | None) -> dict[str, Any]:
    """The rule now and before, and what a policy that lists rules has to list for both."""
    rule = str(signed.terms.composition)
    old = None if before is None else str(before.terms.composition)
    listed = [rule] if old in (None, rule) else [old, rule]
    return {"rule": rule, "previous_rule": old, "policy_rules": listed}


def _changed_rule(rule: str, previous_rule: str | None, policy_rules: list[str]) -> str:
    """What has to happen beside the signature if the rule is another."""
    if len(policy_rules) == 1:
        return ""
    return (
        f"The rule was {previous_rule} and is {rule}. Clients, workers and witnesses whose policy "
        "lists rules refuse the federation until theirs has, under [federation]: "
        f"rules = {json.dumps(policy_rules)}"
    )


def _more_metrics(signed: Federation, before: Federation | None) -> str:
    """What has to happen beside the signature if more is published of what clients report."""
    named = signed.terms.report_metrics
    if before is None or set(named) <= set(before.terms.report_metrics):
        return ""
    return (
        f"Means of {', '.join(named)} are published. Clients, workers and witnesses refuse the "
        "federation until their policy has, under [federation]: "
        f"report_metrics = {json.dumps(named)}"
    )


def _policies_of_shards(signed: Federation, before: Federation | None) -> tuple[bytes, ...]:
    """What a policy has to pin for shards, now and before."""
    held = (each for each in (before, signed) if each is not None and each.shard_policy)
    return tuple(dict.fromkeys(each.shard_policy_digest for each in held))


def _changed_shards(signed: Federation, before: Federation | None) -> str:
    """What has to happen beside the signature if shards are held to another policy."""
    if not signed.shard_policy or (before and before.shard_policy == signed.shard_policy):
        return ""
    return (
        "Shards are held to the policy that is signed with this. Clients, workers and witnesses "
        "refuse the federation until their own has, under [federation]: "
        f"{toml_line('shard_policies', _policies_of_shards(signed, before))}"
    )


def _bring(charter: Charter, address: str, tls_ca: Path | None) -> None:
    """Bring a signed revision to a running enclave, for its next round. Raises ServiceError."""
    with dial(address, tls_ca=tls_ca) as channel:
        try:
            request = AdoptRequest(charter=encode(charter))
            EnclaveStub(channel).Adopt(request, timeout=_SECONDS)
        except grpc.RpcError as refused:
            raise ServiceError(f"{address} did not take it: {refused.details()}") from None


def enrol_client(*, name: Name, out: KeyFile = None, as_json: Json = False) -> None:
    """Make a key, and print the lines that enrol it.

    The private key stays in a file that only you can read, and is never written over. The lines
    are for the operator, who adds them to federation.toml, raises its revision and signs it. You
    can take part from the next round on.

    \b
    Examples:
      ostraka client enrol --name hospital-a
      ostraka client enrol --name hospital-a --out keys/hospital-a.key --json
    """
    _enrol("client", name, out, as_json=as_json)


def enrol_worker(*, name: Name, out: KeyFile = None, as_json: Json = False) -> None:
    """Make a key, and print the lines that enrol it.

    The private key stays in a file that only you can read, and is never written over. The lines
    are for the operator, who adds them to federation.toml, raises its revision and signs it.
    Clients pin the keys of workers in their policies as well.

    \b
    Examples:
      ostraka worker enrol --name worker-1
      ostraka worker enrol --name worker-1 --out keys/worker-1.key --json
    """
    _enrol("worker", name, out, as_json=as_json)


def enrol_witness(*, name: Name, out: KeyFile = None, as_json: Json = False) -> None:
    """Make a key, and print the lines that enrol it.

    The private key stays in a file that only you can read, and is never written over. The lines
    are for the operator, who adds them to federation.toml, sets confirm = "both" or "witnesses",
    raises its revision and signs it. Clients pin the keys of witnesses in their policies as well.

    \b
    Examples:
      ostraka witness enrol --name auditor
      ostraka witness enrol --name auditor --out keys/auditor.key --json
    """
    _enrol("witness", name, out, as_json=as_json)


def enrol_observer(*, name: Name, out: KeyFile = None, as_json: Json = False) -> None:
    """Make a key, and print the lines that let it observe.

    The private key stays in a file that only you can read, and is never written over. The lines
    are for the operator, who adds them to federation.toml. Nobody signs them, and they hold from
    the next round on. `ostraka dashboard` shows what an observer sees.

    \b
    Examples:
      ostraka observer enrol --name dashboard
      ostraka observer enrol --name dashboard --out keys/dashboard.key --json
    """
    _enrol("observer", name, out, as_json=as_json)


def _enrol(table: str, name: str, out: Path | None, *, as_json: bool) -> None:
    """Make a key. Only the lines go to stdout, so that they can be appended to a file."""
    Enrolled(name, bytes(32))  # Refuses a name that no federation takes, before a key is made.
    path = out or Path(f"{name}.key")
    identity = write_identity(path, name)
    click.echo(f"The private key is in {path}: keep it there, and show it to no one.", err=True)
    signed = "" if table == "observer" else ", and to sign"
    click.echo(f"For the operator to add to federation.toml{signed}:", err=True)
    show(
        member_lines(table, Member(name, identity.public)).rstrip(),
        figures={"name": name, "key": identity.public.hex(), "file": str(path)},
        as_json=as_json,
    )
