"""The files that `ostraka init` writes: every setting, with a comment that says what it does."""

import hashlib
import json
import re
import textwrap
from collections.abc import Sequence

from ostraka.attestation.policy import toml_line
from ostraka.config import Member
from ostraka.core import rules
from ostraka.core.rules import centres
from ostraka.protocol.confirm import Electorate

GRACE_S = 60  # what `ostraka init` writes
SHARDS = "shards.toml"  # the policy that shards are held to

_COLUMN, _WIDTH = 28, 100
_COMMENTED = re.compile(r"^((?:# )?\w+ = .*  )(# .+)$", re.MULTILINE)

_FEDERATION = """\
# A federation of Ostraka. Terms and roster are signed by the authority: after every change of
# [federation], [model], [terms], [optimiser], [[client]] or [[worker]], raise the revision and run
#   ostraka sign federation.toml --key keys/authority.key
# Everything else is the operator's own and needs no signature. Paths are relative to this file.

[federation]
name = "{name}"
revision = 1
id = "{id}"  # drawn once; every policy pins it
authority = "{authority}"  # public key
# expires = 1893456000  # seconds since 1970, after which clients wait for a newer revision
successors = []  # who may take over the sealed state; see: ostraka enclave migrate request
{shard_policy}  # what every shard has to prove; its text is signed

[model]
{model}

[terms]
f = {f}  # how many Byzantine clients are tolerated; the rule needs {quorum} clients or more for it
{advice}
rule = "{rule}"  # how updates are weighed; all of them: ostraka rules --n {n} --f {f}
{pre}
{options}
client_momentum = 0.9  # what clients keep of their last updates in the next; 0 for nothing
upload = "{upload}"  # how values are sent: float32, bfloat16, float16 or int8
masking = "{masking}"  # exact, gaussian (the paper's, which leaks) or none
distances = "workers"  # or "inside" the enclave: cheaper for int8, up to hundreds of clients
workers = {workers}  # that take part in a round, 2 to 7; half of them may collude
# sketch = 16384  # columns to measure distances on, for speed; all unless given
verify = true  # check the workers' answers
# clip_norm = 1.0  # longer updates are scaled down; by the median norm unless given
leakage_bits = 0.001  # gaussian only: what one worker may learn of one update
precision = 0.001  # gaussian only: the largest error of a squared distance
{tile}  # values that are sealed at a time; chosen by itself unless given
disclose_selection = false  # true: receipts say whose updates were averaged
disclose_values = {disclose_values}  # true: lets median publish single values of clients
report_metrics = {report_metrics}  # publish means of clients' loss, accuracy, examples
# most_loss = 10.0  # larger losses count as this
# most_examples = 10000.0  # larger numbers of examples count as this
confirm = "clients"  # who confirms outcomes: clients, witnesses, both, or none, which is unsafe
# witness_f = 0  # how many Byzantine witnesses are tolerated; enrol each as [[witness]]
# With "clients", rounds go on while more than (n + f)/2 of the n clients answer; f silent ones
# can be borne only if n > 3f.{few}

[rounds]
count = 10
# quorum = {quorum}  # updates that close a round; what the rule needs unless given
deadline_s = 600  # seconds in which clients upload
{grace}  # seconds for the rest once the quorum is there; unless given, until the deadline
extensions = 2  # of the deadline while the quorum is missed; then the round is skipped
measure_s = 120  # seconds in which the workers answer, in one attempt
linger_s = 60  # seconds to stay after the last round, for clients to fetch it

[optimiser]
kind = "fedavg"  # fedavg, sgd (with momentum) or fedadam
learning_rate = 1.0
momentum = 0.9  # sgd only
beta1 = 0.9  # fedadam only, and so are the next two
beta2 = 0.99
epsilon = 0.001

[storage]
folder = "state"  # sealed state and the spool
spool_mib = 4096  # the most that sealed updates take
keep_models = 3  # past models that stay

[limits]
connections = 1024  # of strangers, open at a time
uploads = 64  # clients that send at a time; others wait
message_kib = 4096  # the largest single message
idle_s = 60  # seconds after which a silent connection is closed
upload_s = 600  # seconds for one client's upload
requests_per_minute = 600  # from one peer

[enclave]
listen = "127.0.0.1:7420"  # host:port, for clients and workers
# metrics = "127.0.0.1:7421"  # host:port, for Prometheus; none unless given
threads = 2  # that mask and sum updates
# memory_mib = 4096  # for opened updates; half of what is to spare unless given. Others: spool
# tls_certificate = "tls.pem"  # for TLS on top of what is sealed anyway
# tls_key = "tls.key"
{shards}  # among how many other machines updates are divided; none unless given

# To revoke a client or a worker, leave its lines and add: revoked = "why"
"""

