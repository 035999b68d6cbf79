import dataclasses
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.config import (
    DEFAULT_TILE,
    MAX_PIECE_VALUES,
    Federation,
    Manifest,
    Member,
    Tensor,
    Terms,
    default_tile,
    power_of_two_above,
    succession,
)
from ostraka.core import rules
from ostraka.core.leakage import bound_bits
from ostraka.core.optimiser import Optimiser
from ostraka.encoding import decode, encode, pack, unpack
from ostraka.errors import ConfigError, MalformedMessage
from ostraka.protocol.confirm import electorates


def members(n, *, kind="client", first=0):
    return tuple(Member(f"{kind}-{i}", bytes([first + i]) * 32) for i in range(n))


AUTHORITY = b"a" * 32
ID = b"i" * 32


PAPER = {"rule": rules.PAPER, "pre": ()}


def terms(d=100, **changes):
    return Terms(Manifest.flat(d), **{"f": 1, "masking": "none", **changes})


def keeping(k):
    return {**PAPER, "options": rules.Options(k=k)}


def federation(n=7, enrolled=0, **changes):
    return Federation(
        terms(**changes), members(n), members(enrolled, kind="worker", first=100), AUTHORITY, ID
    )


def witnessed(count, n=7, **changes):
    return replace(
        federation(n, **{**changes, "confirm": "clients"}),
        terms=terms(**changes),
        witnesses=members(count, kind="witness", first=200),
    )


