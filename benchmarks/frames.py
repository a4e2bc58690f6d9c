"""Time and allocations of parsing one DATA frame and of one header block, in several ways.

No socket and no message: bytes in memory go through a parser, and what each frame says is added up.
"""

# ruff: noqa: ARG002 -- a handler takes what the framer tells, whether it needs it or not

from __future__ import annotations

import argparse
import functools
import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks import allocations, results
from benchmarks.arguments import json_path, positive, size_title, sizes
from benchmarks.machine import RESULTS
from benchmarks.statistics import median, spread

HELP = "time and allocations of parsing DATA frames and header blocks, with and without objects for them"
DEFAULT_SIZES = (100, 1024, 16_384, 65_536)
#: What the byte stream hands to the framer at once when there is much to read.
READ_SIZE = 262_144
#: The largest payload that the parsers are told to accept.
MAX_FRAME_SIZE = 2**24 - 1
STREAM_ID = 1
#: Reads, and header blocks, of one pass; small enough for the processor's caches not to matter more than in real life.
READS = 4
BLOCKS = 1000

EPILOG = """\
DATA frames, by parser:
  no object      the framer of trio_grpc as it is: positions in the bytes that were read
  reused record  the same, and one record that is filled in for each frame (the idea of SetReuseFrames in Go)
  new object     the same, and a new object made for each frame
  hyperframe     the library hyperframe: a frame object, its payload copied into it
  h2             the library h2 above it: a frame object, checks, and an event object

header blocks, decoded and encoded:
  remembered     trio_grpc's codec as it is: the same block is looked up
  not remembered the same with what it remembers cleared before each block (its HPACK tables stay)
  new literal    trio_grpc's codec as it is, one field (a timeout) different in each block
  hpack          the library hpack

Allocations are counted in a phase of their own by a hook around Python's allocators (MEM and OBJ): each block handed
out counts, with its bytes. Objects that the interpreter takes from its free lists do not appear. Needs a C compiler.
"""


class ParsedWrongError(Exception):
    """A parser or codec found something else than what went in; the text says which and what."""


@dataclass
class DataFrame:
    """One DATA frame as an object: what a framer with frames for objects would hand on."""

    __slots__ = ("data", "end_stream", "flow_length", "start", "stop", "stream_id")

    stream_id: int
    data: bytes
    start: int
    stop: int
    flow_length: int
    end_stream: bool


class Totals:
    """What a parser found: the proof that all of them read the same.

    Attributes:
        payload: Payload bytes.
    """

    payload = 0


class NoObject(Totals):
    """Takes DATA as trio_grpc's framer tells of it."""

    def on_data(self, stream_id: int, data: bytes, start: int, stop: int, flow_length: int, end_stream: bool) -> None:
        self.payload += stop - start

    def on_settings(self, *_: Any) -> None:
        """The beginning of a connection."""


class ReusedRecord(NoObject):
    """The same through one record."""

    def __init__(self) -> None:
        self._record = DataFrame(0, b"", 0, 0, 0, False)

    def on_data(self, stream_id: int, data: bytes, start: int, stop: int, flow_length: int, end_stream: bool) -> None:
        frame = self._record
        frame.stream_id = stream_id
        frame.data = data
        frame.start = start
        frame.stop = stop
        frame.flow_length = flow_length
        frame.end_stream = end_stream
        self.payload += frame.stop - frame.start


class NewObject(NoObject):
    """The same through an object for each frame."""

    def on_data(self, stream_id: int, data: bytes, start: int, stop: int, flow_length: int, end_stream: bool) -> None:
        frame = DataFrame(stream_id, data, start, stop, flow_length, end_stream)
        self.payload += frame.stop - frame.start


#: A prepared parser: a function that parses all reads once, and the totals that it adds to.
Parser = tuple[Callable[[], None], Totals]


