"""One word with the C allocator, for programs that move large messages.

glibc gives memory back to the kernel as soon as more than twice its mmap threshold lies free at the top of the heap,
and that threshold starts at 128 KiB. A program that serializes and parses messages of a megabyte so returns and faults
in the same pages for every message: 500 page faults and 2 ms of a 1 MiB call (measured: 139 calls/s with them, 420 to
500 without). glibc raises both thresholds by itself when a large block is freed, so freeing one large block, once, is
all that is needed; no page of it is ever touched. Other allocators take no notice.
"""

from __future__ import annotations

#: From this length on, a message counts as large: glibc's initial mmap threshold.
LARGE_MESSAGE = 131_072
#: The block freed: the mmap threshold becomes 16 MiB, and up to 32 MiB stay with the process.
_BLOCK = 16 * 2**20 - 8192

_settled: list[bool] = []


def settle_allocator() -> None:
    """Raise glibc's thresholds, the first time that a large message is seen; later calls return at once."""
    if not _settled:
        _settled.append(True)
        bytes(_BLOCK)
