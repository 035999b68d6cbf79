"""`ostraka init`, `sign` and `client enrol`: from nothing to a signed federation, and on."""

import hashlib
import json
import os
import re
import shlex
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner

from ostraka import federation_file
from ostraka.attestation import policy_file
from ostraka.attestation.verify import require_metrics, require_rule, require_shards
from ostraka.cli import app
from ostraka.core.rules import centres
from ostraka.crypto.identity import check_signature
from ostraka.enclave.__main__ import parser
from ostraka.errors import AttestationRefused
from ostraka.files import read_identity, read_policy, write_identity
from ostraka.transport.ostraka_pb2 import AdoptReply
from ostraka.transport.ostraka_pb2_grpc import EnclaveServicer, add_EnclaveServicer_to_server


def run(line):
    return CliRunner().invoke(app, shlex.split(line), prog_name="ostraka")


def last_line_only(result):
    (line,) = result.stdout.splitlines()
    return json.loads(line)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("init fed --clients 5 --f 1 --dimension 100").exit_code == 0
    return tmp_path / "fed"


def change(folder, old, new, *, file="federation.toml"):
    path = folder / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def sign(*more):
    return run(" ".join(["sign fed/federation.toml --key fed/keys/authority.key", *more]))


def test_init_makes_a_federation_that_loads_and_says_what_is_next(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("init fed")
    assert result.exit_code == 0
    assert "12 clients, of which 3 may be Byzantine, and 2 workers" in result.stdout
    assert "ostraka enclave run --config fed/federation.toml --unsafe-simulation" in result.stdout
    assert re.search(
        r"(?m)^grace_s = 60 +# seconds for the rest", (tmp_path / "fed/federation.toml").read_text()
    )
    assert "SIMULATED" in result.stderr
    assert federation_file.load(tmp_path / "fed" / "federation.toml").about.name == "fed"


def test_init_prints_one_object_and_everything_else_on_stderr(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("init fed --clients 9 --workers 3 --masking exact --json")
    figures = last_line_only(result)
    federation = federation_file.load(tmp_path / "fed" / "federation.toml").federation()
    assert figures["federation_digest"] == federation.digest().hex()
    assert figures["authority"] == federation.authority.hex()
    assert (figures["clients"], figures["workers"], figures["f"]) == (9, 3, 3)
    assert "Made fed" in result.stderr


def test_init_signs_the_format_of_uploads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert last_line_only(run("init fed --upload int8 --json"))["upload"] == "int8"
    charter = federation_file.load_charter(tmp_path / "fed" / "federation.charter")
    assert charter.federation.terms.upload == "int8"
    assert last_line_only(run("init other --json"))["upload"] == "float32"


def test_init_without_simulation_warns_of_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("init fed --no-simulation")
    assert result.stderr == ""
    assert "unsafe" not in result.stdout
    assert last_line_only(run("init other --no-simulation --json"))["measurement"] is None


def test_init_warns_if_f_silent_clients_would_keep_rounds_from_ending(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "silent" not in run("init enough --clients 13 --f 4").stderr
    result = run("init few --clients 13 --f 5 --dimension 100")
    assert result.exit_code == 0
    assert "warning: outcomes need the confirmation of more than (n + f)/2 clients" in result.stderr
    assert "They go on if n > 3f: take at least 16 clients, or f = 4\n" in result.stderr
    # Ten of 13 have to confirm, so three may be silent, and not the four that f = 4 would allow.
    assert "With 13 clients, 3 may be silent." in (tmp_path / "few/federation.toml").read_text()
    assert "may be silent." not in (tmp_path / "enough/federation.toml").read_text()


TWICE_WARNED = {
    "rounds would stand still": ((33, 15, "multi-krum"), 46, 10),
    "few of many are averaged": ((27, 9, "multi-krum(k=11)"), 56, 7),
}


@pytest.mark.parametrize("case", TWICE_WARNED.values(), ids=list(TWICE_WARNED))
def test_who_follows_one_warning_of_init_meets_no_other(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (n, f, rule), more, fewer = case

    def warnings(n, f):
        line = f"init {n}-{f} --clients {n} --f {f} --rule '{rule}' --dimension 99 --no-simulation"
        return run(line).stderr.splitlines()

    stalls, copies = warnings(n, f)
    advice = f": take at least {more} clients, or f = {fewer}"
    assert stalls.endswith(advice)
    assert f"{advice}, or " in copies
    assert warnings(more, f) == warnings(n, fewer) == []
    assert warnings(more - 1, f)
    assert warnings(n, fewer + 1)


def test_init_and_sign_warn_if_f_copies_can_turn_the_aggregate_around(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = run("init fed --clients 11 --f 4 --rule multi-krum --dimension 9 --json")
    assert last_line_only(made)["rule"] == "multi-krum"
    assert made.stderr.count("f equal updates can turn the aggregate of multi-krum around") == 1
    assert "f equal updates can turn the aggregate of multi-krum around" in sign().stderr
    change(tmp_path / "fed", "f = 4", "f = 3")
    change(tmp_path / "fed", "revision = 1", "revision = 2")
    signed = sign()
    assert signed.exit_code == 0
    assert "f equal updates" not in signed.stderr


def test_every_federation_has_an_id_of_its_own_and_its_policy_pins_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ids = set()
    for name in ("one", "two"):
        assert run(f"init {name} --clients 3 --f 0 --dimension 9").exit_code == 0
        made = federation_file.load(tmp_path / name / "federation.toml").federation().id
        policy = policy_file.parse((tmp_path / name / "policy.toml").read_text(), "policy.toml")
        assert policy.federation.id == made
        ids.add(made)
    assert len(ids) == 2


RULES = {
    "": "arc+nnm+geometric-median",
    "--pre none": "geometric-median",
    "--rule multi-krum": "multi-krum",
    "--rule CAF --pre ARC": "arc+caf",
    "--rule arc+caf": "arc+caf",
    "--rule 'multi-krum(k=4)'": "multi-krum(k=4)",
    "--rule 'geometric-median(iterations=9)'": "arc+nnm+geometric-median(iterations=9)",
    "--pre clip --pre nnm": "clip+nnm+geometric-median",
    "--rule fltrust --root client-2": "fltrust(root=client-2)",
    "--rule fltrust --root 2": "fltrust(root=client-2)",
    "--rule median --disclose-values": "median",
}


@pytest.mark.parametrize(("options", "rule"), RULES.items())
def test_init_founds_a_federation_with_the_rule_that_is_asked_for(
    tmp_path, monkeypatch, options, rule
):
    monkeypatch.chdir(tmp_path)
    result = run(f"init fed --clients 5 --f 1 --dimension 9 {options} --json")
    assert last_line_only(result)["rule"] == rule
    assert f"Rule: {rule} (see: ostraka rules --n 5 --f 1)." in result.stderr
    file = federation_file.load(tmp_path / "fed" / "federation.toml")
    assert str(file.federation().terms.composition) == rule
    policy = policy_file.parse((tmp_path / "fed" / "policy.toml").read_text(), "policy.toml")
    assert policy.federation.rules == (rule,)


def test_the_file_states_the_defaults_of_the_rules(folder):
    text = (folder / "federation.toml").read_text()
    assert re.search(
        rf"# iterations = {centres.WEISZFELD_STEPS}\s+# steps of geometric-median", text
    )
    assert f"geometric-median: a length; {centres.SMOOTHING:g} of the longest unless given" in text


def test_init_recommends_rules_in_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("init fed --clients 5 --f 1 --dimension 9").exit_code == 0
    text = (tmp_path / "fed" / "federation.toml").read_text()
    # What is recommended works as it is written there.
    for advised in ('"flame" had', '"fltrust" where', "(root = "):
        assert advised in text
    assert run("init other --rule flame").exit_code == 0
    assert run("init trust --rule fltrust --root client-1").exit_code == 0


MISTAKES = {
    "a folder that is in use": ("init fed", "fed is not empty"),
    "too many attackers": ("init new --f 6", "needs at least 14 clients; got n=12, f=6"),
    "a rule that is not there": (
        "init new --rule cat",
        "there is no rule 'cat': did you mean caf?",
    ),
    "a pre-aggregation that is not there": ("init new --pre arg", "did you mean arc?"),
    "nothing and something before": ("init new --pre none --pre arc", "give it alone"),
    "what comes before, twice": ("init new --rule arc+caf --pre nnm", "not by both"),
    "a root, twice": ("init new --rule 'monna(root=a)' --root b", "options are given once"),
    "an option that the rule does not take": (
        "init new --rule 'caf(k=3)'",
        "k is no option of caf",
    ),
    "a root for a rule that has none": ("init new --root client-1", "root is no option of arc+nnm"),
    "trust without a root": ("init new --rule fltrust", "name that client as root"),
    "values of single clients": ("init new --rule FedMedian", "by disclose_values = true"),
    "a disclosure that no rule makes": (
        "init new --disclose-values",
        "arc+nnm+geometric-median publishes no values of single clients, so terms and policies "
        "need not allow it: leave out --disclose-values",
    ),
    "a disclosure that nnm makes needless": (
        "init new --rule nnm+median --disclose-values",
        "nnm+median publishes no values of single clients",
    ),
    "a root client that is not enrolled": (
        "init new --rule fltrust --root 99",
        "root is 'client-99', and no client of that name is enrolled",
    ),
    "a format that is not there": ("init new --upload int4", "did you mean int8?"),
    "a metric that is not there": ("init new --metric lost", "got 'lost': did you mean loss?"),
    "a masking that is not there": ("init new --masking tape", "'exact', 'gaussian', 'none'"),
    "two models": ("init new --dimension 3 --model m", "not from both"),
    "a model that is not there": ("init new --model m.safetensors", "cannot be read"),
    "no folder": ("init", "Missing argument 'FOLDER'"),
    "no key": ("sign fed/federation.toml", "Missing option '--key'"),
    "no federation": ("sign other.toml --key fed/keys/authority.key", "other.toml: No such file"),
    "another's key": (
        "sign fed/federation.toml --key fed/keys/client-1.key",
        "not the key of the authority",
    ),
    "a name that no federation takes": ("client enrol --name 'a b'", "letters, digits, dots"),
}


@pytest.mark.parametrize(("line", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_explained_and_exit_with_2(line, message, folder):
    result = run(line)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""
    assert not (folder.parent / "new").exists()
    assert not list(folder.parent.glob("*.key"))


def test_signing_again_without_a_change_is_fine_and_says_so(folder):
    before = (folder / "federation.charter").read_bytes()
    result = sign()
    assert result.exit_code == 0
    assert "those that were signed before" in result.stdout
    assert (folder / "federation.charter").read_bytes() == before


def test_a_change_under_a_signed_revision_is_refused_with_the_line_to_change(folder):
    before = (folder / "federation.charter").read_bytes()
    change(folder, "disclose_selection = false", "disclose_selection = true")
    result = sign()
    assert result.exit_code == 2
    line = (folder / "federation.toml").read_text().splitlines().index("revision = 1") + 1
    assert f"fed/federation.toml, line {line}: " in result.stderr
    assert "write revision = 2" in result.stderr
    assert (folder / "federation.charter").read_bytes() == before


def test_who_signs_another_rule_is_told_what_policies_must_list(folder):
    assert "policy" not in sign().stdout
    change(folder, "revision = 1", "revision = 2")
    change(folder, 'rule = "geometric-median"', 'rule = "caf"')
    result = sign()
    assert result.exit_code == 0, result.stderr
    said = " ".join(result.stdout.split())
    assert "The rule was arc+nnm+geometric-median and is caf." in said
    listed = 'rules = ["arc+nnm+geometric-median", "caf"]'
    assert f"refuse the federation until theirs has, under [federation]: {listed}" in said
    # A policy with that line accepts the terms, and one without it refuses them.
    terms = federation_file.load_charter(folder / "federation.charter").federation.terms
    pinned = read_policy(folder / "policy.toml").federation
    with pytest.raises(AttestationRefused):
        require_rule(terms, pinned)
    change(folder, 'rules = ["arc+nnm+geometric-median"]', listed, file="policy.toml")
    require_rule(terms, read_policy(folder / "policy.toml").federation)


def test_metrics_are_in_terms_and_policy_and_who_signs_more_is_told(folder):
    assert run("init new --metric loss --metric accuracy").exit_code == 0
    new = folder.parent / "new"
    terms = federation_file.load(new / "federation.toml").federation().terms
    assert terms.report_metrics == ("loss", "accuracy")
    require_metrics(terms, read_policy(new / "policy.toml").federation)

    change(folder, "report_metrics = []", 'report_metrics = ["loss"]')
    change(folder, "revision = 1", "revision = 2")
    said = " ".join(sign().stdout.split())
    assert 'until their policy has, under [federation]: report_metrics = ["loss"]' in said
    terms = federation_file.load_charter(folder / "federation.charter").federation.terms
    with pytest.raises(AttestationRefused):
        require_metrics(terms, read_policy(folder / "policy.toml").federation)
    change(folder, "report_metrics = []", 'report_metrics = ["loss"]', file="policy.toml")
    require_metrics(terms, read_policy(folder / "policy.toml").federation)


def hold_shards_to(folder, text, revision):
    """Signs a revision with this policy for shards. Returns what is said, in one line."""
    (folder / "shards.toml").write_text(text)
    file = folder / "federation.toml"
    changed = file.read_text().replace("# shard_policy = ", "shard_policy = ")
    file.write_text(re.sub(r"(?m)^revision = .*$", f"revision = {revision}", changed))
    return " ".join(sign().stdout.split())


def test_who_signs_a_policy_for_shards_is_told_what_others_have_to_pin(folder):
    first, second = 'version = 1\nevidence = ["tdx"]\n', 'version = 1\nevidence = ["snp"]\n'
    digests = [hashlib.sha256(each.encode()).hexdigest() for each in (first, second)]
    said = hold_shards_to(folder, first, 2)
    assert f'under [federation]: shard_policies = ["{digests[0]}"]' in said
    federation = federation_file.load_charter(folder / "federation.charter").federation
    with pytest.raises(AttestationRefused):
        require_shards(federation, read_policy(folder / "policy.toml").federation)
    line = f'shard_policies = ["{digests[0]}"]'
    change(folder, "# shard_policies = []", line, file="policy.toml")
    require_shards(federation, read_policy(folder / "policy.toml").federation)

    assert "shard_policies" not in " ".join(sign().stdout.split())
    said = hold_shards_to(folder, second, 3)
    assert f'shard_policies = ["{digests[0]}", "{digests[1]}"]' in said
    assert last_line_only(sign("--json"))["policy_shards"] == digests[1:]


USUAL = "arc+nnm+geometric-median"
RULES_SIGNED: dict[str, tuple[str, str | None, list[str]]] = {
    "another rule": ("caf", USUAL, [USUAL, "caf"]),
    "the same rule": (USUAL, USUAL, [USUAL]),
    "a first charter": (USUAL, None, [USUAL]),
}


@pytest.mark.parametrize("which", RULES_SIGNED)
def test_programs_are_told_the_rule_the_one_before_and_what_policies_must_list(folder, which):
    change(folder, "revision = 1", "revision = 2")
    if which == "another rule":
        change(folder, 'rule = "geometric-median"', 'rule = "caf"')
    elif which == "a first charter":
        (folder / "federation.charter").unlink()
    figures = last_line_only(sign("--json"))
    told = tuple(figures[name] for name in ("rule", "previous_rule", "policy_rules"))
    assert told == RULES_SIGNED[which]


def test_a_raised_revision_is_signed(folder):
    change(folder, "disclose_selection = false", "disclose_selection = true")
    change(folder, "revision = 1", "revision = 2")
    figures = last_line_only(sign("--json"))
    assert (figures["revision"], figures["previous_revision"]) == (2, 1)
    assert figures["changed"] is True
    charter = federation_file.load_charter(folder / "federation.charter")
    assert charter.federation.terms.disclose_selection
    check_signature(charter, charter.federation.authority)


def test_a_first_charter_has_no_revision_before_it(folder):
    (folder / "federation.charter").unlink()
    figures = last_line_only(sign("--json"))
    assert figures["previous_revision"] is None


def test_settings_of_the_operator_need_no_new_revision(folder):
    change(folder, "deadline_s = 600", "deadline_s = 60")
    assert "those that were signed before" in sign().stdout


def test_a_key_that_others_can_read_is_not_used(folder):
    (folder / "keys" / "authority.key").chmod(0o644)
    result = sign()
    assert result.exit_code == 2
    assert "chmod 600" in result.stderr


def test_enrolling_a_client_from_key_to_charter(folder):
    enrolled = run("client enrol --name hospital-a --out hospital-a.key")
    assert enrolled.exit_code == 0
    path = folder.parent / "hospital-a.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "hospital-a.key" in enrolled.stderr

    config = folder / "federation.toml"
    config.write_text(config.read_text() + "\n" + enrolled.stdout)
    change(folder, "revision = 1", "revision = 2")
    assert sign().exit_code == 0
    federation = federation_file.load_charter(folder / "federation.charter").federation
    assert federation.clients[-1].name == "hospital-a"
    assert federation.clients[-1].key == read_identity(path).public


def test_revoking_a_client_is_a_line_and_a_revision(folder):
    key = run("client enrol --name extra").stdout
    config = folder / "federation.toml"
    config.write_text(config.read_text() + "\n" + key)
    change(folder, "revision = 1", "revision = 2")
    assert sign().exit_code == 0
    change(folder, 'name = "client-1"', 'name = "client-1"\nrevoked = "left"')
    change(folder, "revision = 2", "revision = 3")
    assert sign().exit_code == 0
    federation = federation_file.load_charter(folder / "federation.charter").federation
    assert [each.name for each in federation.revoked] == ["client-1"]


def test_a_client_s_key_is_never_written_over(folder):
    assert run("client enrol --name a").exit_code == 0
    before = (folder.parent / "a.key").read_bytes()
    result = run("client enrol --name a")
    assert result.exit_code == 2
    assert "never overwritten" in result.stderr
    assert result.stdout == ""
    assert (folder.parent / "a.key").read_bytes() == before


def test_enrolment_as_json_holds_no_secret(folder):
    result = run("client enrol --name a --json")
    figures = last_line_only(result)
    path = folder.parent / "a.key"
    secret = path.read_text().split()[-1]
    assert figures == {"name": "a", "key": read_identity(path).public.hex(), "file": "a.key"}
    assert secret not in result.output


def test_the_output_shows_no_key_of_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("init fed --json")
    for path in (tmp_path / "fed" / "keys").iterdir():
        assert path.read_text().split()[-1] not in result.output


def test_writing_a_key_elsewhere_needs_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_identity(tmp_path / "x.key", "x")
    result = run("client enrol --name a --out no/such/folder/a.key")
    assert result.exit_code == 2
    assert "make its folder first" in result.stderr


class Taker(EnclaveServicer):
    """An enclave that takes whatever is brought to it."""

    def Adopt(self, request, context):  # noqa: N802
        return AdoptReply()


def test_a_push_says_that_it_worked(folder):
    server = grpc.server(ThreadPoolExecutor(1))
    add_EnclaveServicer_to_server(Taker(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        pushed = sign("--push", address)
        assert f"Brought to {address}: in force from its next round." in pushed.stdout
        assert last_line_only(sign("--push", address, "--json"))["pushed"] is True
    finally:
        server.stop(None).wait()
    assert sign("--push", address).exit_code == 1
    assert last_line_only(sign("--json"))["pushed"] is False


def test_a_push_that_can_never_work_is_a_mistake(folder):
    result = sign("--push 127.0.0.1:1 --tls-ca nope.pem")
    assert result.exit_code == 2
    assert "nope.pem: No such file or directory" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--enclave 127.0.0.1:1 --tls-ca nope.pem", "nope.pem: No such file or directory"),
        ("--enclave 127.0.0.1:99999", "a port from 1 to 65535; got '127.0.0.1:99999'"),
        ("--enclave 127.0.0.1:0", "HOST:PORT"),
        ("--enclave :7420", "HOST:PORT"),
        ("--enclave ::1:7420", "HOST:PORT"),
        ("--enclave 'a b:7420'", "HOST:PORT"),
    ],
)
def test_what_can_never_be_reached_is_a_mistake(options, message):
    result = run(f"status {options}")
    assert result.exit_code == 2
    assert message in result.stderr


def test_grpc_keeps_its_internals_to_itself_unless_it_is_asked():
    program = "import os, ostraka.cli; print(os.environ['GRPC_VERBOSITY'])"
    for given, found in (({}, "NONE"), ({"GRPC_VERBOSITY": "debug"}, "debug")):
        environment = {name: each for name, each in os.environ.items() if "GRPC" not in name}
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment | given,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == found


def test_with_shards_it_prints_every_command_that_starts_the_federation(tmp_path):
    target = tmp_path / "large"
    made = run(f"init {target} --clients 5 --f 1 --dimension 40000 --shards 2")
    lines = [line.split()[1:] for line in made.stdout.splitlines() if "  ostraka " in line]
    started = [tuple(line[:2]) for line in lines]
    assert started == [("enclave", "run"), *[("enclave", "shard")] * 2, *[("worker", "run")] * 2]
    shards = [parser().parse_args(line[1:]) for line in lines[1:3]]
    assert [each.number for each in shards] == [0, 1]
    files = [federation_file.load(each.config) for each in shards]
    lead = federation_file.load(target / "federation.toml")
    everywhere = [each.enclave.listen for each in (lead, *files)]
    assert len(set(everywhere)) == 3
    for line in lines[3:]:
        assert [b for a, b in pairwise(line) if a == "--enclave"] == everywhere
        assert Path(line[line.index("--key") + 1]).is_file()