def data_frames(size: int, reads: int) -> tuple[list[bytes], int]:
    """Returns whole DATA frames with `size` bytes of payload each, as reads of about `READ_SIZE`, and how many."""
    from trio_grpc._transport import frames

    per_read = max(1, READ_SIZE // (size + frames.FRAME_HEADER_LENGTH))
    read = frames.frame(frames.DATA, 0, STREAM_ID, bytes(size)) * per_read
    return [read] * reads, per_read * reads


def _framer(handler: type[NoObject]) -> Callable[[list[bytes]], Parser]:
    def prepare(reads: list[bytes]) -> Parser:
        from trio_grpc._transport import frames
        from trio_grpc._transport.framer import Framer
        from trio_grpc._transport.header_codec import HeaderDecoder

        totals = handler()
        decoder: Any = HeaderDecoder(list, max_list_size=16_384)
        framer: Any = Framer(totals, decoder, client_side=True, settings={}, max_frame_size=MAX_FRAME_SIZE)
        framer.receive(frames.frame(frames.SETTINGS, 0, 0))
        receive = framer.receive

        def parse() -> None:
            for data in reads:
                receive(data)

        return parse, totals

    return prepare


def _hyperframe(reads: list[bytes]) -> Parser:
    from hyperframe.frame import Frame

    totals = Totals()

    def parse() -> None:
        for data in reads:
            view = memoryview(data)
            position, end = 0, len(data)
            while position < end:
                frame, length = Frame.parse_frame_header(view[position : position + 9])
                position += 9
                frame.parse_body(view[position : position + length])
                position += length
                totals.payload += len(frame.data)  # type: ignore[attr-defined]

    return parse, totals


def _h2(reads: list[bytes]) -> Parser:
    from h2.config import H2Configuration
    from h2.connection import H2Connection
    from h2.events import DataReceived
    from h2.settings import SettingCodes

    server = H2Connection(H2Configuration(client_side=False, header_encoding=None))
    client = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    server.initiate_connection()
    server.update_settings({SettingCodes.MAX_FRAME_SIZE: MAX_FRAME_SIZE, SettingCodes.INITIAL_WINDOW_SIZE: 2**31 - 1})
    client.initiate_connection()
    client.receive_data(server.data_to_send())
    head = [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "a")]
    client.send_headers(STREAM_ID, head)
    server.receive_data(client.data_to_send())
    server.increment_flow_control_window(2**31 - 1 - 65_535)
    server.clear_outbound_data_buffer()
    totals = Totals()

    def parse() -> None:
        for data in reads:
            for event in server.receive_data(data):
                if isinstance(event, DataReceived):
                    totals.payload += len(event.data)
                    # Credit is part of what h2 does for a frame: without it the window would end.
                    server.acknowledge_received_data(event.flow_controlled_length, STREAM_ID)
            server.clear_outbound_data_buffer()

    return parse, totals


PARSERS: dict[str, Callable[[list[bytes]], Parser]] = {
    "no object": _framer(NoObject),
    "reused record": _framer(ReusedRecord),
    "new object": _framer(NewObject),
    "hyperframe": _hyperframe,
    "h2": _h2,
}

REQUEST_FIELDS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/benchmarks.Bench/Unary"),
    (b":authority", b"127.0.0.1:50051"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
    (b"grpc-accept-encoding", b"identity,deflate,gzip"),
    (b"user-agent", b"grpc-python-trio/1.0"),
)


def _timeouts() -> Callable[[], bytes]:
    """Returns a function that gives another timeout each time, as calls of one application have them."""
    numbers = itertools.cycle(range(10_000, 99_999, 7))
    return lambda: b"%du" % next(numbers)


def _literals(count: int, differ: bool) -> list[tuple[tuple[bytes, bytes], ...]]:
    timeout = _timeouts()
    return [((b"grpc-timeout", timeout()),) if differ else () for _ in range(count)]