IMPOSSIBLE = {
    "f below zero": (lambda: terms(f=-1), "f=-1"),
    "an unknown masking": (lambda: terms(masking="rot13"), "'rot13'"),
    "an unknown rule": (lambda: terms(rule="krumm"), "'krumm': did you mean krum"),
    "a rule by the name that others have for it": (
        lambda: terms(rule="GeometricMedian"),
        r"arc\+nnm\+geometric-median just so",
    ),
    "an unknown pre-aggregation": (lambda: terms(pre=("arc", "mnn")), "'mnn': did you mean nnm"),
    "a pre-aggregation by the name that others have for it": (
        lambda: terms(pre=("ARC",)),
        r"arc\+geometric-median just so",
    ),
    "an option that the rule does not have": (
        lambda: terms(options=rules.Options(k=4)),
        "k is no option of arc",
    ),
    "k below f + 2": (lambda: terms(f=3, **keeping(4)), "k=4, f=3"),
    "k above n - f": (lambda: federation(7, f=2, **keeping(6)), "k=6, n=7, f=2"),
    "n below 2f + 2": (lambda: federation(5, f=2), "n=5, f=2"),
    "n below 2f + 3": (lambda: federation(6, f=2, **PAPER), "n=6, f=2"),
    "a root that is not enrolled": (
        lambda: federation(rule="fltrust", pre=(), options=rules.Options(root="client-7")),
        "'client-7', and no client",
    ),
    "a client momentum of 1": (lambda: terms(client_momentum=1.0), "client_momentum < 1; got 1"),
    "a client momentum below zero": (lambda: terms(client_momentum=-0.1), "got -0.1"),
    "a client momentum of NaN": (lambda: terms(client_momentum=math.nan), "got nan"),
    "a format that is none": (lambda: terms(upload="int4"), "'int4': did you mean int8"),
    "int8 for updates that are too long": (
        lambda: terms(d=100_000_001, upload="int8"),
        "at most 100000000 values; got 100000001.*take bfloat16",
    ),
    "a clip norm of zero": (lambda: terms(clip_norm=0.0), "got 0.0"),
    "a clip norm below zero": (lambda: terms(clip_norm=-1.0), "got -1.0"),
    "a clip norm below float32's range": (lambda: terms(clip_norm=1e-40), "got 1e-40"),
    "a clip norm of NaN": (lambda: terms(clip_norm=math.nan), "got nan"),
    "an infinite clip norm": (lambda: terms(clip_norm=math.inf), "got inf"),
    "a clip norm beyond any float32 update": (lambda: terms(clip_norm=1e300), "1e\\+300"),
    "an empty tile": (lambda: terms(tile=0), "got 0"),
    "too large a tile": (lambda: federation(7, tile=2**20), r"1 to 262144 values; got 1048576"),
    "a tile that cannot be cut": (
        lambda: federation(17, tile=2**18 - 1),
        r"17 clients, tiles of 262143.*at most 246723, and cannot be cut so: take a power of two",
    ),
    "no values": (lambda: Manifest(()), "values; got 0"),
    "a tensor of no values": (lambda: Manifest((Tensor("w", (3, 0)),)), "values; got 0"),
    "a tensor of negative shape": (lambda: Manifest((Tensor("w", (-2, -3)),)), "-3"),
    "a shape that is a very long number": (
        lambda: Manifest((Tensor("w", (2**64 - 1,) * 100_000),)),
        "at most 32 dimensions",
    ),
    "a size that no update has": (lambda: Manifest((Tensor("w", (2**64 - 1,)),)), "0 to 1099511"),
    "two tensors of one name": (
        lambda: Manifest((Tensor("w", (1,)), Tensor("w", (2,)))),
        r"\['w', 'w'\]",
    ),
    "more clients than dimensions": (
        lambda: federation(7, 2, d=6, masking="gaussian"),
        "7 clients and 6 dimensions",
    ),
    "one worker": (lambda: terms(masking="exact", workers=1), "got 1"),
    "eight workers": (lambda: terms(masking="exact", workers=8), "got 8"),
    "too few enrolled workers": (lambda: federation(7, 2, masking="exact", workers=3), "3.* 2 are"),
    "Gaussian masking without workers": (lambda: federation(7, 0, masking="gaussian"), " 0 are"),
    "Gaussian masking for three workers": (lambda: terms(masking="gaussian", workers=3), "got 3"),
    "distances by nobody": (lambda: terms(distances="elsewhere"), "'elsewhere'"),
    "too small a sketch": (lambda: terms(d=10_000, sketch=4_095, **PAPER), "m = 4095"),
    "a sketch larger than the update": (
        lambda: terms(d=5_000, sketch=5_001, **PAPER),
        "d = 5000.*m = 5001",
    ),
    "a sketch that is too rough for nnm": (
        lambda: terms(d=20_000, sketch=16_383),
        "nnm needs a sketch of at least 16384 columns; got 16383",
    ),
    "too large a sketch": (
        lambda: federation(17, d=2**30, sketch=2**30, tile=16),
        r"17 x 1073741824.*at most 1010580540",
    ),
    "a budget that its precision cannot meet": (
        lambda: terms(masking="gaussian", leakage_bits=1e-12, precision=1e-9),
        r"1e-12 bits.*squared clip norms; the precision asked for is 1e-09",
    ),
    "a leakage budget of nothing": (lambda: terms(masking="gaussian", leakage_bits=0.0), "bits"),
    "a leakage budget of NaN": (lambda: terms(masking="gaussian", leakage_bits=math.nan), "bits"),
    "the least leakage budget": (lambda: terms(masking="gaussian", leakage_bits=5e-324), "bits"),
    "a leakage budget near it": (lambda: terms(masking="gaussian", leakage_bits=1e-318), "bits"),
    "a precision below zero": (lambda: terms(masking="gaussian", precision=-1.0), "precision"),
    "an id that is too short": (lambda: replace(federation(), id=b"i" * 31), "got 31"),
    "no id": (lambda: replace(federation(), id=b""), "got 0"),
    "an expiry before all time": (lambda: replace(federation(), expires=0), "got 0"),
    "confirmation by nobody known": (lambda: terms(confirm="auditors"), "'auditors'"),
    "Byzantine witnesses below zero": (lambda: terms(witness_f=-1), "witness_f=-1"),
    "witnesses to confirm, and none": (
        lambda: federation(confirm="witnesses"),
        "more witnesses than witness_f = 0; 0 are",
    ),
    "no more witnesses than may be Byzantine": (
        lambda: witnessed(2, confirm="both", witness_f=2),
        "'both' needs more witnesses than witness_f = 2; 2 are",
    ),
    "witnesses whom nobody asks": (
        lambda: witnessed(2),
        "2 witnesses are enrolled, and confirm = 'clients'",
    ),
    "witnesses where nobody confirms": (lambda: witnessed(1, confirm="none"), "confirm = 'none'"),
    "a witness that is also a client": (
        lambda: replace(
            witnessed(1, confirm="both"), witnesses=(Member("witness-0", bytes([3]) * 32),)
        ),
        "own key",
    ),
    "a witness with a worker's name": (
        lambda: Federation(
            terms(confirm="both"),
            members(7),
            members(1, kind="worker", first=100),
            AUTHORITY,
            ID,
            witnesses=(Member("worker-0", b"w" * 32),),
        ),
        "own name",
    ),
    "a policy for shards that does not fit into a charter": (
        lambda: replace(federation(7, 2), shard_policy="#" * 2**14 + "\n"),
        "shard_policy has at most 16384 bytes; got 16385",
    ),
    "two clients of one name": (
        lambda: Federation(
            terms(), (*members(5), replace(members(6)[5], name="client-0")), (), AUTHORITY, ID
        ),
        "own name",
    ),
    "two clients of one key": (
        lambda: Federation(
            terms(), (*members(5), replace(members(6)[5], key=bytes(32))), (), AUTHORITY, ID
        ),
        "own key",
    ),
    "a client that is also a worker": (
        lambda: Federation(terms(), members(7), (Member("worker-0", bytes(32)),), AUTHORITY, ID),
        "own key",
    ),
    "a worker with a client's name": (
        lambda: Federation(terms(), members(7), (Member("client-0", b"w" * 32),), AUTHORITY, ID),
        "own name",
    ),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_an_impossible_config_states_its_numbers(what):
    make, numbers = IMPOSSIBLE[what]
    with pytest.raises(ConfigError, match=numbers):
        make()


@pytest.mark.parametrize("f", [0, 1, 2, 10])
@pytest.mark.parametrize(("rule", "over"), [({}, 2), (PAPER, 3)])
def test_a_federation_is_as_large_as_its_rule_needs(rule, over, f):
    n = 2 * f + over
    assert federation(n, f=f, **rule).terms.least(f) == n
    with pytest.raises(ConfigError, match=f"needs at least {n} clients; got n={n - 1}, f={f}"):
        federation(n - 1, f=f, **rule)


@pytest.mark.parametrize(("n", "absent"), [(7, 2), (5, 1), (4, 0)])
def test_how_many_may_be_absent_with_one_byzantine_client(n, absent):
    """As docs/operations.md has it: the rule needs 2f + 2 updates, and the outcome its quorum."""
    few = federation(n, f=1)
    (clients,) = electorates(few)
    assert min(n - few.terms.least(1), clients.silent) == absent


def test_k_may_be_anything_from_f_plus_2_to_n_minus_f():
    for k in range(4, 8):
        assert federation(9, f=2, **keeping(k)).terms.options.k == k


CHANGES = {
    "manifest": Manifest.flat(5_001),
    "f": 2,
    "masking": "gaussian",
    "rule": "another",
    "pre": ("nnm", "arc"),
    "options": rules.Options(iterations=33),
    "client_momentum": 0.0,
    "clip_norm": 2.0,
    "leakage_bits": 2e-3,
    "precision": 2e-3,
    "tile": 99,
    "disclose_selection": True,
    "disclose_values": True,
    "distances": "inside",
    "workers": 3,
    "sketch": 16_384,
    "verify": False,
    "optimiser": Optimiser(learning_rate=0.5),
    "confirm": "none",
    "witness_f": 1,
    "upload": "int8",
    "report_metrics": ("loss",),
    "most_loss": 4.0,
    "most_examples": 100.0,
}


def test_the_digest_binds_every_term(monkeypatch):
    monkeypatch.setitem(rules.RULES, "another", rules.RULES[rules.DEFAULT])
    fields = {field.name for field in dataclasses.fields(Terms)}
    assert fields <= set(CHANGES), "a new field needs a line in the table"
    base = federation(7, 3, d=20_000)
    digests = {
        replace(base, terms=replace(base.terms, **{name: CHANGES[name]})).digest()
        for name in fields
    }
    assert len(digests | {base.digest()}) == len(fields) + 1


# A composition that takes each option, and another value of it than the usual one.
OPTIONS = {
    "k": ("multi-krum", 4),
    "neighbours": ("multi-krum", 4),
    "root": ("fltrust", "client-2"),
    "bucket": ("bucketing+mean", 3),
    "radius": ("clip+mean", 0.5),
    "centre": ("centred-clipping", "medoid"),
    "iterations": ("geometric-median", 5),
    "smoothing": ("geometric-median", 0.5),
    "beta": ("trimmed-mean", 0.25),
}


@pytest.mark.parametrize("name", [each.name for each in dataclasses.fields(rules.Options)])
def test_the_digest_binds_every_option(name):
    defence, value = OPTIONS[name]
    root = {"root": "client-1"} if defence == "fltrust" else {}
    digests = set()
    for asked in (root, {name: value}):
        composition = rules.parse(defence, rules.Options(**asked))
        named = {"rule": composition.name, "pre": composition.pre}
        digests.add(federation(12, options=composition.options, **named).digest())
    assert len(digests) == 2


def test_the_digest_binds_the_roster():
    base = federation(7, 2)
    others = (
        replace(base, clients=members(8)),
        replace(base, clients=base.clients[::-1]),
        replace(base, clients=(*base.clients[:-1], Member("client-6", b"k" * 32))),
        replace(base, clients=(*base.clients[:-1], Member("other", base.clients[-1].key))),
        replace(base, workers=base.workers[::-1]),
        replace(base, workers=base.workers[:1]),
    )
    assert len({each.digest() for each in (base, *others)}) == 7


def test_the_digest_binds_who_decides_and_who_is_out():
    base = federation(7, 2)
    others = (
        replace(base, authority=b"b" * 32),
        replace(base, revision=2),
        replace(base, revoked=(Member("mallory", b"m" * 32),)),
        replace(base, successors=(b"s" * 32,)),
        replace(base, initial=b"i" * 32),
        replace(base, id=b"j" * 32),
        replace(base, expires=2**31),
        replace(base, expires=2**31 + 1),
        replace(base, shard_policy="version = 1"),
        replace(base, shard_policy="version = 1\n"),
    )
    assert len({each.digest() for each in (base, *others)}) == 11


def test_the_digest_binds_the_witnesses():
    base = witnessed(3, confirm="both")
    others = (
        replace(base, witnesses=base.witnesses[::-1]),
        replace(base, witnesses=base.witnesses[:2]),
        replace(base, witnesses=(*base.witnesses[:2], Member("witness-2", b"k" * 32))),
        replace(base, terms=replace(base.terms, confirm="witnesses")),
    )
    assert len({each.digest() for each in (base, *others)}) == 5


@given(n=st.integers(3, 40), f=st.integers(0, 18))
def test_clients_of_any_federation_can_agree_and_f_may_be_silent_iff_n_is_above_3f(n, f):
    """Whatever exists can have a quorum; only above 3f it has one without f clients."""
    try:
        (clients,) = electorates(federation(n, f=f))
    except ConfigError:
        assert n < 2 * f + 2
        return
    assert 0 <= clients.silent == n - clients.quorum
    assert (clients.silent >= f) == (n > 3 * f)


def test_a_revoked_key_never_returns():
    base = federation(7, 2)
    for former in (Member("client-0", b"m" * 32), Member("new name", base.clients[0].key)):
        with pytest.raises(ConfigError, match="occurs twice"):
            replace(base, revoked=(former,))
    with pytest.raises(ConfigError, match="count from 1"):
        replace(base, revision=0)
    with pytest.raises(ConfigError, match="occurs twice"):
        replace(witnessed(1, confirm="both"), revoked=(members(1, kind="witness", first=200)[0],))


def test_what_cannot_follow_a_revision():
    base = replace(federation(7, 2), revoked=(Member("mallory", b"m" * 32),))
    newer = replace(base, revision=2)
    newer.require_follows(base)
    for change, why in (
        ({"revision": 1}, "does not replace"),
        ({"authority": b"b" * 32}, "does not replace"),
        ({"id": b"j" * 32}, f"of the federation {'6a' * 32}, not of {'69' * 32}"),
        ({"initial": b"i" * 32}, "another model"),
        ({"terms": replace(base.terms, manifest=Manifest.flat(51))}, "another model"),
        ({"terms": replace(base.terms, optimiser=Optimiser("sgd"))}, "kind of optimiser"),
        ({"revoked": ()}, "stays revoked"),
        ({"revoked": (Member("mallory", b"n" * 32),)}, "stays revoked"),
    ):
        with pytest.raises(ConfigError, match=why):
            replace(newer, **change).require_follows(base)


def test_a_succession_binds_both_ends():
    pairs = [(b"k" * 32, b"i" * 32), (b"k" * 32, b"j" * 32), (b"l" * 32, b"i" * 32)]
    assert len({succession(*pair) for pair in pairs}) == 3


def test_the_manifest_says_what_coordinates_mean():
    manifest = Manifest((Tensor("w", (3, 4)), Tensor("b", (3,)), Tensor("scale", ())))
    assert manifest.dimension == 16
    digests = {
        each.digest()
        for each in (
            manifest,
            Manifest(manifest.tensors[::-1]),
            Manifest((Tensor("w", (4, 3)), *manifest.tensors[1:])),
            Manifest((Tensor("v", (3, 4)), *manifest.tensors[1:])),
            Manifest((Tensor("w", (3, 4), "float16"), *manifest.tensors[1:])),
            Manifest.flat(16),
        )
    }
    assert len(digests) == 6


@pytest.mark.parametrize(
    "make",
    [
        lambda: federation(7),
        lambda: federation(9, 2, masking="gaussian", f=3, disclose_selection=True, **keeping(5)),
        lambda: federation(9, rule="krum", pre=("nnm", "bucketing"), client_momentum=0.5),
        lambda: federation(7, clip_norm=0.5, tile=3),
        lambda: federation(7, clip_norm=1),
        lambda: federation(7, 2, masking="gaussian", leakage_bits=1, precision=1),
        lambda: replace(witnessed(3, confirm="both", witness_f=2), expires=2**40),
        lambda: witnessed(1, confirm="witnesses"),
    ],
)
def test_a_federation_survives_its_encoding(make):
    made = make()
    decoded = decode(Federation, encode(made))
    assert decoded == made
    assert decoded.digest() == made.digest()


def test_equal_terms_have_equal_digests():
    """1 == 1.0, whichever of them a caller writes."""
    assert federation(7, clip_norm=1) == federation(7, clip_norm=1.0)
    assert federation(7, clip_norm=1).digest() == federation(7, clip_norm=1.0).digest()


def test_an_impossible_federation_does_not_decode():
    raw = encode(federation(9, f=3)).replace(pack((3).to_bytes(8, "big")), pack(bytes(7) + b"\x09"))
    with pytest.raises(MalformedMessage, match="n=9, f=9"):
        decode(Federation, raw)


def test_a_manifest_of_absurd_size_does_not_decode():
    """2^1260 values fit no float: still a message or MalformedMessage, and nothing else."""
    label, body = unpack(encode(terms(masking="gaussian")))
    _, *rest = unpack(body)
    shape = pack(*[(2**63).to_bytes(8, "big")] * 20)
    absurd = pack(pack(pack(b"w", shape, b"float32")))
    with pytest.raises(MalformedMessage):
        decode(Terms, pack(label, pack(absurd, *rest)))


@given(d=st.integers(1, 2_000), tile=st.integers(1, 600))
def test_tiles_cut_an_update_into_parts(d, tile):
    tiling = terms(d=d, tile=tile).tiling
    parts = [tiling.part(index) for index in range(tiling.count)]
    covered = np.concatenate([np.arange(d)[part] for part in parts])
    assert np.array_equal(covered, np.arange(d))
    lengths = [tiling.size(index) for index in range(tiling.count)]
    assert lengths == [part.stop - part.start for part in parts]
    assert all(length == tile for length in lengths[:-1])
    assert 1 <= lengths[-1] <= tile


@pytest.mark.parametrize("clients", [5, 64, 65, 128, 200])
@pytest.mark.parametrize("tile", [DEFAULT_TILE, 2**18, 3 * 2**16])
def test_passes_go_by_pieces_of_tiles_that_all_clients_fit_in(clients, tile):
    agreed = federation(clients, d=2**19 + 5, tile=tile, sketch=2**14)
    piece = agreed.pieces.tile
    assert clients * piece <= MAX_PIECE_VALUES
    assert tile % piece == 0
    assert piece == tile or piece % 16 == 0
    assert piece == tile or clients * tile > MAX_PIECE_VALUES
    assert agreed.pieces.length == 2**19 + 5
    assert (agreed.columns.length, agreed.columns.tile) == (2**14, piece)


@pytest.mark.parametrize(("d", "tile"), [(1, 1), (5, 8), (4096, 4096), (4097, 8192)])
def test_a_short_update_has_a_short_tile(d, tile):
    """Groups of rows are made by the tile's width."""
    assert default_tile(d) == tile


@pytest.mark.parametrize(
    ("value", "power"),
    [
        (1.0, 1.0),
        (1.0000001, 2.0),
        (0.75, 1.0),
        (0.5, 0.5),
        (3.0, 4.0),
        (1e-6, 2.0**-19),
        (0.0, 2.0**-126),
        (2.0**-149, 2.0**-126),
        (2.0**-126, 2.0**-126),
        (2.0**1023, 2.0**1023),
    ],
)
def test_power_of_two_above(value, power):
    assert power_of_two_above(value) == power


@given(st.floats(2.0**-126, 2.0**1023))
def test_a_power_of_two_is_at_most_twice_the_value(value):
    power = power_of_two_above(value)
    assert value <= power < 2 * value or power == value
    assert math.frexp(power)[0] == 0.5


def test_the_clipping_norm_is_the_configured_one_or_from_the_median():
    assert terms(clip_norm=0.3).clipping_norm(np.array([1.0, 2.0, 3.0])) == 0.3
    assert terms().clipping_norm(np.array([1.0, 1.0, 1e30])) == 4.0
    assert terms().clipping_norm(np.array([1.0, 1.1, 1e30])) == 8.0
    assert terms().clipping_norm(np.array([0.0, 0.0, 1.0])) == 2.0**-126


def test_f_clients_cannot_move_the_clipping_norm_beyond_the_honest_ones():
    rng = np.random.default_rng(0)
    for f in range(5):
        honest = rng.uniform(1, 2, size=f + 3)
        for lie in (0.0, 1e-30, 1e30, 3e38):
            stated = rng.permutation(np.concatenate([honest, np.full(f, lie)]))
            assert 4 <= terms(f=f).clipping_norm(stated) <= 8


def test_sigma_keeps_the_leakage_within_its_budget():
    agreed = terms(d=1_000, masking="gaussian", leakage_bits=1e-3)
    assert bound_bits(agreed.sigma, variance=1 / 1_000, d=1_000) <= 1e-3
