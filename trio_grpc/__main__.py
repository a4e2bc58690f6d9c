"""What runs as ``trio-grpc`` and ``python -m trio_grpc``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; without the extra ``cli``, say how to get it."""
    try:
        from trio_grpc.cli._main import main as run  # noqa: PLC0415 # the library itself needs none of it
    except ModuleNotFoundError as error:
        if error.name not in {"click", "rich"}:
            raise
        sys.exit(f"trio-grpc needs {error.name}: install it with pip install 'trio-grpc[cli]'")
    except KeyboardInterrupt:
        sys.exit(130)  # as later on
    run()


if __name__ == "__main__":
    main()
