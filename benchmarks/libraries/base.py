"""What all adapters share: the command line of one process, the meter, and the clock of one run.

No library of the comparison is imported here, and no loop over calls or messages lives here except those that are
the same line for every asynchronous library: awaiting a unary stub.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from benchmarks.machine import pin
from benchmarks.variants import VARIANTS
from benchmarks.workloads import MEBIBYTE, WORKLOADS, Shape, Workload

# A starved call can take seconds, or for ever.  A median wants at least this many samples, and a run must end.
FEWEST_LATENCIES = 3
LONGEST_MEASUREMENT = 15.0

# What every call of a `rich` workload carries, beside a traceparent.
RICH_TIMEOUT = 30.0
RICH_TOKEN = "Bearer " + "eyJhbGciOi.JSUzI1NiIsI_nR5cCI6IkpX-VCJ9A" * 20


@dataclass(frozen=True)
class RunOptions:
    """What one client run was asked to do.

    Attributes:
        workload: The workload to play.
        host: Where the server is.
        port: Its port.
        warmup: Seconds before counting starts.
        duration: Seconds of counting.
        calls: How many calls `million` makes.
        pause: Seconds that `slow_reader` stops reading.
        server_pid: The server's process, for its CPU time and memory; None leaves them out.
        loop: The event loop, for libraries that have a choice.
        certificates: The folder of `benchmarks.certificates`; None if the workload is not encrypted.
        variant: The one of `benchmarks.variants` to be, for trio_grpc; None for the product.
    """

    workload: Workload
    host: str
    port: int
    warmup: float
    duration: float
    calls: int
    pause: float
    server_pid: int | None
    loop: str
    certificates: Path | None = None
    variant: str | None = None

    @property
    def target(self) -> str:
        """`host:port`, as gRPC libraries want it."""
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class ServeOptions:
    """What one server process was asked to do.

    Attributes:
        port: The port to take; 0 means any.
        workload: The workload that will be played, for servers that must be sized for it.
        loop: The event loop, for libraries that have a choice.
        certificates: The folder of `benchmarks.certificates`; None if the workload is not encrypted.
        variant: The one of `benchmarks.variants` to be, for trio_grpc; None for the product.
    """

    port: int
    workload: Workload
    loop: str
    certificates: Path | None = None
    variant: str | None = None


def cpu_seconds(pid: int) -> float:
    """Returns the user and system CPU time that all threads of a process have used (0.0 where /proc is missing)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    fields = text[text.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    """Returns the resident memory of a process in MiB (0.0 where /proc is missing)."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * resource.getpagesize() / MEBIBYTE


def core_seconds(pid: int) -> float | None:
    """Returns the CPU time that all programs have used on the one core of a process; None if it has several.

    Interrupts are left out: the loopback network's work is done in them, on behalf of the measured processes.
    """
    try:
        cores = os.sched_getaffinity(pid)
        if len(cores) != 1:
            return None
        text = Path("/proc/stat").read_text()
    except (OSError, AttributeError):
        return None
    label = f"cpu{cores.pop()} "
    for line in text.splitlines():
        if line.startswith(label):
            user, nice, system = line.split()[1:4]
            return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")
    return None


@dataclass(frozen=True)
class Mark:
    """The counters at one instant."""

    time: float
    count: int
    client_cpu: float
    server_cpu: float
    client_core: float | None
    server_core: float | None


@dataclass
class Meter:
    """Counts what the workers finish, and remembers the counters at the edges of the measurement.

    Workers add to `count` and append to `latencies` directly: a method call would be a cost of its own, and the
    same one weighs more on a fast library.

    Attributes:
        options: The run.
        count: Operations finished since the process began.
        latencies: Nanoseconds of each finished call, where the workload is about latency.
        extra: Further figures of the run.
        client_pid: The process that plays, if it is not this one.
        rate: Operations a second, if the process that plays counts them itself.
    """

    options: RunOptions
    count: int = 0
    latencies: list[int] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    client_pid: int | None = None
    rate: float | None = None
    _begin: Mark | None = None
    _end: Mark | None = None

    def __post_init__(self) -> None:
        """Remembers the counters at the start, for a run that never gets through its warm-up."""
        self.started = self.mark()

    @property
    def ended(self) -> bool:
        """Whether the measurement is over."""
        return self._end is not None

    def mark(self) -> Mark:
        """Reads all counters now."""
        pid = self.options.server_pid
        return Mark(
            time=time.perf_counter(),
            count=self.count,
            client_cpu=cpu_seconds(self.client_pid) if self.client_pid else time.process_time(),
            server_cpu=cpu_seconds(pid) if pid else 0.0,
            client_core=core_seconds(os.getpid()),
            server_core=core_seconds(pid) if pid else None,
        )

    def begin(self) -> None:
        """Starts the measurement: what came before was warm-up."""
        self.latencies.clear()
        self._begin = self.mark()

    def end(self) -> None:
        """Ends the measurement."""
        self._end = self.mark()

    def give_up(self) -> None:
        """Ends a measurement that may not even have begun."""
        self._begin = self._begin or self.started
        self.end()

    def wants_more(self) -> bool:
        """Says whether a latency measurement should go on: time left, or too few samples to say anything."""
        assert self._begin is not None
        elapsed = time.perf_counter() - self._begin.time
        if elapsed < self.options.duration:
            return True
        return len(self.latencies) < FEWEST_LATENCIES and elapsed < LONGEST_MEASUREMENT

    def _foreign_cpu(self) -> float | None:
        """Returns the larger share of its core that other programs took from either end, 0 to 1."""
        assert self._begin is not None
        assert self._end is not None
        begin, end = self._begin, self._end
        shares = [
            (after - before - own) / (end.time - begin.time)
            for before, after, own in (
                (begin.client_core, end.client_core, end.client_cpu - begin.client_cpu),
                (begin.server_core, end.server_core, end.server_cpu - begin.server_cpu),
            )
            if before is not None and after is not None
        ]
        return max(0.0, *shares) if shares else None

    def result(self) -> dict[str, Any]:
        """Returns the figures of the run as one JSON-able record."""
        assert self._begin is not None
        assert self._end is not None
        seconds = self._end.time - self._begin.time
        operations = self._end.count - self._begin.count if self.rate is None else self.rate * seconds
        result: dict[str, Any] = {
            "workload": self.options.workload.name,
            "total_ops": round(operations),
            "seconds": seconds,
            "ops_per_second": operations / seconds,
            "client_cpu": (self._end.client_cpu - self._begin.client_cpu) / seconds,
        }
        if self.client_pid is None:
            result["client_rss_mib"] = rss_mib(os.getpid())
        if self.options.workload.size >= MEBIBYTE:
            result["megabytes_per_second"] = operations * self.options.workload.size / seconds / 1e6
        if operations:
            result["client_cpu_us_per_op"] = (self._end.client_cpu - self._begin.client_cpu) / operations * 1e6
        if self.options.server_pid:
            result["server_cpu"] = (self._end.server_cpu - self._begin.server_cpu) / seconds
            result["server_rss_mib"] = rss_mib(self.options.server_pid)
            if operations:
                server_cpu = self._end.server_cpu - self._begin.server_cpu
                result["server_cpu_us_per_op"] = server_cpu / operations * 1e6
        foreign = self._foreign_cpu()
        if foreign is not None:
            result["foreign_cpu"] = foreign
        if self.latencies:
            ordered = sorted(self.latencies)
            result["latencies"] = len(ordered)
            result["p50_us"] = ordered[len(ordered) // 2] / 1000
            result["p99_us"] = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] / 1000
            result["average_us"] = sum(ordered) / len(ordered) / 1000
        result.update(self.extra)
        return result


def watch_for_starvation(meter: Meter) -> None:
    """Ends the process with a lower bound as its figure, if no call gets through beside a busy stream.

    A thread does it, because the event loop is what may be starving.
    """
    longest = meter.options.warmup + meter.options.duration + LONGEST_MEASUREMENT

    def give_up() -> None:
        if meter.ended:
            return
        if len(meter.latencies) < FEWEST_LATENCIES:
            meter.latencies[:] = [int(longest * 1e9)]
            meter.extra["note"] = (
                f"starved: a call was still waiting after {longest:.0f} s; its figure is a lower bound"
            )
        meter.give_up()
        report(meter)
        os._exit(0)

    timer = threading.Timer(longest, give_up)
    timer.daemon = True
    timer.start()


def rich_calls(method: Callable[..., Any]) -> Callable[[Any], Any]:
    """Wraps a unary method, so that its calls carry what those of a real service do.

    Every call has a trace of its own: a library that remembers whole header blocks shall not meet the same one twice.
    """
    numbers = itertools.count(1)
    authorization = ("authorization", RICH_TOKEN)

    def call(request: Any) -> Any:
        trace = f"00-4bf92f3577b34da6a3ce929d0e0e4736-{next(numbers):016x}-01"
        return method(request, timeout=RICH_TIMEOUT, metadata=(("traceparent", trace), authorization))

    return call


class Runtime(Protocol):
    """The two things that the shared loops need of an event loop."""

    async def sleep(self, seconds: float) -> None:
        """Waits."""

    async def beside(self, workers: list[Callable[[], Awaitable[None]]], body: Callable[[], Awaitable[None]]) -> None:
        """Runs `workers` until `body` has returned, then cancels them; an exception of a worker is raised."""


class AsyncioRuntime:
    """The runtime of libraries on asyncio, with whatever loop is running."""

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        import asyncio

        await asyncio.sleep(seconds)

    async def beside(self, workers: list[Callable[[], Awaitable[None]]], body: Callable[[], Awaitable[None]]) -> None:
        """Runs `workers` beside `body`."""
        import asyncio

        tasks = [asyncio.ensure_future(worker()) for worker in workers]
        main = asyncio.ensure_future(body())
        pending: set[Any] = {main, *tasks}
        while not main.done():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                # A worker that fails must end the run at once: a figure of the survivors would be a lie.
                task.result()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class TrioRuntime:
    """The runtime of libraries on trio."""

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        import trio

        await trio.sleep(seconds)

    async def beside(self, workers: list[Callable[[], Awaitable[None]]], body: Callable[[], Awaitable[None]]) -> None:
        """Runs `workers` beside `body`."""
        import trio

        async with trio.open_nursery() as nursery:
            for worker in workers:
                nursery.start_soon(worker)
            await body()
            nursery.cancel_scope.cancel()


class AsyncClient(Protocol):
    """What an asynchronous library's adapter gives: its own stub, and its own way to read and write streams."""

    def unary(self, request: Any) -> Awaitable[Any]:
        """Calls the unary method.  Adapters assign the stub's own callable, so that no layer is measured."""

    async def ping_pong(self, request: Any, meter: Meter) -> None:
        """Opens one bidi stream and sends and receives on it in turn for ever, counting round trips."""

    async def consume(self, request: Any, meter: Meter) -> None:
        """Opens one server stream and takes messages for ever, counting them."""


async def play(client: AsyncClient, runtime: Runtime, meter: Meter) -> None:
    """Plays the workload of `meter` with an asynchronous client, and ends with the meter stopped."""
    from benchmarks.protos import bench_pb2

    options = meter.options
    workload = options.workload
    message = bench_pb2.Message(payload=bytes(workload.size))
    unary = rich_calls(client.unary) if workload.rich else client.unary

    async def call_for_ever() -> None:
        while True:
            await unary(message)
            meter.count += 1

    async def wait() -> None:
        await runtime.sleep(options.warmup)
        meter.begin()
        await runtime.sleep(options.duration)
        meter.end()

    async def measure_calls(request: Any, counts: bool) -> None:
        clock = time.perf_counter_ns
        end_of_warmup = time.perf_counter() + options.warmup
        while time.perf_counter() < end_of_warmup:
            await unary(request)
        meter.begin()
        latencies = meter.latencies
        while meter.wants_more():
            started = clock()
            await unary(request)
            latencies.append(clock() - started)
            if counts:
                meter.count += 1
        meter.end()

    if workload.shape is Shape.UNARY and workload.concurrency == 1:
        await measure_calls(message, counts=True)
    elif workload.shape is Shape.UNARY:
        await runtime.beside([call_for_ever] * workload.concurrency, wait)
    elif workload.shape is Shape.PING_PONG:
        await runtime.beside([lambda: client.ping_pong(message, meter)] * workload.concurrency, wait)
    elif workload.shape in (Shape.SERVER_STREAM, Shape.MIXED):
        request = bench_pb2.StreamRequest(size=workload.size)
        empty = bench_pb2.Message()
        body = wait
        if workload.shape is Shape.MIXED:
            watch_for_starvation(meter)
            body = lambda: measure_calls(empty, counts=False)  # noqa: E731
        await runtime.beside([lambda: client.consume(request, meter)], body)
    elif workload.shape is Shape.MILLION:
        await _play_million(client, runtime, meter)
    else:
        raise SystemExit(f"workload {workload.name} has no loop for this library")


async def _play_million(client: AsyncClient, runtime: Runtime, meter: Meter) -> None:
    """Makes a fixed number of calls and notes time and memory at each tenth of them."""
    from benchmarks.protos import bench_pb2

    options = meter.options
    message = bench_pb2.Message()
    tenth = max(1, options.calls // 10)
    started = 0
    times = [time.perf_counter()]
    client_rss: list[float] = []
    server_rss: list[float] = []

    def note_tenth() -> None:
        times.append(time.perf_counter())
        client_rss.append(rss_mib(os.getpid()))
        server_rss.append(rss_mib(options.server_pid) if options.server_pid else 0.0)

    async def call_until_done() -> None:
        nonlocal started
        while started < options.calls:
            started += 1
            await client.unary(message)
            meter.count += 1
            if meter.count % tenth == 0:
                note_tenth()

    async def wait() -> None:
        while meter.count < options.calls:
            await runtime.sleep(0.05)

    meter.begin()
    times[0] = time.perf_counter()
    await runtime.beside([call_until_done] * options.workload.concurrency, wait)
    meter.end()
    rates = [tenth / (after - before) for before, after in itertools.pairwise(times)]
    meter.extra.update(
        rates_per_tenth=rates,
        rate_last_to_first_tenth=rates[-1] / rates[0],
        client_rss_mib_per_tenth=client_rss,
        server_rss_mib_per_tenth=server_rss,
        rss_growth_mib=max(client_rss[-1] - client_rss[0], server_rss[-1] - server_rss[0]),
    )


def announce(port: int) -> None:
    """Tells the parent process which port the server took."""
    print(port, flush=True)


def report(meter: Meter) -> None:
    """Prints the figures, before any teardown: a library that is slow to close must not lose its run."""
    print(json.dumps(meter.result()), flush=True)


def main(serve: Callable[[ServeOptions], None], run: Callable[[Meter], None]) -> None:
    """Runs one adapter's process as its command line says.

    Args:
        serve: Serves for ever, after `announce`.
        run: Called with a meter; plays the workload and calls `report`.
    """
    parser = argparse.ArgumentParser(
        description="One end of one benchmark run; started by `python -m benchmarks peers`."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    server = commands.add_parser("server", help="serve until ended; prints the port")
    server.add_argument("--port", type=int, default=0)
    client = commands.add_parser("client", help="play one workload; prints one line of JSON")
    client.add_argument("--target", required=True, metavar="HOST:PORT")
    client.add_argument("--duration", type=float, default=3.0, metavar="SECONDS")
    client.add_argument("--warmup", type=float, default=0.5, metavar="SECONDS")
    client.add_argument("--calls", type=int, default=1_000_000, help="calls of the workload `million`")
    client.add_argument("--pause", type=float, default=3.0, metavar="SECONDS", help="of the workload `slow_reader`")
    client.add_argument("--server-pid", type=int)
    for command in (server, client):
        command.add_argument("--workload", required=True, choices=sorted(WORKLOADS))
        command.add_argument("--concurrency", type=int, help="instead of the workload's own")
        command.add_argument("--size", type=int, metavar="BYTES", help="instead of the workload's own")
        command.add_argument("--core", type=int, help="pin this process to one core")
        command.add_argument("--loop", default="asyncio", choices=["asyncio", "uvloop", "trio"])
        command.add_argument("--certificates", type=Path, metavar="FOLDER", help="of workloads over TLS")
        command.add_argument("--variant", choices=sorted(VARIANTS), help="of trio_grpc")
    arguments = parser.parse_args()
    # Before the library starts any thread: threads inherit the affinity.
    pin(arguments.core)
    workload = WORKLOADS[arguments.workload]
    if arguments.concurrency is not None:
        workload = replace(workload, concurrency=arguments.concurrency)
    if arguments.size is not None:
        workload = replace(workload, size=arguments.size)
    if workload.tls and arguments.certificates is None:
        parser.error(f"argument --certificates: {workload.name} needs it")
    if arguments.command == "server":
        try:
            serve(ServeOptions(arguments.port, workload, arguments.loop, arguments.certificates, arguments.variant))
        except KeyboardInterrupt:
            pass
        return
    host, _, port = arguments.target.rpartition(":")
    if not host or not port.isdigit():
        client.error(f"argument --target: {arguments.target!r} is not HOST:PORT")
    run(
        Meter(
            RunOptions(
                workload=workload,
                host=host,
                port=int(port),
                warmup=arguments.warmup,
                duration=arguments.duration,
                calls=arguments.calls,
                pause=arguments.pause,
                server_pid=arguments.server_pid,
                loop=arguments.loop,
                certificates=arguments.certificates,
                variant=arguments.variant,
            )
        )
    )
    sys.stdout.flush()
