"""federation.toml: every field is read and checked, and its federation is what the file says."""

import contextlib
import dataclasses
import hashlib
import re
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from ostraka import federation_file
from ostraka.cli.templates import federation_toml, member_lines
from ostraka.config import Manifest, Member, Tensor
from ostraka.core import rules
from ostraka.core.optimiser import Optimiser
from ostraka.crypto.identity import Identity, check_signature
from ostraka.encoding import UNSIGNED, encode
from ostraka.errors import ConfigError
from ostraka.federation_file import (
    Enclave,
    FederationFile,
    Limits,
    Model,
    Rounds,
    Storage,
    TermsTable,
    charter_path,
    load,
    load_charter,
    require_newer,
    require_signed,
    sign,
    write_charter,
)
from ostraka.messages import Charter, first_model, vector_digest

AUTHORITY = Identity(bytes([9]) * 32)
ID = b"i" * 32


def members(table, n):
    return [Member(f"{table}-{i}", bytes([i, ord(table[0])] * 16)) for i in range(1, n + 1)]


USUAL = "arc+nnm+geometric-median"


def template(clients=5, workers=2, f=1, rule=USUAL, **changes):
    values = {"name": "test", "model": "dimension = 100", "masking": "exact", **changes}
    return federation_toml(
        id=ID,
        authority=AUTHORITY.public,
        f=f,
        working=max(2, workers),
        clients=members("client", clients),
        workers=members("worker", workers),
        observer=members("observer", 1)[0],
        composition=rules.parse(rule),
        disclose_values=False,
        upload="float32",
        **values,
    )


def changed(text, **lines):
    """The text with these keys set to these values, wherever they stand, commented out or not."""
    for key, value in lines.items():
        text, count = re.subn(rf"(?m)^(?:# )?{key} = .*$", f"{key} = {value}", text)
        assert count, key
    return text


@pytest.fixture
def read(tmp_path):
    def read_text(text) -> FederationFile:
        path = tmp_path / "federation.toml"
        path.write_text(text)
        return load(path)

    return read_text


def test_the_template_shows_every_setting_at_its_default(read):
    file = read(template())
    assert (file.terms, file.rounds) == (TermsTable(f=1), Rounds())
    assert (file.storage, file.limits) == (Storage(), Limits())
    assert (file.enclave, file.optimiser) == (Enclave(), Optimiser())
    for layout in (TermsTable, Rounds, Storage, Limits, Enclave, Optimiser, federation_file.About):
        for field in dataclasses.fields(layout):
            assert re.search(rf"(?m)^(# )?{field.name} = ", template()), field.name


def test_what_the_template_leaves_out_can_be_put_in(read):
    values = {"smoothing": 0.1, "sketch": 16384, "clip_norm": 0.5, "tile": 512, "quorum": 5}
    text = changed(template(model="dimension = 90000"), metrics='"[::1]:80"', **values)
    file = read(text)
    assert file.quorum == file.rounds.quorum == 5
    assert file.enclave.metrics == "[::1]:80"
    terms = file.federation().terms
    assert (terms.sketch, terms.clip_norm, terms.tile) == (16384, 0.5, 512)
    assert terms.options == rules.Options(smoothing=0.1)


def test_the_federation_is_what_the_file_says(read):
    changes = {"revision": 7, "successors": f'["{"ab" * 32}"]', "expires": 2**31, "kind": '"sgd"'}
    text = changed(template(), **changes)
    federation = read(text).federation()
    assert federation.clients == tuple(members("client", 5))
    assert federation.workers == tuple(members("worker", 2))
    assert (federation.authority, federation.id) == (AUTHORITY.public, ID)
    assert federation.expires == 2**31
    assert (federation.revision, federation.successors) == (7, (b"\xab" * 32,))
    assert federation.terms.optimiser == Optimiser("sgd")
    assert federation.terms.manifest == Manifest.flat(100)


SHARDS = 'version = 1\r\nevidence = ["tdx"]\n'