def _decode(count: int, differ: bool = False, forget: Callable[[Any], None] | None = None) -> Callable[[], int]:
    from trio_grpc._transport.header_codec import HeaderDecoder, HeaderEncoder, HeaderTemplate

    encoder = HeaderEncoder()
    template = HeaderTemplate(REQUEST_FIELDS)
    decoder: Any = HeaderDecoder(list, max_list_size=16_384)
    # The first block fills both tables, from then on they stay as they are.
    expected = decoder.decode(encoder.encode(template))
    blocks = [encoder.encode(template, literals) for literals in _literals(count, differ)]
    for block in blocks:
        if decoder.decode(block)[: len(expected)] != list(REQUEST_FIELDS):
            raise ParsedWrongError("the decoder gives other fields than went in")
    return _each(decoder, decoder.decode, blocks, forget)


def _encode(count: int, differ: bool = False, forget: Callable[[Any], None] | None = None) -> Callable[[], int]:
    from trio_grpc._transport.header_codec import HeaderEncoder, HeaderTemplate

    encoder = HeaderEncoder()
    template = HeaderTemplate(REQUEST_FIELDS)
    # The first block fills the table, the second is the first that can be remembered.
    encoder.encode(template)
    encoder.encode(template)
    return _each(encoder, functools.partial(encoder.encode, template), _literals(count, differ), forget)


def _each(
    codec: Any, function: Callable[[Any], Any], items: list[Any], forget: Callable[[Any], None] | None
) -> Callable[[], int]:
    """Returns a function that treats all items and says how many they were."""
    if forget is None:

        def run() -> int:
            for item in items:
                function(item)
            return len(items)
    else:

        def run() -> int:
            for item in items:
                forget(codec)
                function(item)
            return len(items)

    return run


def _hpack_decode(count: int) -> Callable[[], int]:
    import hpack

    encoder, decoder = hpack.Encoder(), hpack.Decoder()
    decoder.decode(encoder.encode(REQUEST_FIELDS), raw=True)
    block = encoder.encode(REQUEST_FIELDS)
    return _each(decoder, lambda block: decoder.decode(block, raw=True), [block] * count, None)


def _hpack_encode(count: int) -> Callable[[], int]:
    import hpack

    encoder = hpack.Encoder()
    encoder.encode(REQUEST_FIELDS)
    return _each(encoder, encoder.encode, [REQUEST_FIELDS] * count, None)


def forget_decoded(decoder: Any) -> None:
    """Drops what a `HeaderDecoder` remembers beside its HPACK table."""
    decoder._records.clear()
    decoder._heads.clear()
    decoder._bases.clear()


def forget_encoded(encoder: Any) -> None:
    """Drops what a `HeaderEncoder` remembers beside its HPACK table."""
    encoder._blocks.clear()
    encoder._prefixes.clear()


HEADER_CASES: dict[str, Callable[[int], Callable[[], int]]] = {
    "decode, remembered": _decode,
    "decode, not remembered": functools.partial(_decode, forget=forget_decoded),
    "decode, new literal": functools.partial(_decode, differ=True),
    "decode, hpack": _hpack_decode,
    "encode, remembered": _encode,
    "encode, not remembered": functools.partial(_encode, forget=forget_encoded),
    "encode, new literal": functools.partial(_encode, differ=True),
    "encode, hpack": _hpack_encode,
}


def data_case(parser: str, size: int) -> Callable[[], int]:
    """Returns a function that parses some DATA frames and says how many.

    Raises:
        ParsedWrongError: (the function) the parser found another number of bytes than there were.
    """
    reads, count = data_frames(size, READS)
    parse, totals = PARSERS[parser](reads)

    def run() -> int:
        before = totals.payload
        parse()
        if totals.payload - before != count * size:
            raise ParsedWrongError(f"{parser} found {totals.payload - before} payload bytes of {count * size}")
        return count

    return run


