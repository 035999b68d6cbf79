"""How the command ends, for scripts.

  0  done
  1  failed, or an attacker was averaged in
  2  the request cannot work: wrong arguments, numbers or files
  3  refused: evidence, a charter or receipts that are not to be trusted
130  interrupted
143  terminated
"""

from ostraka.errors import AttestationRefused, ConfigError, OpenError, OstrakaError, ReceiptRefused

FAILED = 1
IMPOSSIBLE = 2
REFUSED = 3
INTERRUPTED = 130
TERMINATED = 143


def exit_code(error: OstrakaError) -> int:
    """Of a command that this error ended."""
    if isinstance(error, AttestationRefused | ReceiptRefused | OpenError):
        return REFUSED
    return IMPOSSIBLE if isinstance(error, ConfigError) else FAILED
