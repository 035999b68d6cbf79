"""Goes on after the state of an enclave was lost, in files that people carry.

client      Testimony: how it voted in the round that was open, or that it never will
authority   Abandon: the round is given up; the testimonies prove that nothing was released
enclave     a new one begins behind it, in an empty folder
client      follows the proof, or its owner's word

federation.abandon                what the authority has signed
federation.abandon.safetensors    the model that the next round starts from
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ostraka import files
from ostraka.attestation.policy import Policy
from ostraka.attestation.verify import require_confirmed
from ostraka.client.memory import Memory, MemoryFile
from ostraka.client.voting import Record
from ostraka.config import Federation
from ostraka.crypto.identity import Identity, check_signature
from ostraka.encoding import UNSIGNED, digest, encode
from ostraka.errors import ConfigError, OpenError, StateError
from ostraka.messages import Abandon, Charter, Confirmation, first_model, genesis
from ostraka.protocol.confirm import electorates, is_proved


@dataclass(frozen=True)
class Testimony:
    """How a client voted in the round after the last receipt that it holds.

    memory: what it knows of the chain; it holds no secret.
    """

    LABEL: ClassVar[bytes] = b"ostraka/testimony/v1"

    memory: Memory
    confirmation: Confirmation

    @property
    def previous(self) -> bytes:
        last = self.memory.last
        return digest(last) if last is not None else genesis(self.memory.electors)

    @property
    def model(self) -> bytes:
        last = self.memory.last
        return last.model if last is not None else first_model(self.memory.federation)


def give_testimony(file: MemoryFile, identity: Identity, record: Record | None = None) -> Testimony:
    """Say how this client voted. If it has not, it votes now: for no outcome of that round, ever.

    record: of a witness. Raises StateError for a client that knows no federation yet, or whose
    record says otherwise.
    """

    def vote(stored: Memory | None) -> Memory:
        if stored is None:
            raise StateError(file.path, "is missing: this client has taken part in nothing yet")
        role = stored.role(identity)
        role = role.vote_for_none(role.next_number)
        voted = Memory.of(role, stored.charter, stored.sent)
        if record is not None:
            vote = role.confirmation()
            record.add(vote.number, vote.proposal, Testimony(voted, vote).previous)
        return voted

    memory = file.change(vote)
    return Testimony(memory, memory.role(identity).confirmation())


def abandon(
    charter: Charter, testimonies: Sequence[Testimony], authority: Identity
) -> tuple[Abandon, bool]:
    """Give up the round after the last receipt that most of these clients hold.

    charter: the newest. Returns the signed message, and whether it is proved that no outcome was
    released. Raises ConfigError.
    """
    ours = {
        each.confirmation.voter: each for each in testimonies if _is_of(each, charter.federation)
    }
    if not ours:
        raise ConfigError("at least one client of this federation has to say where the chain is")
    places = Counter((each.confirmation.number, each.previous) for each in ours.values())
    (most, count), *others = places.most_common()
    if others and others[0][1] == count:
        raise ConfigError(
            "as many clients say that the chain is at one place as at another: bring the "
            "testimonies of more"
        )
    agreeing = [each for each in ours.values() if (each.confirmation.number, each.previous) == most]
    first = agreeing[0]
    signed = authority.sign(
        Abandon(
            number=first.confirmation.number,
            previous=first.previous,
            electors=first.memory.electors,
            model=first.model,
            votes=tuple(each.confirmation for each in agreeing),
            signature=UNSIGNED,
        )
    )
    proved = is_proved(signed, signed.electors)
    if not proved and charter.federation.revision > signed.revision:
        raise ConfigError(
            f"{len(agreeing)} votes do not prove that nothing of round {signed.number} was "
            f"released, and revision {charter.federation.revision} may have been announced in it: "
            "bring the testimonies of more clients, or begin a new federation, with a new id"
        )
    return signed, proved


def _is_of(testimony: Testimony, federation: Federation) -> bool:
    """Whether a voter of this federation has signed it, about itself.

    Who is asked to confirm follows from the receipt that it holds, and not from its word.
    """
    memory, vote = testimony.memory, testimony.confirmation
    if memory.last is not None and memory.last.federation != memory.electors.digest():
        return False
    members = (member for each in electorates(memory.electors) for member in each.voters)
    key = {member.name: member.key for member in members}.get(vote.voter)
    enrolled = key in {member.key for member in federation.everyone}
    try:
        check_signature(vote, key or b"")
    except OpenError:
        return False
    ids = {memory.federation.id, memory.electors.id, vote.federation}
    return enrolled and memory.client == vote.voter and ids == {federation.id}


def accept(file: MemoryFile, identity: Identity, signed: Abandon, policy: Policy) -> Memory:
    """Go on behind an abandoned round by the owner's word, proved or not.

    Raises ReceiptRefused, or AttestationRefused if the policy allows no such voters.
    """
    require_confirmed(signed.electors, policy.federation)

    def follow(stored: Memory | None) -> Memory:
        if stored is None:
            raise StateError(file.path, "is missing: a newcomer needs nobody's word")
        role = stored.role(identity).abandon(signed, by_owners_word=True)
        return Memory.of(role, stored.charter, stored.sent)

    return file.change(follow)


def write(path: Path, message: Abandon | Testimony) -> None:
    """Replace the file in one step."""
    files.write(path, [encode(message)], mode=0o644)
