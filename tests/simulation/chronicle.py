"""What happens in a simulated world, line by line, and a digest of it all: two runs with one digest were the same."""

from __future__ import annotations

import hashlib
from typing import TextIO

import trio


class Chronicle:
    """Takes notes.

    Args:
        file: gets every line as well, so that two runs that should be the same can be compared.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self.lines = 0
        self._hash = hashlib.sha256()
        self._file = file

    def note(self, *words: object) -> None:
        """Write down what happens now."""
        line = f"{trio.current_time():.6f} {' '.join(map(str, words))}\n"
        self.lines += 1
        self._hash.update(line.encode())
        if self._file is not None:
            self._file.write(line)

    @property
    def digest(self) -> str:
        """Says whether two runs were the same."""
        return self._hash.hexdigest()
