"""The outcome of a verification: keys that the verified code holds."""

from dataclasses import dataclass

from ostraka.messages import IN_PROCESS, RoundOffer


@dataclass(frozen=True)
class Attested:
    """A client seals nothing without one of these. `verify.verify` makes them.

    kind: the evidence that proved it. identity: one name for the measured code.
    """

    round_key: bytes
    receipt_key: bytes
    config: bytes
    kind: str
    identity: bytes


def in_process(offer: RoundOffer, receipt_key: bytes) -> Attested:
    """For an enclave in the client's own process: there is nobody to prove anything to."""
    return Attested(offer.key, receipt_key, offer.config, IN_PROCESS, bytes(32))
