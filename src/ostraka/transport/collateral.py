"""Gets what a platform's maker says of it, from a file or from the service that the policy names.

dcap-qvl can fetch by itself, but it follows redirects, and if a service lacks the root's revocation
list it asks an address that the service chose. Here only the named host is asked. Its answer is
signed by Intel and verified later, so the host need not be trusted.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ostraka.attestation import dcap, tees
from ostraka.attestation.claims import Collateral
from ostraka.attestation.policy import Policy
from ostraka.errors import AttestationRefused, ConfigError, Refusal
from ostraka.messages import Evidence

_TIMEOUT_S = 30
_LARGEST = 2**22
_API = "/certification/v4"

# Intel's own service has the root's revocation list on another host of Intel's.
_INTEL = "api.trustedservices.intel.com"
_INTEL_CERTIFICATES = "https://certificates.trustedservices.intel.com"


def for_evidence(evidence: Evidence, policy: Policy, *, beside: Path) -> Collateral:
    """Loads what the policy names for this kind of evidence. Raises as `load` does."""
    if evidence.kind not in policy.evidence:
        return {}
    tee = tees.find(evidence.kind)
    part = policy.of(tee.policy)
    named = {name: getattr(part, name) for name in tee.sources}
    return {
        name: load(source, beside=beside, quote=evidence.document)
        for name, source in named.items()
        if source is not None
    }


def load(source: str, *, beside: Path, quote: bytes) -> bytes:
    """Loads the bytes behind a policy's `collateral`, `certificates` or `crl`.

    source: a path from the policy file's folder, or the URL of a PCCS. beside: the policy file.
    Raises ConfigError for a file that cannot be read, and AttestationRefused for a service that
    does not answer.
    """
    if source.startswith(("http://", "https://")):
        return _fetch(source, quote)
    path = beside.parent / source
    try:
        return path.read_bytes()
    except OSError as unreadable:
        raise ConfigError(f"{path}, which {beside} names: {unreadable.strerror}") from None


def _fetch(url: str, quote: bytes) -> bytes:
    """Fetches the collateral for this quote's platform, as dcap-qvl reads it."""
    parsed = dcap.parse(quote)
    tee = "tdx" if parsed.is_tdx() else "sgx"
    try:
        fmspc, ca = parsed.fmspc(), parsed.ca()
    except ValueError:
        raise _missing("the quote does not say what platform it is from") from None
    service = _Service.of(url)
    pck = service.get(f"/sgx{_API}/pckcrl?ca={ca}&encoding=der")
    tcb = service.get(f"/{tee}{_API}/tcb?fmspc={fmspc}")
    identity = service.get(f"/{tee}{_API}/qe/identity")
    tcb_info, tcb_signature = tcb.signed("tcbInfo")
    qe_identity, qe_signature = identity.signed("enclaveIdentity")
    fields = {
        "pck_crl_issuer_chain": pck.chain("SGX-PCK-CRL-Issuer-Chain"),
        "root_ca_crl": service.root_crl().revocations(),
        "pck_crl": pck.revocations(),
        "tcb_info_issuer_chain": tcb.chain("TCB-Info-Issuer-Chain", "SGX-TCB-Info-Issuer-Chain"),
        "tcb_info": tcb_info,
        "tcb_info_signature": tcb_signature,
        "qe_identity_issuer_chain": identity.chain("SGX-Enclave-Identity-Issuer-Chain"),
        "qe_identity": qe_identity,
        "qe_identity_signature": qe_signature,
    }
    return json.dumps(fields).encode()


@dataclass(frozen=True)
class _Answer:
    """A service's answer at one address."""

    url: str
    headers: Mapping[str, str]
    body: bytes

    def chain(self, *names: str) -> str:
        for name in names:
            if name.lower() in self.headers:
                return unquote(self.headers[name.lower()])
        raise _missing(f"{self.url} answers without {names[0]}")

    def signed(self, name: str) -> tuple[str, str]:
        """Returns a field's own text, since that is what was signed, and its signature."""
        try:
            text = self.body.decode()
            signature = bytes.fromhex(json.loads(text)["signature"]).hex()
            start = re.search(rf'"{name}"\s*:\s*', text)
            if start is not None:
                _, end = json.JSONDecoder().raw_decode(text, start.end())
                return text[start.end() : end], signature
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        raise _missing(f"{self.url} answers without a signed {name}")

    def revocations(self) -> str:
        """Returns a list as hex digits. Some services send those, and others send DER."""
        digits = re.fullmatch(rb"\s*((?:[0-9a-fA-F]{2})+)\s*", self.body)
        return digits[1].decode() if digits else self.body.hex()


@dataclass(frozen=True)
class _Service:
    """A host that keeps collateral. It is asked directly, without redirects and proxies."""

    secure: bool
    host: str
    port: int | None
    path: str

    @classmethod
    def of(cls, url: str) -> "_Service":
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if host is None:
            raise ConfigError(f"collateral: {url} is no URL of a service")
        path = re.sub(rf"/((sgx|tdx){_API})?/*$", "", f"{parts.path}/")
        return cls(parts.scheme == "https", host, port, path)

    def root_crl(self) -> _Answer:
        if self.host == _INTEL:
            return _Service.of(_INTEL_CERTIFICATES).get("/IntelSGXRootCA.der")
        return self.get(f"/sgx{_API}/rootcacrl")

    def get(self, path: str) -> _Answer:
        kind = HTTPSConnection if self.secure else HTTPConnection
        url = f"{'https' if self.secure else 'http'}://{self.host}{self.path}{path}"
        connection = kind(self.host, self.port, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", self.path + path)
            response = connection.getresponse()
            body = response.read(_LARGEST + 1)
        except (OSError, HTTPException, ValueError) as failure:
            raise _missing(f"{url}: {failure}") from None
        finally:
            connection.close()
        if response.status != 200 or len(body) > _LARGEST:
            raise _missing(f"{url} answers {response.status}, {len(body)} bytes")
        headers = {name.lower(): value for name, value in response.getheaders()}
        return _Answer(url, headers, body)


def _missing(why: str) -> AttestationRefused:
    return AttestationRefused(Refusal.COLLATERAL, why)