# What each option says, and an example of it. Those that are not given stand there as comments.
_OPTIONS = {
    "k": ("{kept}", "multi-krum: updates that are averaged; all but f unless given"),
    "neighbours": ("{near}", "krum, multi-krum: of which distances are summed; this unless given"),
    "root": ('"client-1"', "fltrust, monna: the client whose update is trusted"),
    "bucket": ("2", "bucketing: updates that are averaged before all else"),
    "radius": ("1.0", "clip, centred-clipping: a length; by the median length unless given"),
    "centre": ('"last"', "centred-clipping: from the last aggregate, or medoid"),
    "iterations": (
        f"{centres.WEISZFELD_STEPS}",
        f"steps of geometric-median; of centred-clipping {centres.CLIPPING_STEPS} unless given",
    ),
    "smoothing": (
        "1e-5",
        f"geometric-median: a length; {centres.SMOOTHING:g} of the longest unless given",
    ),
    "beta": ("0.2", "trimmed-mean: the part dropped at each end; f of all unless given"),
}

_ADVICE = """\
# Which rule? ostraka init --advise asks five questions, and docs/choosing-a-rule.md has the tables.
# There "flame" had the best worst case of all that trust nobody, and "fltrust" where data differ
# and one client can be trusted, such as your own (root = "its name")."""

_OBSERVERS = """\
# Observers see the status with its names, and nothing else: ostraka dashboard. They are the
# operator's own, and need no signature.
"""

_FEW = " With {n} clients, {most} may be silent."

_POLICY = """\
# Which enclaves a client accepts. Nothing is accepted that is not listed here.
# Give this file to every client, over a channel that the host of the enclave does not control.

version = 1
evidence = [{evidence}]  # sgx, tdx, snp, nitro, simulation
clock_skew_s = 300  # seconds that clocks may differ by
{simulation_flag}
[federation]
id = "{id}"
authority = "{authority}"
workers = [
{workers}]
successors = []  # hand-overs of the enclave's state that are agreed to
{shard_policies}  # SHA-256 of each policy file that shards may be held to
maskings = [{maskings}]  # gaussian leaks, so it must be asked for
rules = [{rules}]  # with their options, as receipts show them; any unless given
disclose_values = {disclose_values}  # true: a rule may publish values of single clients
report_metrics = {report_metrics}  # of which the mean of what clients report may be published
# witnesses = []  # keys of all that may confirm besides clients; if any, they have to
# confirms = ["clients", "witnesses", "both"]  # "none" lets a host that copies the enclave read
{sections}"""

_SHARD_POLICY = """\
# What lead and shards of this federation accept as each other, beside that both run the same code.
# The authority signs this text as it is, and clients pin its SHA-256 (shard_policies).

version = 1
evidence = ["simulation"]  # sgx, tdx, snp, nitro, simulation
clock_skew_s = 300  # seconds that clocks may differ by
{simulation_flag}{sections}"""

_SIMULATION_FLAG = """
# SIMULATION: the enclave proves itself by a key that lies on an ordinary disk. Anyone who reads
# simulation/platform.json can make evidence for any code, and the host of the enclave can read all
# updates. For trying things out only: with a real enclave, delete this line and [simulation].
unsafe_simulation = true
"""

_SIMULATION = """
[simulation]
{root}
{mrenclave}
collateral = "simulation/collateral.json"
"""

_SECTIONS = """
# Take the section of your platform out of the comment, and list what you expect of it. What an
# enclave shows is printed by: ostraka attest show EVIDENCE
#
# [sgx]
# mrenclave = []  # of the code itself; ostraka's docs/attestation.md says how to get it
# mrsigner = []  # or of who signs it; then isv_prod_id and min_isv_svn must be stated, too
# allow = []  # such as "SWHardeningNeeded"
# collateral = "sgx-collateral.json"  # Intel's data on the platform: a path, or the URL of a PCCS
#
# [tdx]
# mrtd = []
# rtmr0 = []  # what the host configured the firmware with; waived by "any-rtmr0" in allow
# rtmr1 = []
# rtmr2 = []
# allow = []
# collateral = "tdx-collateral.json"
#
# [snp]
# measurement = []
# chip_ids = []  # only these machines, if any are listed
# (State min_tcb as well, the oldest firmware that you accept: a refusal prints the line.)
# allow = []  # such as "smt"
# certificates = "snp-certificates.pem"
# crl = "snp.crl"  # AMD's revocation list: a path
#
# [nitro]
# pcr0 = []
"""


