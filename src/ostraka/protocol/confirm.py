"""Who confirms an outcome, how many have to, and what proves that they did.

Any two quorums of more than (n + f)/2 voters share an honest one, which has one vote for each
number, ever. So of each number at most one outcome is released, whatever a host copies or restores.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from ostraka import merkle
from ostraka.config import Federation, Member
from ostraka.crypto.identity import Identity, check_signature
from ostraka.encoding import UNSIGNED, digest, encode, pack
from ostraka.errors import OpenError, ReceiptRefused
from ostraka.messages import (
    NO_PROPOSAL,
    Abandon,
    Certificate,
    Certified,
    Confirmation,
    Proposal,
    Receipt,
    UpdateHeader,
    Vote,
)

_OUTCOME = b"ostraka/outcome/v1"


@dataclass(frozen=True)
class Electorate:
    """Voters of one kind, of whom at most f are Byzantine or have lost their memory."""

    voters: tuple[Member, ...]
    f: int

    @property
    def quorum(self) -> int:
        """The least number of voters that is more than (n + f)/2."""
        return (len(self.voters) + self.f) // 2 + 1

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(member.name for member in self.voters)

    @property
    def silent(self) -> int:
        """How many voters may be silent for ever, and outcomes are confirmed all the same."""
        return len(self.voters) - self.quorum


def electorates(federation: Federation) -> tuple[Electorate, ...]:
    """Who confirms the number after a receipt that names this federation: a quorum of each."""
    terms = federation.terms
    clients = Electorate(federation.clients, terms.f)
    witnesses = Electorate(federation.witnesses, terms.witness_f)
    return {
        "clients": (clients,),
        "witnesses": (witnesses,),
        "both": (clients, witnesses),
        "none": (),
    }[terms.confirm]


def outcome_digest(salt: bytes, receipt: Receipt) -> bytes:
    """What a proposal shows of a receipt."""
    return hashlib.sha256(pack(_OUTCOME, salt, encode(receipt))).digest()


def leaf(header: UpdateHeader) -> bytes:
    """A signed header, as a leaf of the cohort's tree."""
    return merkle.leaf(encode(header))


def confirm(
    proposal: Proposal | None, federation: bytes, number: int, *, voter: str, identity: Identity
) -> Confirmation:
    """Sign the vote for a number. proposal: None to confirm none of this number.

    The caller has written down, durably, that this is its one vote.
    """
    voted = NO_PROPOSAL if proposal is None else digest(proposal)
    return identity.sign(Confirmation(federation, number, voted, voter, UNSIGNED))


@dataclass
class Ballot:
    """Counts the confirmations of one proposal. electors: the federation whose voters are asked."""

    proposal: Proposal
    electors: Federation
    votes: dict[str, Vote] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.digest = digest(self.proposal)
        self._electorates = electorates(self.electors)
        self._keys = {
            member.name: member.key for each in self._electorates for member in each.voters
        }
        # Counted as votes come: building sets of all voters for each vote is quadratic.
        self._counts = [len(self.votes.keys() & each.names) for each in self._electorates]

    def add(self, confirmation: Confirmation) -> bool:
        """Count a confirmation, and return whether it is a new one. Raises OpenError."""
        key = self._keys.get(confirmation.voter)
        if key is None or confirmation.proposal != self.digest:
            raise OpenError("Confirmation")
        proposal = self.proposal
        if (confirmation.federation, confirmation.number) != (proposal.federation, proposal.number):
            raise OpenError("Confirmation")
        check_signature(confirmation, key)
        new = confirmation.voter not in self.votes
        if new:
            for place, each in enumerate(self._electorates):
                self._counts[place] += confirmation.voter in each.names
        self.votes[confirmation.voter] = Vote(confirmation.voter, confirmation.signature)
        return new

    @property
    def confirmed(self) -> bool:
        return not self.missing

    @property
    def missing(self) -> int:
        """How many more votes are needed, at the least."""
        counted = zip(self._electorates, self._counts, strict=True)
        return sum(max(0, each.quorum - count) for each, count in counted)

    @property
    def awaited(self) -> frozenset[str]:
        """The voters that have not confirmed."""
        return frozenset(self._keys) - self.votes.keys()

    def awaits(self, voter: str) -> bool:
        """Whether this voter has a vote, and has not confirmed."""
        return voter in self._keys and voter not in self.votes

    def certificate(self, salt: bytes) -> Certificate | None:
        """What proves the outcome; None if nobody is asked. Raises ReceiptRefused before that."""
        if not self.confirmed:
            raise ReceiptRefused(f"{self.missing} confirmations are missing")
        if not self._electorates:
            return None
        return Certificate(self.proposal, salt, tuple(self.votes.values()))