def test_the_text_of_the_policy_for_shards_is_signed_as_it_is_in_its_file(read, tmp_path):
    assert read(template()).federation().shard_policy == ""
    (tmp_path / "shards.toml").write_bytes(SHARDS.encode())
    federation = read(changed(template(), shard_policy='"shards.toml"')).federation()
    assert federation.shard_policy == SHARDS
    written = hashlib.sha256((tmp_path / "shards.toml").read_bytes())
    assert federation.shard_policy_digest == written.digest()


def test_another_policy_for_shards_needs_a_new_revision(read, tmp_path):
    (tmp_path / "shards.toml").write_text(SHARDS)
    file = read(changed(template(), shard_policy='"shards.toml"'))
    (tmp_path / "shards.toml").write_text(SHARDS.replace("tdx", "snp"))
    with pytest.raises(ConfigError, match="is not what the authority signed"):
        require_signed(load(file.path), sign(file, AUTHORITY))


BAD_SHARDS = {
    "that is not there": (None, "shards.toml: No such file"),
    "that is empty": ("", "shards.toml has 1 to 16384 bytes; got 0"),
    "that is too long": (SHARDS + "#" * 2**14, "shards.toml has 1 to 16384 bytes; got 16385"),
    "that is no text": ("\udcff", "shards.toml is not UTF-8"),
    "that is no policy": ("version = 1\nevidence = [", "shards.toml, line 2: "),
    "that names a federation": (SHARDS + "[federation]", "shards.toml, line 3: a policy for"),
}


@pytest.mark.parametrize(("text", "message"), BAD_SHARDS.values(), ids=BAD_SHARDS.keys())
def test_a_policy_for_shards_is_refused(text, message, read, tmp_path):
    if text is not None:
        (tmp_path / "shards.toml").write_bytes(text.encode(errors="surrogateescape"))
    text = changed(template(), shard_policy='"shards.toml"')
    with pytest.raises(ConfigError, match=re.escape(message)) as refused:
        read(text)
    line = line_of(text, 'shard_policy = "shards.toml"')
    assert f"federation.toml, line {line}: " in str(refused.value)


TERMS = {
    "f": "2",
    "rule": '"another"',
    "pre": '["arc"]',
    "k": "4",
    "neighbours": "3",
    "root": '"client-2"',
    "bucket": "3",
    "radius": "0.25",
    "centre": '"medoid"',
    "iterations": "7",
    "smoothing": "0.5",
    "beta": "0.25",
    "client_momentum": "0.5",
    "masking": '"gaussian"',
    "distances": '"inside"',
    "workers": "3",
    "sketch": "4096",
    "verify": "false",
    "clip_norm": "0.5",
    "leakage_bits": "0.1",
    "precision": "0.002",
    "tile": "512",
    "disclose_selection": "true",
    "disclose_values": "true",
    "confirm": '"none"',
    "witness_f": "1",
    "upload": '"float16"',
    "report_metrics": '["accuracy", "loss"]',
    "most_loss": "4.5",
    "most_examples": "60.0",
}


@pytest.mark.parametrize("term", [field.name for field in dataclasses.fields(TermsTable)])
def test_every_term_of_the_file_is_one_of_the_federation(read, monkeypatch, term):
    """What the file says and the federation does not would be promised and not kept."""
    monkeypatch.setitem(rules.RULES, "one", TakesAll())
    monkeypatch.setitem(rules.RULES, "another", TakesAll())
    base = changed(template(7, 3, rule="one", model="dimension = 9000"), workers="2")
    before, after = read(base), read(changed(base, **{term: TERMS[term]}))
    stated = getattr(after.terms, term)
    assert stated != getattr(before.terms, term)
    signed, options = after.federation().terms, after.federation().terms.options
    assert getattr(options if hasattr(options, term) else signed, term) == stated


class TakesAll(rules.Rule):
    """Takes every option, and does nothing."""

    takes: ClassVar = {field.name: "any" for field in dataclasses.fields(rules.Options)}


def test_settings_of_the_operator_do_not_change_the_federation(read):
    other = changed(
        template(), count=3, deadline_s=5, spool_mib=100, uploads=2, threads=1, memory_mib=0
    )
    assert read(other).federation() == read(template()).federation()


