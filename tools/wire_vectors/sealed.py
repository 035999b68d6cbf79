"""Areas: sealed updates, channels, streams and state."""

import numpy as np

from ostraka import transport
from ostraka.arrays import UInt32
from ostraka.config import Span, Tiling
from ostraka.core import uploads
from ostraka.core.field import P
from ostraka.crypto.aead import SealedGroups, nonce, pair_nonce
from ostraka.crypto.channel import Channel
from ostraka.crypto.sealing import Sealer
from ostraka.crypto.stream import SecretStream, accept, box_muller
from ostraka.crypto.updates import UploadKey, context, rounded, seal, tile_context
from ostraka.encoding import pack
from ostraka.messages import ShareTile
from wire_vectors.notation import DECIMALS, Drawn, Seals, Vector, fixed, identity, sha256, vector
from wire_vectors.played import TILE, D, Line, Round, names, reports, terms, updates


def sealed_updates(played: Round, seals: Seals) -> list[Vector]:
    upload = played.uploads[0]
    tile, ticket = upload.submitted.sealed.tiles[0].ciphertext, fixed("a ticket")
    bound = vector(
        "what an upload is bound to",
        "Sealing: HPKE's info is the header with an empty sealed key and a signature of zeros; "
        "its SHA-256 is the additional data of every tile",
        {"see": "UpdateHeader", "Ed25519 seed": upload.seed},
        {"info": context(upload.header), "additional_data": tile_context(upload.header)},
    )
    lane = vector(
        "a lane with one tile",
        "The upload lane 3 and 4: OSTRAKA, 1, the ticket; then each tile behind its length",
        {"ticket": ticket, "tile": tile},
        {"sent": transport.LANE + ticket + transport.LENGTH.pack(len(tile)) + bytes(tile)},
    )
    formats = (_upload_of(name, played) for name in uploads.FORMATS)
    return [
        bound,
        _ranges(upload.key, tile_context(upload.header)),
        *formats,
        *map(_report, names("client"), reports()),
        lane,
    ]


def _ranges(secret: bytes, bound: bytes) -> Vector:
    """What each of two shards would be given of one upload."""
    key = UploadKey(secret, bound)
    spans = Span(0, 2 * TILE, TILE), Span(2 * TILE, D - 2 * TILE, TILE)
    return vector(
        "the keys of two shards",
        "Sealing: HKDF-SHA256 of the upload's key, with no salt; info is the label, the additional "
        "data, and the first and the number of the shard's tiles, in 8 bytes each",
        {
            "key": secret,
            "additional_data": bound,
            "label": "ostraka/upload-range/v1",
            "tiles": [(span.first, span.tiling.count) for span in spans],
        },
        {"keys": [key.of(span) for span in spans]},
    )


def _report(name: str, values: dict[str, float] | None) -> Vector:
    """What a client seals beside its key under terms that name metrics."""
    asked = terms().asked
    return vector(
        f"the report of {name}",
        "Law 21: a level of 0 to 1000 for each metric that the terms name, in 16 bits; all ones if "
        "the client reports nothing",
        {"names": asked.names, "most": asked.most, "values": values},
        {"sealed": asked.write(values), "levels": asked.read(asked.write(values))},
    )


def _upload_of(name: str, played: Round) -> Vector:
    """The first client's update, in another format."""
    drawn, under, update = Drawn(f"a client that sends {name}"), terms(name), updates()[0]
    encoded = rounded(update, under, drawn)
    rounding = drawn.log[0] if drawn.log else b""
    sealed = seal(
        encoded,
        offer=played.offer,
        terms=under,
        client="client-1",
        identity=identity("client-1"),
        entropy=drawn,
    ).whole()
    return vector(
        f"an upload of {name}",
        "Sealing: AES-256-GCM of each tile under the key of the range of all tiles, its number the "
        "nonce; law 19 for int8, whose words for rounding are the keystream of rounding_key",
        {
            "update": update,
            "rounding_key": rounding,
            "key": drawn.log[-1],
            "additional_data": tile_context(sealed.header),
            "tile": TILE,
        },
        {
            "values": encoded.values.tobytes(),
            "norm": encoded.norm,
            "step": encoded.step,
            "widened": encoded.widened(),
            "tiles": [tile.ciphertext for tile in sealed.tiles],
        },
    )


def sealed_state(played: Round, seals: Seals) -> list[Vector]:
    short, long = b"what is kept", bytes(2**20 + 3)
    return [
        _state("short", short, short, len(short) + 16),
        _state("longer than a segment", long, f"{len(long)} bytes of zeros", len(long) + 32),
    ]


