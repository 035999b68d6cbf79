"""The 64 bytes that evidence is about."""

from ostraka.errors import LocalProtocolError, PlatformError

REPORT_DATA_BYTES = 64


def require_report_data(report_data: bytes) -> None:
    """Raises LocalProtocolError. Platforms take less, too, and each pads it in its own way."""
    if len(report_data) != REPORT_DATA_BYTES:
        raise LocalProtocolError(
            f"report data has {REPORT_DATA_BYTES} bytes; got {len(report_data)}"
        )


def require_about(report_data: bytes, document: bytes) -> None:
    """Raises PlatformError if the platform speaks of other report data than it was asked about.

    Every format carries report data literally. A client checks its place and the signature over it;
    this only catches, before anybody sees it, an answer to another caller in this process.
    """
    if report_data not in document:
        raise PlatformError(
            f"the platform's answer ({len(document)} bytes) is not about the report data that it "
            "was given: something else in this process asks for evidence at the same time"
        )
