"""How the command ends, for scripts.

  0  done
  1  failed, or an attacker was averaged in
  2  the request cannot work: wrong arguments, numbers or files
  3  refused: evidence or a charter that the policy does not accept, or receipts that a client
     must not follow
130  interrupted
143  terminated
"""

from ostraka.errors import AttestationRefused, ConfigError, OstrakaError, ReceiptRefused

FAILED = 1
IMPOSSIBLE = 2
REFUSED = 3
INTERRUPTED = 130
TERMINATED = 143


def exit_code(error: OstrakaError) -> int:
    """Of a command that this error ended."""
    if isinstance(error, AttestationRefused | ReceiptRefused):
        return REFUSED
    return IMPOSSIBLE if isinstance(error, ConfigError) else FAILED
