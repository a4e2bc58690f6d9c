"""What the command lines here share."""

from __future__ import annotations


def boolean(text: str) -> bool:
    """Parse a flag's value as the other implementations' programs do: ``--use_tls``, ``--use_tls=true``."""
    if text.lower() in ("true", "1", "yes"):
        return True
    if text.lower() in ("false", "0", "no"):
        return False
    raise ValueError(text)
