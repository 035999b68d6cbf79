"""The one enclave that a worker serves, known by its receipt key, which signs its offers.

The operator gives the key, or a policy. Whoever answers under another key gets no work done, and
whoever is judged by a policy has to prove itself on every connection. The key that was proved first
is kept in a file beside the worker's own: another takes its place only by the operator's word.

An enclave of several machines has a lead, whose key this is, and shards. A shard shows the lead's
word that its own key signs offers, and proves itself by the policy for shards in the charter. It is
served only once the lead is known: no shard can introduce a lead.
"""

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from ostraka import files
from ostraka.attestation import policy_file
from ostraka.attestation.claims import DeputyBinding, KeyBinding
from ostraka.attestation.policy import Policy
from ostraka.attestation.verify import (
    Circumstances,
    require_bound,
    require_deputy,
    verify_charter,
    verify_evidence,
)
from ostraka.config import Federation
from ostraka.errors import (
    AttestationRefused,
    ConfigError,
    MalformedMessage,
    Refusal,
    RemoteProtocolError,
)
from ostraka.messages import Charter, Deputy, Evidence
from ostraka.transport import collateral

_KEY_BYTES = 32
_LABEL = "ostraka-enclave-key-v1"
_LINE = re.compile(rf"{_LABEL} ([0-9a-f]{{{2 * _KEY_BYTES}}})")
_PUBLIC = 0o644


@dataclass(frozen=True)
class Verifier:
    """What a worker accepts as an enclave. file: of the policy, which names collateral from there.

    unsafe_simulation: the operator asked for simulated enclaves.
    """

    policy: Policy = field(repr=False)
    file: Path
    unsafe_simulation: bool = False

    @classmethod
    def of(cls, file: Path, *, unsafe_simulation: bool = False) -> "Verifier":
        """Reads a policy file. Raises ConfigError."""
        return cls(files.read_policy(file), file, unsafe_simulation)

    def verify(
        self,
        charter: Charter,
        evidence: Evidence,
        *,
        nonce: bytes,
        receipt_key: bytes,
        deputy: Deputy | None = None,
    ) -> None:
        """Raises AttestationRefused unless an enclave that the policy accepts holds this key.

        deputy: of a shard, which has to meet the policy for shards that the authority signed and
        this policy pins, and to hold the deputy's key.
        Raises ConfigError for a file that the policy names and that cannot be read.
        """
        now = int(time.time())
        federation = verify_charter(charter, self.policy, now)
        bound: KeyBinding | DeputyBinding
        if deputy is None:
            policy = self.policy
            bound = KeyBinding(nonce, receipt_key, federation.digest())
        else:
            policy = _policy_of_shards(federation)
            require_deputy(deputy, receipt_key=receipt_key, federation=federation.id)
            bound = DeputyBinding(nonce, receipt_key, deputy.key, federation.digest())
        found = collateral.for_evidence(evidence, policy, beside=self.file)
        circumstances = Circumstances(now, found, self.unsafe_simulation)
        require_bound(verify_evidence(evidence, policy, circumstances), bound)


class EnclavePin:
    """key: the receipt key, or None until one is remembered. file: where to remember it."""

    def __init__(
        self, key: bytes | None, *, file: Path | None = None, verifier: Verifier | None = None
    ) -> None:
        if key is None and verifier is None:
            raise ConfigError(
                "a worker serves no enclave that it does not know: pass --policy with the policy "
                "that an enclave has to meet, or --receipt-key with the key of the one to serve"
            )
        self._lock = Lock()  # Each enclave that is served has a thread of its own.
        self._key = key
        self._file = file
        self._kept = _read(file) if file is not None and file.exists() else None
        self.verifier = verifier

    @classmethod
    def chosen(
        cls, worker_key: Path, *, receipt_key: str | None, verifier: Verifier | None
    ) -> "EnclavePin":
        """Pins the key that is given in hex, or kept beside the worker's own. Raises ConfigError.

        A key is kept there only if a verifier has judged it.
        """
        given = None if receipt_key is None else _parse(receipt_key)
        beside = worker_key.with_name(f"{worker_key.name}.enclave")
        pin = cls(given, file=None if verifier is None else beside, verifier=verifier)
        pin._key = given or pin._kept
        return pin

    def check(self, shown: bytes) -> bytes:
        """Returns the key to check offers by. Raises RemoteProtocolError for another enclave's."""
        if len(shown) != _KEY_BYTES:
            raise MalformedMessage(f"a receipt key has {_KEY_BYTES} bytes; got {len(shown)}")
        if self._key is not None and shown != self._key:
            raise RemoteProtocolError(
                f"another enclave answers: its receipt key is {shown.hex()}, but this worker "
                f"serves only {self._key.hex()}. If the federation has a new enclave, start the "
                "worker with its --receipt-key"
            )
        return shown

    def check_shard(self, deputy: Deputy, federation: bytes) -> None:
        """Raises RemoteProtocolError unless the lead that this worker serves has deputed the shard.

        federation: the federation id.
        """
        if self._key is None:
            raise RemoteProtocolError(
                "a shard answers, and its lead has not proved itself to this worker yet: give the "
                "lead's address, too, and see that the lead is running"
            )
        require_deputy(deputy, receipt_key=self._key, federation=federation)

    def remember(self, key: bytes) -> bool:
        """Pins this key from now on, and tells whether that is news.

        Raises RemoteProtocolError if another was proved meanwhile, at another address, and OSError
        if it cannot be written to the file.
        """
        with self._lock:
            self._key = self.check(key)
            if self._file is None or self._kept == key:
                return False
            self._kept = key
            text = f"# The enclave that this worker serves.\n{_LABEL} {key.hex()}\n"
            files.write(self._file, [text.encode()], mode=_PUBLIC)
            return True


def _policy_of_shards(federation: Federation) -> Policy:
    """Returns what a shard has to meet. Without such a policy, none can be one."""
    try:
        return policy_file.of_shards(federation)
    except ConfigError as unusable:
        raise AttestationRefused(Refusal.KIND, f"a shard answers, and {unusable}") from None


def _parse(key: str) -> bytes:
    try:
        raw = bytes.fromhex(key)
    except ValueError:
        raw = b""
    if len(raw) != _KEY_BYTES:
        raise ConfigError(f"a receipt key is {2 * _KEY_BYTES} hex digits")
    return raw


def _read(file: Path) -> bytes:
    try:
        text = file.read_bytes().decode("ascii", errors="replace")
    except OSError as unreadable:
        raise ConfigError(f"{file}: {unreadable.strerror}") from None
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    match = _LINE.fullmatch(lines[0]) if len(lines) == 1 else None
    if match is None:
        raise ConfigError(
            f"{file} does not hold the key of an enclave: delete it to let the policy decide anew"
        )
    return bytes.fromhex(match[1])