def test_the_quorum_is_what_the_rule_needs_unless_given(read):
    assert read(template(f=1)).quorum == 4
    assert read(template(f=1, rule="multi-krum")).quorum == 5


def test_a_rule_has_its_usual_company_unless_the_file_gives_another(read):
    def composition(**lines):
        return str(read(changed(template(), **lines)).federation().terms.composition)

    assert composition() == USUAL
    assert composition(pre="[]") == "geometric-median"
    assert composition(rule='"multi-krum"') == "multi-krum"
    assert composition(rule='"MultiKrum"', pre='[\n  "NNM",\n]') == "nnm+multi-krum"
    assert composition(rule='"multi-krum"', k=3) == "multi-krum(k=3)"


@pytest.mark.parametrize(
    "rule",
    [
        USUAL,
        "multi-krum(k=4)",
        "clip+mean(radius=0.5)",
        "nnm+krum",
        "arc+caf",
        "fltrust(root=client-3)",
        "centred-clipping(radius=2.0, centre=medoid, iterations=5)",
        "trimmed-mean(beta=0.1)",
    ],
)
def test_a_template_says_what_it_was_made_for(rule, read):
    assert str(read(template(rule=rule)).federation().terms.composition) == rule


def test_a_file_of_version_0_1_with_k_is_told_whose_option_that_is(read):
    text = re.sub(r"(?m)^rule = .*\n", "", changed(template(), k=3))
    with pytest.raises(
        ConfigError, match=r"k belongs to multi-krum, .* rule of version 0\.1"
    ) as told:
        read(text)
    assert f"line {line_of(text, 'k = 3')}: " in str(told.value)
    assert 'write rule = "multi-krum"' in str(told.value)


def revoke(text, name):
    return text.replace(f'name = "{name}"\n', f'name = "{name}"\nrevoked = "left"\n')


def test_the_revoked_take_no_part_and_are_remembered(read):
    text = revoke(revoke(template(6, 3), "client-2"), "worker-1")
    federation = read(changed(text, workers=2)).federation()
    assert "client-2" not in [each.name for each in federation.clients]
    assert [each.name for each in federation.workers] == ["worker-2", "worker-3"]
    assert federation.revoked == (members("client", 6)[1], members("worker", 3)[0])


def with_witnesses(text, n, **changes):
    lines = (member_lines("witness", each) for each in members("auditor", n))
    return changed(text, **changes) + "\n" + "\n".join(lines)


def test_witnesses_are_enrolled_and_revoked_like_clients(read):
    text = with_witnesses(template(), 3, confirm='"both"', witness_f=1)
    federation = read(text).federation()
    assert federation.witnesses == tuple(members("auditor", 3))
    assert (federation.terms.confirm, federation.terms.witness_f) == ("both", 1)
    federation = read(revoke(text, "auditor-2")).federation()
    assert [each.name for each in federation.witnesses] == ["auditor-1", "auditor-3"]
    assert federation.revoked == (members("auditor", 3)[1],)


def test_witnesses_that_cannot_confirm_are_refused_with_the_line(read):
    both = with_witnesses(template(), 1, confirm='"both"', witness_f=1)
    with pytest.raises(ConfigError, match="needs more witnesses than witness_f = 1") as refused:
        read(both)
    line = line_of(both, 'confirm = "both"')
    assert f"line {line}: " in str(refused.value)
    unasked = with_witnesses(template(), 1)
    with pytest.raises(ConfigError, match="1 witnesses are enrolled, and confirm = 'clients'"):
        read(unasked)
    twice = with_witnesses(template(), 1, confirm='"both"').replace("auditor-1", "client-2")
    with pytest.raises(ConfigError, match="client 'client-2' has the same name"):
        read(twice)


def test_a_file_of_an_earlier_version_is_told_to_draw_an_id(read):
    text = re.sub(r"(?m)^id = .*\n", "", template())
    line = line_of(text, "[federation]")
    with pytest.raises(ConfigError, match=rf"line {line}: federation\.id is missing: .*rand -hex"):
        read(text)


