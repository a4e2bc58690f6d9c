"""Until when a certificate is good: the one field that its owner wants to know of, and that `ssl` does not tell him."""

from __future__ import annotations

import re
import ssl
from datetime import datetime, timezone

# Tags of DER (X.690, 8.1.2) that come before the field in a certificate (RFC 5280, 4.1).
_VERSION = 0xA0
_UTC_TIME = 0x17
# OpenSSL takes it from a line of its own, and what is in the middle of one for a comment.
_BLOCK = re.compile(rb"^-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.MULTILINE | re.DOTALL)


def good_until(pem: bytes) -> datetime | None:
    """Return when the first certificate of a PEM file expires, None where that cannot be read.

    Args:
        pem: of a file that OpenSSL has taken; what comes before the certificate does not count.
    """
    block = _BLOCK.search(pem)
    try:
        return None if block is None else _end_of_validity(ssl.PEM_cert_to_DER_cert(block[0].decode("ascii")))
    except (ValueError, IndexError):
        # OpenSSL forgives more than the standard, and takes what this does not know.
        return None


def _end_of_validity(der: bytes) -> datetime:
    _, start, _ = _element(der, 0)
    _, position, _ = _element(der, start)
    tag, _, end = _element(der, position)
    if tag == _VERSION:
        position = end
    # The serial number, the signature's algorithm, the issuer; then the validity.
    for _ in range(3):
        _, _, position = _element(der, position)
    _, position, _ = _element(der, position)
    _, _, position = _element(der, position)
    tag, start, end = _element(der, position)
    text = der[start:end].decode("ascii")
    if tag == _UTC_TIME:
        # RFC 5280, 4.1.2.5.1: two digits of the year mean 1950 to 2049.
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc)


def _element(der: bytes, position: int) -> tuple[int, int, int]:
    """Return the tag of the element at a position, and where its content starts and ends."""
    tag, length = der[position], der[position + 1]
    start = position + 2
    if length & 0x80:
        size = length & 0x7F
        length = int.from_bytes(der[start : start + size], "big")
        start += size
    return tag, start, start + length
