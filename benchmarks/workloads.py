"""What is measured, as data: the workloads, their figures, and the targets that `trio_grpc` must reach.

How a workload is played belongs to `benchmarks.libraries`; how runs are ordered and summed up, to
`benchmarks.peers`.  Standard library only, because the processes of every library import this.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

OURS = "trio_grpc"
MEBIBYTE = 1024 * 1024


class Shape(enum.Enum):
    """The traffic pattern; each library's adapter has one loop for each."""

    UNARY = "unary"
    PING_PONG = "ping_pong"
    SERVER_STREAM = "server_stream"
    MIXED = "mixed"
    SLOW_READER = "slow_reader"
    MILLION = "million"


class Figure(enum.Enum):
    """The one number by which a workload is judged; the value is its key in a run's record (`benchmarks.metrics`)."""

    RATE = "ops_per_second"
    MEGABYTES = "megabytes_per_second"
    P50 = "p50_us"
    P99 = "p99_us"
    RATE_LAST_TO_FIRST = "rate_last_to_first_tenth"
    RSS_GROWTH = "rss_growth_mib"
    RSS_GROWTH_PAUSED = "rss_growth_paused_mib"


class Against(enum.Enum):
    """What a target compares our figure with."""

    BEST_PEER = "best Python peer"
    GRPCIO_AIO = "grpcio_aio"
    FLOOR = "floor"
    OUR_OTHER = "our own"
    NUMBER = "number"


@dataclass(frozen=True)
class Target:
    """One promise: our figure, divided by another's or by itself, against a bound.

    Attributes:
        figure: The figure that is compared.
        against: Whose figure ours is divided by; NUMBER compares our figure itself.
        bound: The bound of that ratio or figure.
        at_least: True if the bound is a minimum, False if it is a maximum.
        other: For OUR_OTHER, the workload whose figure ours is divided by.
    """

    figure: Figure
    against: Against
    bound: float
    at_least: bool
    other: str = ""


@dataclass(frozen=True)
class Workload:
    """One thing to measure.

    Attributes:
        name: The name on the command line and in the JSON.
        title: One line for the reader of the table.
        shape: The traffic pattern.
        figure: The figure that the table ranks by.
        unit: The unit of that figure.
        higher_is_better: The direction of that figure.
        concurrency: Calls or streams in flight, all on one channel.
        size: Payload bytes of each message.
        targets: What ours must reach.
        only: Libraries that play it; empty means all that can.
        once: Whether one round is enough, because the run repeats itself inside.
        by_default: Whether it runs when no `--workloads` is given.
        rich: Whether each unary call carries what calls of a real service do: a deadline, a trace, a bearer token.
        tls: Whether the connection is encrypted.
    """

    name: str
    title: str
    shape: Shape
    figure: Figure
    unit: str
    higher_is_better: bool = True
    concurrency: int = 1
    size: int = 0
    targets: tuple[Target, ...] = ()
    only: tuple[str, ...] = ()
    once: bool = False
    by_default: bool = True
    rich: bool = False
    tls: bool = False


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            "unary_100",
            "unary, empty messages, 100 concurrent calls on one channel",
            Shape.UNARY,
            Figure.RATE,
            "calls/s",
            concurrency=100,
            targets=(
                Target(Figure.RATE, Against.GRPCIO_AIO, 7.0, at_least=True),
                Target(Figure.RATE, Against.BEST_PEER, 4.5, at_least=True),
            ),
        ),
        Workload(
            "unary_100_rich",
            "as unary_100, each call with a deadline, a traceparent and a bearer token of 800 bytes",
            Shape.UNARY,
            Figure.RATE,
            "calls/s",
            concurrency=100,
            targets=(Target(Figure.RATE, Against.OUR_OTHER, 0.6, at_least=True, other="unary_100"),),
            rich=True,
        ),
        Workload(
            "unary_100_tls",
            "as unary_100, over TLS",
            Shape.UNARY,
            Figure.RATE,
            "calls/s",
            concurrency=100,
            targets=(Target(Figure.RATE, Against.OUR_OTHER, 0.65, at_least=True, other="unary_100"),),
            tls=True,
        ),
        Workload(
            "unary_1",
            "unary, empty messages, one call at a time: latency",
            Shape.UNARY,
            Figure.P50,
            "µs p50",
            higher_is_better=False,
            targets=(
                Target(Figure.P50, Against.BEST_PEER, 0.7, at_least=False),
                Target(Figure.P50, Against.FLOOR, 1.9, at_least=False),
            ),
        ),
        Workload(
            "ping_pong_200",
            "bidi ping-pong, 100 B, 200 streams on one channel",
            Shape.PING_PONG,
            Figure.RATE,
            "round trips/s",
            concurrency=200,
            size=100,
            targets=(Target(Figure.RATE, Against.BEST_PEER, 2.5, at_least=True),),
        ),
        Workload(
            "server_stream_100b",
            "server streaming, 100 B, one stream",
            Shape.SERVER_STREAM,
            Figure.RATE,
            "messages/s",
            size=100,
            targets=(Target(Figure.RATE, Against.BEST_PEER, 2.5, at_least=True),),
        ),
        Workload(
            "unary_10kb_16",
            "unary, 10 KB request and reply, 16 concurrent calls on one channel",
            Shape.UNARY,
            Figure.RATE,
            "calls/s",
            concurrency=16,
            size=10_000,
            targets=(Target(Figure.RATE, Against.GRPCIO_AIO, 4.0, at_least=True),),
        ),
        Workload(
            "unary_1mb",
            "unary, 1 MiB request and reply, one call at a time",
            Shape.UNARY,
            Figure.MEGABYTES,
            "MB/s each way",
            size=MEBIBYTE,
            targets=(Target(Figure.MEGABYTES, Against.BEST_PEER, 1.5, at_least=True),),
        ),
        Workload(
            "unary_1mb_4",
            "unary, 1 MiB request and reply, 4 concurrent calls on one channel",
            Shape.UNARY,
            Figure.MEGABYTES,
            "MB/s each way",
            concurrency=4,
            size=MEBIBYTE,
            by_default=False,
        ),
        Workload(
            "stream_1mb",
            "server streaming, 1 MiB messages, one stream",
            Shape.SERVER_STREAM,
            Figure.MEGABYTES,
            "MB/s",
            size=MEBIBYTE,
            targets=(Target(Figure.MEGABYTES, Against.BEST_PEER, 1.0, at_least=True),),
        ),
        Workload(
            "mixed",
            "empty unary calls, one at a time, beside a 100 B firehose server stream on the same channel: latency",
            Shape.MIXED,
            Figure.P50,
            "µs p50",
            higher_is_better=False,
            size=100,
            targets=(Target(Figure.P50, Against.GRPCIO_AIO, 1.0, at_least=False),),
        ),
        Workload(
            "slow_reader",
            "server streaming of 1 GiB to a client that stops reading after the first message, then takes the rest",
            Shape.SLOW_READER,
            Figure.RSS_GROWTH,
            "MiB RSS growth",
            higher_is_better=False,
            size=MEBIBYTE,
            # The windows of one stream and a few messages in hand may fill; what may not happen is that a pause
            # goes on filling something.
            targets=(
                Target(Figure.RSS_GROWTH, Against.NUMBER, 64.0, at_least=False),
                Target(Figure.RSS_GROWTH_PAUSED, Against.NUMBER, 2.0, at_least=False),
            ),
            only=(OURS,),
            once=True,
        ),
        Workload(
            "million",
            "1,000,000 empty unary calls, 100 concurrent, one connection: memory and speed from first to last tenth",
            Shape.MILLION,
            Figure.RATE,
            "calls/s",
            concurrency=100,
            targets=(
                Target(Figure.RSS_GROWTH, Against.NUMBER, 8.0, at_least=False),
                # One tenth lasts about two seconds: the bound leaves room for the noise of such a short piece.
                Target(Figure.RATE_LAST_TO_FIRST, Against.NUMBER, 0.9, at_least=True),
            ),
            only=(OURS,),
            once=True,
        ),
    )
}