def test_the_initial_model_without_a_file_is_zero(read):
    manifest, model = read(template()).initial_model()
    assert manifest == Manifest.flat(100)
    assert model.dtype == np.dtype("<f4")
    assert np.array_equal(model, np.zeros(100))


def test_the_initial_model_is_a_file_s_tensors_end_to_end(read, tmp_path):
    weights, bias = np.arange(6, dtype="f4").reshape(2, 3), np.full(4, 7, "f4")
    save_file({"weights": weights, "bias": bias}, tmp_path / "model.safetensors")
    file = read(template(model='initial = "model.safetensors"'))
    manifest, model = file.initial_model()
    assert manifest == file.manifest == file.federation().terms.manifest
    assert manifest.tensors == (Tensor("bias", (4,)), Tensor("weights", (2, 3)))
    assert model.tolist() == [7, 7, 7, 7, 0, 1, 2, 3, 4, 5]


def test_a_model_that_changes_its_tensors_after_a_look_is_refused(read, tmp_path):
    save_file({"a": np.zeros(3, "f4")}, tmp_path / "model.safetensors")
    file = read(template(model='initial = "model.safetensors"'))
    save_file({"a": np.zeros(4, "f4")}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="is another model"):
        file.initial_model()


def test_the_authority_signs_the_values_of_the_first_model(read, tmp_path):
    path, text = tmp_path / "model.safetensors", template(model='initial = "model.safetensors"')
    save_file({"a": np.zeros(3, "f4")}, path)
    file = read(text)
    charter = sign(file, AUTHORITY)
    assert charter.federation.initial == vector_digest(file.initial_model()[1])
    assert first_model(charter.federation) == first_model(
        read(template(model="dimension = 3")).federation()
    )
    save_file({"a": np.array([0, 0, 1], "f4")}, path)
    with pytest.raises(ConfigError, match="is another model"):
        file.initial_model()
    with pytest.raises(ConfigError, match="not what the authority signed"):
        require_signed(read(text), charter)


def test_without_a_file_the_first_model_is_zero_and_needs_no_digest(read):
    federation = read(template()).federation()
    assert federation.initial == b""
    assert first_model(federation) == vector_digest(read(template()).initial_model()[1])


BAD_MODELS = {
    "no file": (None, "No such file"),
    "not safetensors": (b"hello", "cannot be read as safetensors"),
    "half of a file": (b"\x40\0\0\0\0\0\0\0{", "cannot be read as safetensors"),
    "float64": ({"w": np.zeros(3)}, "'w' is F64, and updates are float32"),
    "a counter": ({"n": np.zeros(1, "i8")}, "leave it out if it stays with each client"),
    "no tensors": ({}, "an update has 1 to"),
}


@pytest.mark.parametrize(("content", "message"), BAD_MODELS.values(), ids=BAD_MODELS.keys())
def test_a_model_that_cannot_be_trained_is_refused_where_it_is_named(
    content, message, read, tmp_path
):
    if isinstance(content, bytes):
        (tmp_path / "model.safetensors").write_bytes(content)
    elif content is not None:
        save_file(content, tmp_path / "model.safetensors")
    text = template(model='initial = "model.safetensors"')
    line = text.splitlines().index('initial = "model.safetensors"') + 1
    with pytest.raises(ConfigError, match=re.escape(message)) as refused:
        read(text)
    assert f"federation.toml, line {line}: " in str(refused.value)


def test_a_model_of_nan_is_refused(read, tmp_path):
    save_file({"a": np.array([1, np.nan], "f4")}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"federation\.toml, line [0-9]+: .*NaN"):
        read(template(model='initial = "model.safetensors"'))


