"""grpc-go's own benchmark client and server, one core each: a reference from another world (`setup` builds them).

Its client counts by itself and prints a summary when it ends; its flags take whole seconds, so warm-up and duration
are rounded up.  Both programs write a CPU profile all the time, into the folder of results, and the server listens on
all interfaces: neither can be turned off.
"""

from __future__ import annotations

import math
import os
import re
import socket
import subprocess
import time
from pathlib import Path

from benchmarks.libraries.base import Meter, RunOptions, ServeOptions, announce, main, report
from benchmarks.machine import RESULTS
from benchmarks.setup import GO_PROGRAMS
from benchmarks.workloads import Shape

PROFILES = RESULTS / "grpc_go"
CONNECT_TIMEOUT = 10.0
# Between the start of the client and that of its own clock it connects. CPU time is taken from inside its measurement
# by this much, so that it need not be known exactly when that begins.
EDGE = 0.2

_UNITS = {"h": 3.6e9, "m": 6e7, "s": 1e6, "ms": 1e3, "µs": 1.0, "ns": 1e-3}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s|µs|ns)")
_LATENCY = re.compile(r"^Latency: \(50/90/99 %ile\): ([^/\s]+)/([^/\s]+)/([^/\s]+)$", re.MULTILINE)
_RATE = re.compile(r"^qps: (\S+)$", re.MULTILINE)


class UnexpectedOutputError(Exception):
    """The client printed something else than a summary."""


def microseconds(duration: str) -> float:
    """Returns a duration as Go writes it, like `1m2.5s` or `133.4µs`, in microseconds."""
    parts = _DURATION.findall(duration)
    if not parts or "".join(number + unit for number, unit in parts) != duration:
        raise UnexpectedOutputError(f"{duration!r} is no duration of Go")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def summary(output: str) -> tuple[float, dict[str, float]]:
    """Returns the rate and the latencies that the client printed."""
    rate, latency = _RATE.search(output), _LATENCY.search(output)
    if rate is None or latency is None:
        raise UnexpectedOutputError(f"no rate and latencies in {output!r}")
    p50, p90, p99 = map(microseconds, latency.groups())
    return float(rate.group(1)), {"p50_us": p50, "p90_us": p90, "p99_us": p99}


def flags(options: RunOptions) -> list[str]:
    """Returns the flags that make the client play a workload."""
    workload = options.workload
    kinds = {Shape.UNARY: "unary", Shape.PING_PONG: "streaming"}
    if workload.shape not in kinds or workload.rich or workload.tls:
        raise SystemExit(f"workload {workload.name} cannot be said with the flags of this client")
    return [
        f"-port={options.port}",
        f"-rpc_type={kinds[workload.shape]}",
        "-c=1",
        f"-r={workload.concurrency}",
        f"-req={workload.size}",
        f"-resp={workload.size}",
        f"-w={math.ceil(options.warmup)}",
        f"-d={math.ceil(options.duration)}",
    ]


def _profile(end: str) -> str:
    """Returns the flag that says where the profile goes: the programs put /tmp/ in front of it."""
    PROFILES.mkdir(parents=True, exist_ok=True)
    return f"-test_name={os.path.relpath(PROFILES / end, Path('/tmp').resolve())}"


def _one_core() -> dict[str, str]:
    return {**os.environ, "GOMAXPROCS": "1"}


def serve(options: ServeOptions) -> None:
    """Becomes the server, for ever."""
    port = options.port
    if not port:
        # It would not say which port it got, so one is found for it.
        with socket.create_server(("", 0)) as finder:
            port = finder.getsockname()[1]
    announce(port)
    server = str(GO_PROGRAMS / "server")
    os.execve(server, [server, f"-port={port}", _profile("server")], _one_core())


def _wait_for_server(options: RunOptions) -> None:
    give_up = time.monotonic() + CONNECT_TIMEOUT
    while True:
        try:
            socket.create_connection((options.host, options.port), timeout=1.0).close()
        except OSError as error:
            if time.monotonic() > give_up:
                raise SystemExit(f"nobody listens at {options.target}: {error}") from error
            time.sleep(0.02)
        else:
            return


def run(meter: Meter) -> None:
    """Plays one workload."""
    options = meter.options
    command = [str(GO_PROGRAMS / "client"), _profile("client"), *flags(options)]
    _wait_for_server(options)
    with subprocess.Popen(
        command, env=_one_core(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as client:
        try:
            meter.client_pid = client.pid
            time.sleep(math.ceil(options.warmup) + EDGE)
            meter.begin()
            time.sleep(math.ceil(options.duration) - 2 * EDGE)
            meter.end()
            output, errors = client.communicate(timeout=60.0)
        finally:
            client.kill()
    if client.returncode:
        last = (errors.strip().splitlines() or ["it printed nothing"])[-1]
        raise SystemExit(f"the client of grpc-go ended with code {client.returncode}: {last}")
    meter.rate, latencies = summary(output)
    meter.extra.update(latencies)
    report(meter)


if __name__ == "__main__":
    main(serve, run)