@lru_cache(maxsize=4)  # In one process, every client checks the same certificate.
def require_certified(certified: Certified, electors: Federation, receipt_key: bytes) -> None:
    """Raises ReceiptRefused, or OpenError, unless this outcome was confirmed by these electors."""
    receipt, certificate = certified.receipt, certified.certificate
    needed = electorates(electors)
    if not needed:
        return  # The authority has decided that nobody confirms; the receipt says so.
    if certificate is None:
        raise ReceiptRefused(f"nobody confirms the receipt of round {receipt.number}")
    _require_about(certificate, receipt, electors.id, receipt_key)
    counts = Counter(vote.voter for vote in certificate.votes)
    if any(count > 1 for count in counts.values()):
        raise ReceiptRefused("a certificate counts a voter twice")
    keys = {member.name: member.key for each in needed for member in each.voters}
    voted = digest(certificate.proposal)
    for vote in certificate.votes:
        if vote.voter not in keys:
            raise ReceiptRefused(f"{vote.voter!r} has no vote in round {receipt.number}")
        blank = Confirmation(electors.id, receipt.number, voted, vote.voter, vote.signature)
        check_signature(blank, keys[vote.voter])
    for each in needed:
        got = len(counts.keys() & each.names)
        if got < each.quorum:
            raise ReceiptRefused(
                f"round {receipt.number} has {got} confirmations and needs {each.quorum}"
            )


def _require_about(
    certificate: Certificate, receipt: Receipt, federation: bytes, receipt_key: bytes
) -> None:
    proposal = certificate.proposal
    check_signature(proposal, receipt_key)
    if proposal != Proposal(
        federation=federation,
        number=receipt.number,
        previous=receipt.previous,
        outcome=outcome_digest(certificate.salt, receipt),
        cohort=receipt.cohort,
        signature=proposal.signature,
    ):
        raise ReceiptRefused("the certificate is for another receipt")


def is_proved(abandon: Abandon, electors: Federation) -> bool:
    """Whether an Abandon proves that no proposal of its number was or will be confirmed.

    electors: whose votes counted for that number. In one electorate at least, no proposal can have
    a quorum: neither with all who are silent, nor with f more who showed another vote here.
    """
    return any(
        _can_none_pass(each, abandon.votes, electors.id, abandon.number)
        for each in electorates(electors)
    )


def _can_none_pass(
    electorate: Electorate, votes: Iterable[Confirmation], federation: bytes, number: int
) -> bool:
    keys = {member.name: member.key for member in electorate.voters}
    shown: dict[str, bytes] = {}
    for vote in votes:
        if (vote.federation, vote.number) != (federation, number) or vote.voter not in keys:
            continue
        try:
            check_signature(vote, keys[vote.voter])
        except OpenError:
            continue
        if shown.setdefault(vote.voter, vote.proposal) != vote.proposal:
            shown[vote.voter] = NO_PROPOSAL  # Two faces: one of the f, who count for all anyway.
    counts = Counter(voted for voted in shown.values() if voted != NO_PROPOSAL)
    most = max(counts.values(), default=0)
    silent = len(keys) - len(shown)
    return most + silent + electorate.f < electorate.quorum