# What is wrong: the lines to change, the key whose line is to blame, and what is said.
REFUSED = {
    "a format that is not there": (
        {"upload": '"float8"'},
        "upload",
        "upload is one of float32, bfloat16, float16, int8; got 'float8': did you mean float",
    ),
    "a rule that is not there": (
        {"rule": '"geometrik-median"'},
        "rule",
        "there is no rule 'geometrik-median': did you mean geometric-median?",
    ),
    "a rule that is a number": ({"rule": 3}, "rule", "terms.rule is a text in quotes; got 3"),
    "a pre-aggregation that is not there": (
        {"pre": '["nmm"]'},
        "pre",
        "there is no pre-aggregation 'nmm': did you mean nnm?",
    ),
    "a pre-aggregation as a text": ({"pre": '"nnm"'}, "pre", 'terms.pre is a list; got "nnm"'),
    "a rule before a rule": ({"pre": '["mean"]'}, "pre", "there is no pre-aggregation 'mean'"),
    "an option that the rule does not take": (
        {"beta": 0.1},
        "beta",
        f"beta is no option of {USUAL}; those are: iterations, smoothing",
    ),
    "an option that is no number": ({"radius": '"far"'}, "radius", "terms.radius is a number"),
    "an option of the wrong kind": ({"iterations": 1.5}, "iterations", "is a whole number"),
    "too many iterations": ({"iterations": 1001}, "iterations", "from 1 to 1000; got 1001"),
    "smoothing of NaN": ({"smoothing": "nan"}, "smoothing", "smoothing must be from"),
    "a root client that is not enrolled": (
        {"rule": '"fltrust"', "root": '"client-9"'},
        "root",
        "root is 'client-9', and no client of that name is enrolled",
    ),
    "no root client": ({"rule": '"fltrust"'}, "rule", "the rule fltrust trusts one client's"),
    "values of single clients": (
        {"rule": '"median"'},
        "disclose_values",
        "median publishes single values of single clients: put nnm before it, or",
    ),
    "a sketch that no mda is told from": (
        {"rule": '"mda"', "sketch": 16384, "dimension": 50_000},
        "sketch",
        "mda cannot be told from a sketch",
    ),
    "too few for a rule that needs many": (
        {"rule": '"bulyan"'},
        "f",
        "bulyan needs at least 7 clients; got n=5, f=1",
    ),
    "one client's update as the outcome": ({"rule": '"krum"'}, "rule", "put nnm before it"),
    "a momentum of one at clients": (
        {"client_momentum": 1},
        "client_momentum",
        "0 <= client_momentum < 1; got 1",
    ),
    "a sketch that is too rough for nnm": (
        {"sketch": 4096, "dimension": 50_000},
        "sketch",
        "nnm needs a sketch of at least 16384 columns; got 4096",
    ),
    "f below zero": ({"f": -1}, "f", "f is 0 to"),
    "too many attackers for so few clients": (
        {"f": 2},
        "f",
        f"{USUAL} needs at least 6 clients; got n=5, f=2",
    ),
    "k that isolates a client": ({"rule": '"multi-krum"', "k": 2}, "k", "k >= f + 2"),
    "k above all but f": ({"rule": '"multi-krum"', "k": 5}, "k", "k <= n - f"),
    "a masking that is not there": ({"masking": '"rot13"'}, "masking", "'rot13'"),
    "measurers that are not there": ({"distances": '"auto"'}, "distances", "'auto'"),
    "more workers than are enrolled": ({"workers": 3}, "workers", "ask for 3 workers"),
    "a worker": ({"workers": 1}, "workers", "2 to 7 workers"),
    "a sketch larger than the update": ({"sketch": 16384}, "sketch", "to d = 100"),
    "a clip norm of zero": ({"clip_norm": 0}, "clip_norm", "clip_norm must be"),
    "a clip norm of NaN": ({"clip_norm": "nan"}, "clip_norm", "clip_norm must be"),
    "an empty tile": ({"tile": 0}, "tile", "a tile holds 1 to"),
    "a precision of nothing": ({"precision": 0}, "precision", "precision is 1e-30 to 1"),
    "leakage without end": ({"leakage_bits": "inf"}, "leakage_bits", "got inf"),
    "a quorum below what the rule needs": (
        {"quorum": 3},
        "quorum",
        f"is 4, the least for {USUAL} and f=1, to 5",
    ),
    "a quorum above all clients": ({"quorum": 6}, "quorum", "got 6"),
    "no rounds": ({"count": 0}, "count", "count is 1 to"),
    "no time": ({"deadline_s": 0}, "deadline_s", "deadline_s is 0.001 to"),
    "time without end": ({"measure_s": "inf"}, "measure_s", "measure_s is 0.001 to"),
    "time that is no number": ({"idle_s": "nan"}, "idle_s", "idle_s is 0.001 to"),
    "extensions below zero": ({"extensions": -1}, "extensions", "extensions is 0 to"),
    "an optimiser that is not there": ({"kind": '"lion"'}, "[optimiser]", "'lion'"),
    "a learning rate of zero": ({"learning_rate": 0}, "learning_rate", "must be positive"),
    "momentum of one": ({"momentum": 1}, "momentum", "0 <= momentum < 1"),
    "memory below zero": ({"memory_mib": -1}, "memory_mib", "memory_mib is 0 to"),
    "memory in parts": ({"memory_mib": 0.5}, "memory_mib", "memory_mib is a whole number"),
    "a folder without a name": ({"folder": '""'}, "folder", "folder cannot be empty"),
    "no models kept": ({"keep_models": 0}, "keep_models", "keep_models is 1 to"),
    "an address without a port": ({"listen": '"localhost"'}, "listen", "host:port"),
    "a port above 65535": ({"metrics": '"a:65536"'}, "metrics", "got 'a:65536'"),
    "revision zero": ({"revision": 0}, "revision", "revision is 1 to"),
    "no name": ({"name": '""'}, "name", "name is 1 to 64"),
    "a successor that is none": ({"successors": '["ab"]'}, "successors", "64 hex digits; got 2"),
    "a short id": ({"id": '"ab"'}, "id", "64 hex digits; got 2"),
    "an expiry before all time": ({"expires": 0}, "expires", "expires is 1 to"),
    "confirmation by nobody known": ({"confirm": '"us"'}, "confirm", "confirm is one of clients"),
    "witnesses to confirm, and none": ({"confirm": '"witnesses"'}, "confirm", "0 are enrolled"),
    "Byzantine witnesses below zero": ({"witness_f": -1}, "witness_f", "witness_f is 0 to"),
    "a short authority": ({"authority": '"ab"'}, "authority", "64 hex digits; got 2"),
    "no dimension": ({"dimension": 0}, "dimension", "an update has 1 to"),
    "too small a spool": (
        {"spool_mib": 1, "dimension": 100_000},
        "spool_mib",
        "5 updates of 100000 values take 2; got 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "blamed", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_work_is_refused_with_its_line(lines, blamed, message, read):
    text = changed(template(), **lines)
    at = [each.startswith((f"{blamed} = ", blamed + "\n")) for each in text.splitlines(True)]
    with pytest.raises(ConfigError, match=re.escape(message)) as refused:
        read(text)
    assert f"federation.toml, line {at.index(True) + 1}: " in str(refused.value)


def line_of(text, line, nth=0):
    return [i for i, each in enumerate(text.splitlines(), 1) if each == line][nth]


def test_two_parties_of_one_name_are_refused_at_the_second(read):
    text = template().replace('"client-4"', '"client-1"')
    with pytest.raises(ConfigError, match="client 'client-1' has the same name") as refused:
        read(text)
    second = line_of(text, 'name = "client-1"', 1)
    assert f"line {second}: " in str(refused.value)


def test_one_key_for_a_client_and_a_worker_is_refused(read):
    client, worker = members("client", 1)[0].key.hex(), members("worker", 1)[0].key.hex()
    with pytest.raises(ConfigError, match="client 'client-1' has the same key"):
        read(template().replace(worker, client))


@pytest.mark.parametrize("name", ["", "a b", "a/b", "é", "x" * 65, "a\\n"])
def test_names_that_could_be_mistaken_are_refused(name, read):
    with pytest.raises(ConfigError, match="letters, digits, dots"):
        read(template().replace('"client-3"', f'"{name}"'))


def test_a_model_by_file_and_by_dimension_is_refused(read):
    with pytest.raises(ConfigError, match="either initial"):
        read(template(model='initial = "a"\ndimension = 3'))
    with pytest.raises(ConfigError, match="either initial"):
        read(template(model=""))


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "federation.toml")
    (tmp_path / "federation.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(tmp_path / "federation.toml")


def test_a_charter_with_a_tile_that_another_release_chose_is_still_of_this_file(read):
    file = read(template())
    signed = file.federation()
    assert file.terms.tile is None
    older = dataclasses.replace(signed, terms=dataclasses.replace(signed.terms, tile=16))
    require_signed(file, AUTHORITY.sign(Charter(older, UNSIGNED)))
    require_newer(file, older)
    other = read(template().replace("# tile = 65536", "tile = 32"))
    with pytest.raises(ConfigError, match="not what the authority signed"):
        require_signed(other, AUTHORITY.sign(Charter(older, UNSIGNED)))


def test_the_charter_is_signed_by_the_authority_and_kept_beside_the_file(read):
    file = read(template())
    charter = sign(file, AUTHORITY)
    check_signature(charter, AUTHORITY.public)
    path = charter_path(file.path)
    assert path == file.folder / "federation.charter"
    write_charter(path, charter)
    assert path.read_bytes() == encode(charter)
    assert load_charter(path) == charter
    assert sorted(each.name for each in file.folder.iterdir()) == [
        "federation.charter",
        "federation.toml",
    ]
    require_signed(file, load_charter(path))


def test_somebody_else_cannot_sign(read):
    with pytest.raises(ConfigError, match="not the key of the authority"):
        sign(read(template()), Identity(bytes(32)))


def test_a_file_that_is_no_charter_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        load_charter(tmp_path / "federation.charter")
    (tmp_path / "federation.charter").write_bytes(b"hello")
    with pytest.raises(ConfigError, match="is no charter"):
        load_charter(tmp_path / "federation.charter")


def test_a_change_after_signing_is_seen(read):
    charter = sign(read(template()), AUTHORITY)
    with pytest.raises(ConfigError, match="not what the authority signed"):
        require_signed(read(changed(template(), f=0)), charter)
    require_signed(read(changed(template(), count=99)), charter)


def test_a_change_needs_a_new_revision(read):
    signed = read(template()).federation()
    require_newer(read(template()), signed)
    text = changed(template(), f=0)
    with pytest.raises(ConfigError, match="write revision = 2") as refused:
        require_newer(read(text), signed)
    assert f"line {line_of(text, 'revision = 1')}: " in str(refused.value)
    require_newer(read(changed(text, revision=2)), signed)


def test_the_revoked_cannot_be_forgotten(read):
    text = template(6)
    signed = read(revoke(text, "client-2")).federation()
    with pytest.raises(ConfigError, match="'client-2' was revoked"):
        require_newer(read(changed(text, revision=2)), signed)
    require_newer(read(changed(revoke(text, "client-2"), revision=2)), signed)


NUMBERS = st.sampled_from(
    ["0", "-1", "3", "1e-320", "1e300", "nan", "inf", "true", "'x'", "[]", str(2**62), str(2**64)]
)
LINES = [
    i for i, line in enumerate(template().splitlines()) if re.match(r"(# )?\w+ = ", line)
]  # every setting, commented out or not


@given(st.sampled_from(LINES), NUMBERS, st.sampled_from(["exact", "gaussian", "none"]))
def test_any_value_for_any_setting_is_read_or_refused_as_a_config_error(
    tmp_path_factory, at, value, masking
):
    lines = template(masking=masking).splitlines()
    key = lines[at].removeprefix("# ").split(" = ")[0]
    lines[at] = f"{key} = {value}"
    path = tmp_path_factory.mktemp("any") / "federation.toml"
    path.write_text("\n".join(lines))
    with contextlib.suppress(ConfigError):
        load(path).federation().digest()


@given(st.text())
def test_any_text_is_refused_as_a_config_error(tmp_path_factory, text):
    path: Path = tmp_path_factory.mktemp("any") / "federation.toml"
    path.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(ConfigError):
        load(path)


def test_the_model_table_is_one_of_the_two():
    assert Model(initial="a") != Model(dimension=1)
