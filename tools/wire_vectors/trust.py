"""Areas: digests, the round, attestation and the schema of gRPC."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from ostraka import merkle
from ostraka.arrays import Float32
from ostraka.attestation.claims import Binding, Claims, DeputyBinding, KeyBinding
from ostraka.attestation.simulated_pki import SigningKey
from ostraka.config import succession
from ostraka.crypto import hpke
from ostraka.crypto.sealing import Sealer
from ostraka.enclave import link, migration, peering
from ostraka.enclave.measurement import Measurement, measure
from ostraka.enclave.platform.interface import sealing_key
from ostraka.enclave.platform.key_release import KEY_RELEASE, report_data_for
from ostraka.enclave.storage.state import Estate
from ostraka.encoding import UNSIGNED, digest, encode, pack
from ostraka.messages import (
    Deputy,
    Evidence,
    ShardAdmitted,
    ShardHello,
    ShardWelcome,
    genesis,
    vector_digest,
)
from ostraka.protocol.confirm import Electorate, leaf, outcome_digest
from ostraka.transport import ostraka_pb2 as wire
from wire_vectors.notation import (
    Drawn,
    HybridSeeds,
    Seals,
    Vector,
    fixed,
    hashed,
    identity,
    sha256,
    vector,
)
from wire_vectors.played import Round, names


def digests(played: Round, seals: Seals) -> list[Vector]:
    federation, receipt = played.federation, played.certified.receipt
    model, selected = played.proposed.state.model, played.proposed.selected
    leaves = [leaf(each.header) for each in played.uploads]
    salt = played.proposed.pending.salt
    chosen = pack(*(name.encode() for name in selected))
    return [
        *_messages_digests(played),
        hashed(
            "the digest before the first receipt",
            "Confirmed rounds 3: the chain names its founding charter",
            pack(b"ostraka/genesis/v1", federation.digest()),
            genesis(federation),
        ),
        hashed(
            "a round key's fingerprint",
            "Bytes: the hash by which a header names the round's key",
            b"ostraka/hybrid-key/v1" + fixed("a public key", 64),
            hpke.fingerprint(fixed("a public key", 64)),
        ),
        *_trees(),
        _model("the model after the round", model.tolist(), model),
        _model(
            "a model of three parts",
            "value k is k mod 251, of 32,769",
            (np.arange(32_769) % 251).astype("<f4"),
        ),
        vector(
            "the cohort of the round",
            "Confirmed rounds 2: the tree over the signed headers, in the roster's order",
            {"leaves": leaves},
            {"root": receipt.cohort},
        ),
        hashed(
            "the commitment to the selection",
            "Receipts: who was selected, under a salt that stays inside",
            pack(b"ostraka/selection/v1", played.selection_salt, chosen),
            receipt.commitment,
            salt=played.selection_salt,
            selected=selected,
        ),
        hashed(
            "what a proposal shows of a receipt",
            "Confirmed rounds 2: H(salt, receipt)",
            pack(b"ostraka/outcome/v1", salt, encode(receipt)),
            outcome_digest(salt, receipt),
            salt=salt,
        ),
        hashed(
            "a succession",
            "Bytes: the enclave with this key may hand its state to the code of this id",
            pack(b"ostraka/succession/v1", identity("enclave").public, fixed("a code id")),
            succession(identity("enclave").public, fixed("a code id")),
        ),
        *_between_lead_and_shard(played),
    ]


def _between_lead_and_shard(played: Round) -> list[Vector]:
    """By these every message about a closed round names what it is about."""
    round_id, headers = played.offer.round_id, [each.header for each in played.uploads]
    uploads = [link.Upload(each.client, each.upload_id) for each in headers]
    names = [part for each in headers for part in (each.client.encode(), each.upload_id)]
    arrays = [np.array(each, "<f8") for each in ((1.0, 0.5, 1.0), (0.5, 0.5, 0.0), (0.5, 0.5, 0.0))]
    cohort = link.cohort_digest(round_id, uploads)
    plan = link.Combine(round_id, cohort, bytes(32), (), False, 0.0, "", 0)
    return [
        hashed(
            "the cohort, as lead and shard name it",
            "Bytes: the round id, and client and upload id of every row, in their order",
            pack(b"ostraka/shard/cohort/v1", round_id, *names),
            cohort,
        ),
        hashed(
            "a plan, as lead and shard name it",
            "Bytes: Combine with zeros in the place of this digest, and its arrays of float64, the "
            "lowest byte first",
            pack(b"ostraka/shard/plan/v1", encode(plan), *(each.tobytes() for each in arrays)),
            link.plan_digest(plan, arrays),
            arrays=arrays,
        ),
    ]


def _messages_digests(played: Round) -> list[Vector]:
    """By these digests other messages name them; messages.json has the bytes."""
    named = {
        "Manifest": played.federation.terms.manifest.digest(),
        "Federation": played.federation.digest(),
        "ChannelOffer": played.lines[0].accept.offer,
        "Receipt": digest(played.certified.receipt),
        "Proposal": played.votes[0].proposal,
    }
    return [
        vector(
            f"the digest of a {name}",
            "Bytes: SHA-256 of the encoding",
            {"see": name},
            {"sha256": each},
        )
        for name, each in named.items()
    ]


def _trees() -> list[Vector]:
    contents = [bytes([ord("a") + place]) for place in range(5)]
    leaves = [merkle.leaf(each) for each in contents]
    trees = [
        vector(
            f"a tree of {count}",
            "Receipts: leaves H(0, content), nodes H(1, left, right); alone, a node moves up",
            {"contents": contents[:count]},
            {"leaves": leaves[:count], "root": merkle.root(leaves[:count])},
        )
        for count in (0, 1, 2, 3, 5)
    ]
    paths = [
        vector(
            f"the path of leaf {place} of 5",
            "Receipts: neighbours from the leaf up, each behind its side, 0 left and 1 right",
            {"leaf": leaves[place], "root": merkle.root(leaves)},
            {"path": merkle.path_to(leaves, leaves[place])},
        )
        for place in (2, 4)
    ]
    return trees + paths


def _model(name: str, values: Any, model: Float32) -> Vector:
    shows = "Receipts: a label, d in 8 bytes, and the root over parts of 16,384 values"
    given = {"values": values, "label": "ostraka/vector/v2"}
    return vector(name, shows, given, {"digest": vector_digest(model)})


def rounds(played: Round, seals: Seals) -> list[Vector]:
    proposed, certified = played.proposed, played.certified
    federation = played.federation
    parties = ("authority", "enclave", *names("client"), *names("worker"))
    return [
        vector(
            party,
            "Bytes: an Ed25519 identity; it signs encodings that end with 64 zeros",
            {"Ed25519 seed": fixed(f"{party}'s Ed25519 seed")},
            {"public": identity(party).public},
        )
        for party in parties
    ] + [
        vector(
            "the round's key",
            "Bytes: ML-KEM-768 and X25519, public keys one after the other",
            vars(played.key),
            {"public": played.offer.key},
        ),
        vector(
            "updates and their headers",
            "Five steps: what clients send; tile keys are drawn by them",
            {
                "updates": [each.update for each in played.uploads],
                "tile_keys": [each.key for each in played.uploads],
                "upload_ids": [each.header.upload_id for each in played.uploads],
            },
            {
                "signatures": [each.header.signature for each in played.uploads],
                "tiles": [
                    [tile.ciphertext for tile in each.submitted.sealed.tiles]
                    for each in played.uploads
                ],
            },
        ),
        vector(
            "the outcome",
            "Five steps: what multi-krum(k=2) makes of them, the aggregate and the new model",
            {"products": played.measured.gram.products, "scales": played.measured.scales},
            {
                "selected": proposed.selected,
                "weights": proposed.weights,
                "aggregate": proposed.aggregate,
                "model": proposed.state.model,
                "receipt": digest(certified.receipt),
            },
        ),
        vector(
            "votes",
            "Confirmed rounds 4 and 5: each client signs the proposal's digest",
            {"federation": federation.id, "number": 1, "proposal": played.votes[0].proposal},
            {"votes": {each.voter: each.signature for each in played.votes}},
        ),
        vector(
            "quorums",
            "Confirmed rounds: the least number of voters above (n + f)/2",
            {"n, f": [[3, 0], [4, 1], [5, 1], [7, 2], [10, 3]]},
            {
                "quorums": [
                    Electorate(federation.clients[:1] * n, f).quorum
                    for n, f in ((3, 0), (4, 1), (5, 1), (7, 2), (10, 3))
                ]
            },
        ),
    ]


def attestations(played: Round, seals: Seals) -> list[Vector]:
    binding = Binding(
        fixed("a client's nonce"),
        fixed("a public key", 64),
        identity("enclave").public,
        played.federation.digest(),
    )
    keys = KeyBinding(binding.nonce, binding.receipt_key, binding.federation)
    deputed = DeputyBinding(
        binding.nonce, binding.receipt_key, identity("shard").public, binding.federation
    )
    claims = Claims(
        "sgx",
        (("mrenclave", fixed("mrenclave")), ("mrsigner", fixed("mrsigner"))),
        binding.report_data(),
        False,
    )
    measured = [part for name, value in claims.measurements for part in (name.encode(), value)]
    released = fixed("a public key", 64)
    return [
        hashed(
            "report data of a round",
            "Bytes: what evidence is about, for a client that seals an update",
            pack(b"ostraka/report-data/v1", *vars(binding).values()),
            binding.report_data(),
            "sha512",
        ),
        hashed(
            "report data of a key",
            "Bytes: what evidence is about, for voters and workers",
            pack(b"ostraka/report-data/key/v1", *vars(keys).values()),
            keys.report_data(),
            "sha512",
        ),
        hashed(
            "report data of a deputy",
            "Bytes: what a shard's evidence is about, for workers",
            pack(b"ostraka/report-data/deputy/v1", *vars(deputed).values()),
            deputed.report_data(),
            "sha512",
        ),
        hashed(
            "a code id",
            "Bytes: one name for all that was measured of the code",
            pack(b"ostraka/code-id/v1", b"sgx", *measured),
            claims.code_id,
        ),
        hashed(
            "report data of a key release",
            "Bytes: what a request to a broker is about",
            pack(KEY_RELEASE.encode(), released),
            report_data_for(released),
            "sha512",
        ),
        *_measurements(),
        *_migration(seals),
        *_peering(played, seals),
        *_derived_keys(),
    ]


def _measurements() -> list[Vector]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "__init__.py").write_bytes(b"x = 1\r\n")
        code = measure(Path(folder)).code
    whole = Measurement(code, (("python", "3.11.0"), ("numpy", "2.0.0")), 1)
    return [
        hashed(
            "the measured code",
            "Bytes: names and contents of the measured files, here one that says x = 1",
            pack(b"ostraka/measured-code/v2", b"__init__.py", b"x = 1\n"),
            code,
        ),
        hashed(
            "the measurement",
            "Bytes: the code, and names and versions of what is beside it",
            pack(b"ostraka/measurement/v1", code, b"python", b"3.11.0", b"numpy", b"2.0.0"),
            whole.digest,
        ),
    ]


def _migration(seals: Seals) -> list[Vector]:
    to, federation = HybridSeeds(fixed("ML-KEM", 64), fixed("X25519")), fixed("a federation")
    public, secret = to.key().public, fixed("an estate's key")
    parties = fixed("origin's code id"), fixed("a code id"), federation, hpke.fingerprint(public)
    estate = Estate(fixed("a receipt key's seed"), (b"a record",), b"a state")
    parcel = migration.Parcel(
        *parties,
        sealed_key=seals.seal(
            "the key of an estate",
            "Bytes: an enclave's state on its way to other code",
            to,
            secret,
            pack(b"ostraka/migration-key/v2", *parties),
        ),
        estate=Sealer(secret, parties[1], Drawn("an estate")).seal("estate", encode(estate)),
    )
    if migration._open(parcel, to.key()) != estate:
        raise SystemExit("the parcel does not open")
    return [
        hashed(
            "report data of a request for a state",
            "Bytes: the key to seal it to, and the federation",
            pack(b"ostraka/migration/v2", fixed("a public key", 64), federation),
            migration._request_data(fixed("a public key", 64), federation),
            "sha512",
        ),
        hashed(
            "report data of a bundle",
            "Bytes: the digest of the parcel",
            pack(b"ostraka/migration-bundle/v2", digest(parcel)),
            migration._bundle_data(parcel),
            "sha512",
            sealed_estate=parcel.estate,
        ),
    ]


def _peering(played: Round, seals: Seals) -> list[Vector]:
    lead, shard, federation = identity("enclave"), identity("shard"), played.federation
    to, secret = HybridSeeds(fixed("a shard", 64), fixed("a shard")), fixed("a peers' secret")
    none, evidence = Evidence("", b"", ()), Evidence("sgx", fixed("a quote", 5), ())
    welcome = ShardWelcome(fixed("a lead's nonce"), federation.id, federation.revision)
    hello = ShardHello(
        federation.digest(),
        federation.revision,
        1,
        shard.public,
        to.key().public,
        fixed("a shard's nonce"),
        none,
        UNSIGNED,
    )
    first = pack(b"ostraka/report-data/shard-hello/v1", encode(welcome), encode(hello))
    said = shard.sign(replace(hello, evidence=evidence))
    info = pack(b"ostraka/peer-secret/v1", encode(welcome), encode(said))
    shows = "Bytes: to the shard's key, under pack(ostraka/peer-secret/v1, welcome, hello)"
    sealed_secret = seals.seal("the secret of a lead and a shard", shows, to, secret, info)
    deputy = lead.sign(Deputy(federation.id, 1, shard.public, UNSIGNED))
    admitted = ShardAdmitted(lead.public, sealed_secret, deputy, none, UNSIGNED)
    second = pack(
        b"ostraka/report-data/shard-admitted/v1", encode(welcome), encode(said), encode(admitted)
    )
    answered = lead.sign(replace(admitted, evidence=evidence))
    if to.key().open(sealed_secret, info=peering._info(welcome, said)) != secret:
        raise SystemExit("the secret of a lead and a shard does not open")
    to_shard, to_lead = peering._keys(secret, welcome, said, answered)
    ends = peering.PeerChannel(to_shard, to_lead), peering.PeerChannel(to_lead, to_shard)
    texts = (b"", b"a second message")
    return [
        hashed(
            "report data of a shard's hello",
            "Bytes: the welcome, and the hello without evidence and signature",
            first,
            peering._hello_data(welcome, hello),
            "sha512",
        ),
        hashed(
            "report data of a lead's answer",
            "Bytes: the welcome, the hello, and the answer without evidence and signature",
            second,
            peering._admitted_data(welcome, said, admitted),
            "sha512",
        ),
        vector(
            "the channel of a lead and a shard",
            "Bytes: keys are HKDF-SHA256 of the secret, without salt; info is the label and the "
            "encodings of welcome, hello and answer, packed; the nonce is the message's number",
            {
                "secret": secret,
                "to_shard": "ostraka/peer-channel/v1/to-shard",
                "to_lead": "ostraka/peer-channel/v1/to-lead",
                "sha256 of the packed encodings": sha256(
                    pack(encode(welcome), encode(said), encode(answered))
                ),
                "messages": texts,
            },
            {
                "keys": [to_shard, to_lead],
                "sealed to the shard": [ends[0].seal(text) for text in texts],
                "sealed to the lead": [ends[1].seal(text) for text in texts],
            },
        ),
    ]


def _derived_keys() -> list[Vector]:
    secret = fixed("a platform's secret")
    platforms = ("unsafe-development", "sev-guest", "gramine-mrenclave", "key-release")
    sealing = [
        vector(
            f"the sealing key of {each}",
            "Bytes: HKDF-SHA256 of the platform's secret, without salt",
            {"secret": secret, "info": f"ostraka/sealing-key/{each}/v1"},
            {"key": sealing_key(secret, f"ostraka/sealing-key/{each}/v1".encode())},
        )
        for each in platforms
    ]
    simulated = vector(
        "a simulated platform's root",
        "Bytes: 1 + (HKDF-SHA256 of the seed, 48 bytes) mod (n - 1) is the P-256 key",
        {"seed": secret, "info": "ostraka/simulated-key/v1:Root CA"},
        {"public": SigningKey(secret, "Root CA").public},
    )
    return [*sealing, simulated]


def protobuf(played: Round, seals: Seals) -> list[Vector]:
    """The schema: names do not travel, numbers and types do."""
    schema = FileDescriptorProto.FromString(wire.DESCRIPTOR.serialized_pb)
    made = [
        vector(
            message.name,
            "ostraka.proto: the fields of a message; types are 4 uint64, 8 bool, 9 string, 11 a "
            "message, 12 bytes",
            {},
            {each.name: _field(each) for each in message.field},
        )
        for message in schema.message_type
    ]
    calls = {
        call.name: {
            "takes": call.input_type,
            "gives": call.output_type,
            "streams": [call.client_streaming, call.server_streaming],
        }
        for service in schema.service
        for call in service.method
    }
    return [*made, vector("calls", "ostraka.proto: the calls of the service", {}, calls)]


def _field(each: FieldDescriptorProto) -> dict[str, Any]:
    repeated = each.label == FieldDescriptorProto.LABEL_REPEATED
    return {"number": each.number, "type": each.type, "repeated": repeated}