def federation_toml(
    *,
    name: str,
    id: bytes,
    authority: bytes,
    model: str,
    f: int,
    masking: str,
    working: int,
    clients: Sequence[Member],
    workers: Sequence[Member],
    observer: Member,
    composition: rules.Composition,
    disclose_values: bool,
    upload: str,
    report_metrics: Sequence[str] = (),
    grace_s: float | None = None,
    reasons: Sequence[str] = (),
    shards: int = 1,
    tile: int | None = None,
) -> str:
    """Write federation.toml.

    model: the one line of [model]. working: how many of the workers take part in a round. reasons:
    for these terms, if there was advice; else it says which rule is for whom.
    """
    n = len(clients)
    electorate = Electorate(tuple(clients), f)
    few = _FEW.format(n=n, most=electorate.silent) if electorate.silent < f else ""
    head = _FEDERATION.format(
        name=name,
        id=id.hex(),
        authority=authority.hex(),
        few=few,
        model=model,
        n=n,
        f=f,
        masking=masking,
        workers=working,
        rule=composition.name,
        pre=_pre_line(composition),
        advice=_reasons(reasons) if reasons else _ADVICE,
        options=_option_lines(composition.options, n, f),
        disclose_values=json.dumps(disclose_values),
        upload=upload,
        report_metrics=json.dumps(list(report_metrics)),
        quorum=composition.least(f),
        grace=f"# grace_s = {GRACE_S}" if grace_s is None else f"grace_s = {grace_s:g}",
        shard_policy=f'{"# " * (shards == 1)}shard_policy = "{SHARDS}"',
        shards=f"shards = {shards}" if shards > 1 else "# shards = 2",
        tile="# tile = 65536" if tile is None else f"tile = {tile}",
    )
    enrolled = [member_lines("client", each) for each in clients]
    enrolled += [member_lines("worker", each) for each in workers]
    enrolled.append(_OBSERVERS + member_lines("observer", observer))
    return _aligned(head) + "".join(f"\n{lines}" for lines in enrolled)


def _reasons(sentences: Sequence[str]) -> str:
    """As comments. A long sentence goes on in the next line."""
    filled = textwrap.TextWrapper(
        _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False
    )
    return "\n".join(map(filled.fill, ("Advised:", *sentences)))


def _pre_line(composition: rules.Composition) -> str:
    usual = composition.pre == rules.usual_pre(composition.name)
    line = f"pre = {json.dumps(composition.pre if not usual else rules.DEFAULT_PRE)}"
    said = "what comes before it; unless given, this before geometric-median, else nothing"
    return f"# {line}  # {said}" if usual else f"{line}  # what comes before it, in this order"


def _option_lines(options: rules.Options, n: int, f: int) -> str:
    usual = {"kept": n - f, "near": max(1, n - f - 2)}

    def line(name: str, example: str, said: str) -> str:
        if name in options.given:
            return f"{name} = {json.dumps(getattr(options, name))}  # {said}"
        return f"# {name} = {example.format(**usual)}  # {said}"

    return "\n".join(line(name, *each) for name, each in _OPTIONS.items())


def member_lines(table: str, member: Member) -> str:
    """Write the lines that enrol a client, a worker, a witness or an observer."""
    return f'[[{table}]]\nname = "{member.name}"\nkey = "{member.key.hex()}"\n'


def policy_toml(
    *,
    id: bytes,
    authority: bytes,
    workers: Sequence[Member],
    masking: str,
    simulation: tuple[bytes, bytes] | None,
    composition: rules.Composition,
    disclose_values: bool,
    report_metrics: Sequence[str] = (),
    shard_policy: str = "",
) -> str:
    """Write policy.toml.

    simulation: the simulated platform's root and the measurement to expect, if it is allowed.
    shard_policy: the text that shards are held to.
    """
    flag, section = _simulated(simulation)
    agreed = (hashlib.sha256(shard_policy.encode()).digest(),) if shard_policy else ()
    text = _POLICY.format(
        evidence='"simulation"' if simulation else "",
        simulation_flag=flag,
        id=id.hex(),
        authority=authority.hex(),
        workers="".join(f'    "{each.key.hex()}",  # {each.name}\n' for each in workers),
        maskings=f'"{masking}"',
        rules=json.dumps(str(composition)),
        disclose_values=json.dumps(disclose_values),
        report_metrics=json.dumps(list(report_metrics)),
        sections=section + _SECTIONS,
        shard_policies=f"{'' if agreed else '# '}{toml_line('shard_policies', agreed)}",
    )
    return _aligned(text)


def shards_toml(simulation: tuple[bytes, bytes]) -> str:
    """Write the policy that shards of a simulated federation are held to."""
    flag, section = _simulated(simulation)
    return _aligned(_SHARD_POLICY.format(simulation_flag=flag, sections=section))


def _simulated(simulation: tuple[bytes, bytes] | None) -> tuple[str, str]:
    """The lines of a policy that accept a simulated platform, if there is one."""
    if simulation is None:
        return "", ""
    root, mrenclave = simulation
    section = _SIMULATION.format(
        root=toml_line("root", (root,)), mrenclave=toml_line("mrenclave", (mrenclave,))
    )
    return _SIMULATION_FLAG, section


def _aligned(text: str) -> str:
    """Start the comments after settings in one column."""
    return _COMMENTED.sub(lambda match: f"{match[1]:<{_COLUMN}}{match[2]}", text)