def _state(name: str, content: bytes, written: bytes | str, length: int) -> Vector:
    """length: of the sealed segments."""
    drawn, key = Drawn(f"a sealer of what is {name}"), fixed("a TEE's sealing key")
    blob = Sealer(key, fixed("a code id"), drawn).seal("ledger", content)
    label, size = b"ostraka/sealed-state/v2", length.to_bytes(8, "big")
    return vector(
        f"state on disk, {name}",
        "Bytes: mark, salt and segments of 1 MiB; HKDF-SHA256 with this salt and info",
        {
            "key": key,
            "salt": drawn.log[0],
            "info": pack(label, fixed("a code id"), b"ledger", size),
            "content": written,
        },
        {
            "mark": blob[:18].decode(),
            "blob": blob if len(blob) < 200 else len(blob),
            "sha256": sha256(blob),
        },
    )


def channels(played: Round, seals: Seals) -> list[Vector]:
    first = played.lines[0]
    layout = SealedGroups(Tiling(D, TILE), 130, 4)
    return [
        vector(
            "the channel of worker-1",
            "Bytes: keys are HKDF-SHA256 of the secret, without salt; info is the label and the "
            "transcript, packed; the transcript is the encodings of offer and accept, packed",
            {
                "secret": first.secret,
                "to_worker": "ostraka/channel/v1/to-worker",
                "to_enclave": "ostraka/channel/v1/to-enclave",
                "offer": {"see": "ChannelOffer"},
                "accept": {"see": "ChannelAccept"},
            },
            {
                "opened shares": [_shares_in(first, tile) for tile in first.tiles],
                "sealed shares": [tile.ciphertext for tile in first.tiles],
                "opened answer": first.channel.open_answer(first.answer.ciphertext),
                "sealed answer": first.answer.ciphertext,
            },
        ),
        _at_infinity(played.lines[-1]),
        vector(
            "where groups of rows lie in a tile of shares",
            "Bytes: at most 128 rows and 2^17 values are a group; its nonce is (tile, first row)",
            {"rows": layout.rows, "columns": D, "tile": TILE, "value_bytes": 4},
            {
                "sizes": [layout.size(index) for index in range(3)],
                "groups": [
                    {
                        "tile": index,
                        "first row": group.start,
                        "at": layout.part(index, group).start,
                        "nonce": pair_nonce(index, group.start),
                    }
                    for index in range(3)
                    for group in layout.groups()
                ],
            },
        ),
    ]


def _at_infinity(line: Line) -> Vector:
    if line.seed is None:
        raise SystemExit("the last of three workers has no seed")
    seed, secret = line.channel.open_seed(line.seed.ciphertext), fixed("a channel's secret")
    return vector(
        "the seed of the worker at infinity",
        "Law 8: the last of 2t + 1 workers makes the leading mask itself, and answers with its "
        "matrix. Bytes: under to_worker, with 2^48 - 1 in the place of a tile's number",
        {
            "mask seed": seed,
            "rows": line.offer.rows,
            "columns": D,
            "tile": TILE,
            "secret": secret,
            "transcript": b"a transcript",
        },
        {
            "sealed seed": Channel(secret, b"a transcript").seal_seed(seed),
            "answer": upper_in(line),
        },
    )


def _shares_in(line: Line, tile: ShareTile) -> UInt32:
    width = Tiling(D, TILE).size(tile.index)
    out = np.empty((line.offer.rows, width), "<u4")
    line.channel.shares.open(tile.index, 0, tile.ciphertext, out)
    return out


def upper_in(line: Line) -> UInt32:
    return np.frombuffer(line.channel.open_answer(line.answer.ciphertext), "<u4")


def streams(played: Round, seals: Seals) -> list[Vector]:
    key, stream = fixed("a stream's key"), 5 << 32 | 1
    words = np.array([5, P, 2**31 + 6, 2**32 - 1, P - 1], np.uint32)
    accepted = words.copy()
    count = accept(accepted, P)
    pairs = SecretStream(key).bytes(32)
    return [
        vector(
            "keystream",
            "Sealing: AES-256 in counter mode from block 2 on, the stream's number the nonce",
            {"key": key, "stream": stream, "nonce": nonce(stream)},
            {"bytes": SecretStream(key, stream=stream).bytes(48)},
        ),
        vector(
            "residues",
            "Bytes: little-endian words of 32 bits, of which the fewest low bits count that can "
            "hold modulus - 1; those not below the modulus are left out",
            {"key": key, "stream": stream},
            {
                f"modulo {modulus}": SecretStream(key, stream=stream).uniform(8, modulus)
                for modulus in (P, 12)
            },
        ),
        vector(
            "words that are left out",
            "Bytes: sampling by exact rejection, modulo p",
            {"words": words},
            {"residues": accepted[:count]},
        ),
        vector(
            "normals",
            f"Bytes: Box-Muller of pairs of little-endian words of 64 bits, to {DECIMALS} places",
            {"words": pairs},
            {"normals": box_muller(np.frombuffer(pairs, "<u8").reshape(-1, 2)).round(DECIMALS)},
        ),
    ]