def cases(sizes: tuple[int, ...]) -> dict[str, Callable[[], int]]:
    """Returns all cases by name, in the order of the table."""
    made = {f"DATA {size_title(size)}, {parser}": data_case(parser, size) for size in sizes for parser in PARSERS}
    made.update((f"block, {name}", prepare(BLOCKS)) for name, prepare in HEADER_CASES.items())
    return made


def time_case(run: Callable[[], int], duration: float) -> float:
    """Returns the nanoseconds of one item, measured for at least `duration` seconds."""
    clock = time.perf_counter_ns
    items = 0
    started = clock()
    end = started + duration * 1e9
    while True:
        items += run()
        now = clock()
        if now >= end:
            return (now - started) / items


def count_case(run: Callable[[], int]) -> dict[str, float]:
    """Returns allocations and their bytes for one item."""
    with allocations.counted() as counted:
        items = run()
    return {"allocs_per_op": counted.allocations / items, "bytes_per_op": counted.bytes / items}


def measure(sizes: tuple[int, ...], rounds: int, duration: float) -> dict[str, list[dict[str, float]]]:
    """Runs all cases in each round, telling on stderr how far it is."""
    made = cases(sizes)
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in made}
    counts: dict[str, dict[str, float]] = {name: {} for name in made}
    if (reason := allocations.missing()) is not None:
        print(f"no allocations: {reason}", file=sys.stderr)
    for name, run in made.items():
        # Once to be warm, then counted apart from any timing.
        run()
        if reason is None:
            counts[name] = count_case(run)
    for round_number in range(rounds):
        for index, (name, run) in enumerate(made.items(), 1):
            print(f"[round {round_number + 1}/{rounds} {index:2}/{len(made)}] {name:34} ", end="", file=sys.stderr)
            nanoseconds = time_case(run, duration)
            print(f"{nanoseconds:10,.0f} ns", file=sys.stderr, flush=True)
            figures[name].append({"ns_per_op": nanoseconds, **counts[name]})
    return figures


def table(figures: dict[str, list[dict[str, float]]]) -> str:
    """Writes the report."""
    lines = [f"{'case':34} {'ns/op':>10} {'spread':>7} {'allocs/op':>10} {'bytes/op':>12}"]
    for name, by_round in figures.items():
        times = [figure["ns_per_op"] for figure in by_round]
        first = by_round[0]
        counts = ["-", "-"]
        if "allocs_per_op" in first:
            counts = [f"{first['allocs_per_op']:,.2f}", f"{first['bytes_per_op']:,.0f}"]
        lines.append(f"{name:34} {median(times):>10,.0f} {spread(times):>7.0%} {counts[0]:>10} {counts[1]:>12}")
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `frames`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument(
        "--sizes",
        type=sizes,
        default=DEFAULT_SIZES,
        metavar="A,B",
        help="payload bytes of the DATA frames, K and M allowed (default: 100,1K,16K,64K)",
    )
    parser.add_argument("--rounds", type=positive(int), default=5, help="rounds of all cases (default: 5)")
    parser.add_argument(
        "--duration",
        type=positive(float),
        default=0.2,
        metavar="SECONDS",
        help="of each case in each round (default: 0.2)",
    )
    parser.add_argument(
        "--json",
        type=json_path,
        default=RESULTS / "frames.json",
        metavar="FILE",
        help="where the results go (default: benchmarks/results/frames.json)",
    )


def main(arguments: argparse.Namespace) -> int:
    """Measures, prints the table, writes the JSON."""
    try:
        figures = measure(arguments.sizes, arguments.rounds, arguments.duration)
    except ParsedWrongError as error:
        print(f"frames: {error}", file=sys.stderr)
        return 1
    print(table(figures))
    options = {"sizes": arguments.sizes, "rounds": arguments.rounds, "duration": arguments.duration}
    results.write(arguments.json, results.record("frames", options, figures))
    return 0