@dataclass(frozen=True)
class Library:
    """One library of the comparison.

    Attributes:
        name: The name on the command line and in the JSON.
        module: Its adapter under `benchmarks.libraries`.
        requires: The import that must be there; empty means none.
        arguments: Extra arguments of the adapter.
        workloads: The workloads that it can play; empty means all.
        cannot: The workloads that it cannot play, where that is the shorter list.
        programs: Programs that must be there, as files of the repository that `setup` makes.
        environment: The folder of its own virtual environment, beside the package; None means this Python's.
        is_peer: Whether "best Python peer" looks at it.
        reference: What the table says of one that is no peer.
        by_default: Whether it runs when no `--libraries` is given.
    """

    name: str
    module: str
    requires: str
    arguments: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    cannot: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    environment: str | None = None
    is_peer: bool = True
    reference: str = ""
    by_default: bool = True


# Its stubs have no way to say a deadline.
_PURERPC_CANNOT = ("unary_100_rich",)


# Without TLS and metadata: those are work above the floor.
FLOOR_WORKLOADS = (
    "unary_100",
    "unary_1",
    "ping_pong_200",
    "server_stream_100b",
    "unary_10kb_16",
    "unary_1mb",
    "unary_1mb_4",
    "stream_1mb",
)


LIBRARIES: dict[str, Library] = {
    library.name: library
    for library in (
        Library(OURS, "trio_grpc", "trio_grpc", is_peer=False),
        Library("grpcio_aio", "grpcio_aio", "grpc"),
        Library("grpcio_sync", "grpcio_sync", "grpc"),
        Library("grpclib", "grpclib", "grpclib"),
        Library("grpclib_uvloop", "grpclib", "uvloop", arguments=("--loop", "uvloop")),
        Library("purerpc", "purerpc", "purerpc", cannot=_PURERPC_CANNOT, environment=".venv-purerpc"),
        Library(
            "purerpc_trio",
            "purerpc",
            "purerpc",
            arguments=("--loop", "trio"),
            cannot=_PURERPC_CANNOT,
            environment=".venv-purerpc",
            by_default=False,
        ),
        # What the flags of its own benchmark client can say: equal messages both ways, no metadata, no TLS.
        Library(
            "grpc_go",
            "grpc_go",
            requires="",
            workloads=("unary_100", "unary_1", "ping_pong_200", "unary_10kb_16", "unary_1mb", "unary_1mb_4"),
            programs=("benchmarks/go/bin/client", "benchmarks/go/bin/server"),
            is_peer=False,
            reference="reference: Go, one core a side",
        ),
        Library(
            "floor",
            "floor",
            "trio",
            workloads=FLOOR_WORKLOADS,
            is_peer=False,
            reference="floor: the same bytes over bare TCP",
        ),
        Library(
            "floor_blocking",
            "floor_blocking",
            "",
            workloads=("unary_1", "unary_1mb", "stream_1mb"),
            is_peer=False,
            reference="floor: the same bytes over blocking sockets, recv_into",
            by_default=False,
        ),
    )
}


def plays(library: Library, workload: Workload) -> bool:
    """Says whether `library` can play `workload`."""
    if workload.only and library.name not in workload.only:
        return False
    if workload.name in library.cannot:
        return False
    return not library.workloads or workload.name in library.workloads
