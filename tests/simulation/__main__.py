"""``make simulation``: one simulated hour, and a report of it."""

from __future__ import annotations

import argparse
import gc
import logging
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "protos"))

from tests.simulation.hour import heading, row, simulate, verdict
from tests.simulation.world import Scale


def main() -> int:
    """Run it; the exit status is 1 where something happened that should not."""
    default = Scale()
    parser = argparse.ArgumentParser(prog="make simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backends", type=int, default=default.backends)
    parser.add_argument("--clients", type=int, default=default.clients)
    parser.add_argument("--seconds", type=float, default=default.seconds, help="simulated ones")
    parser.add_argument("--calls-per-second", type=float, default=default.calls_per_second, help="of each client")
    parser.add_argument("--log", type=argparse.FileType("w"), help="write the whole history to a file")
    options = parser.parse_args()
    scale = Scale(
        backends=options.backends,
        clients=options.clients,
        seconds=options.seconds,
        calls_per_second=options.calls_per_second,
    )
    # Millions of objects that stay: to look through all of them again and again would take half of the time.
    gc.set_threshold(100_000, 50, 1000)
    # That name servers do not answer is part of the story, and told for each of the clients.
    logging.getLogger("trio_grpc").setLevel(logging.ERROR)
    began = time.perf_counter()
    print(*heading(options.seed, scale), sep="\n", flush=True)
    result = simulate(options.seed, scale, log=options.log, on_act=lambda act: print(row(act), flush=True))
    print("", *verdict(result), sep="\n")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"real: {time.perf_counter() - began:.0f} s, {time.process_time():.0f} s of CPU, {memory:.0f} MiB")
    return 1 if result.faults else 0


sys.exit(main())
