"""The framer, rule by rule: what it hands on, and which rules of RFC 9113 end the connection or a stream."""

from __future__ import annotations

import itertools
from typing import Any

import hpack
import hyperframe.frame
import pytest

from trio_grpc._transport import frames
from trio_grpc._transport.control_buffer import ApplySettings
from trio_grpc._transport.framer import MAX_HEADER_BLOCK, Framer
from trio_grpc._transport.frames import ConnectionFault, ErrorCode
from trio_grpc._transport.header_codec import HeaderDecoder, HeaderListTooLarge

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 1
END_HEADERS, PADDED, PRIORITY_FLAG = 4, 8, 32

FIELDS = [(b":path", b"/a.B/C"), (b"x-a", b"1")]
OTHER_FIELDS = [(b":path", b"/d.E/F")]


class Recorder:
    """A `FrameHandler` that writes down what it is told; DATA of one frame is put together."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.acks: list[bytes] = []
        self.header_list_limit: int | None = None
        self.blocks_begun = 0
        self.overhead = 0

    def on_headers(self, stream_id: int, record: Any, end_stream: bool) -> None:
        self.events.append(("headers", stream_id, record, end_stream))

    def on_data(self, stream_id: int, data: bytes, start: int, stop: int, flow_length: int, end_stream: bool) -> None:
        assert 0 <= start <= stop <= len(data)
        payload = data[start:stop]
        if self.events and self.events[-1][0] == "data" and self.events[-1][1] == stream_id and not flow_length:
            _, _, earlier, flow_length, ended = self.events.pop()
            assert not ended
            payload = earlier + payload
        self.events.append(("data", stream_id, payload, flow_length, end_stream))

    def on_reset(self, stream_id: int, error_code: int) -> None:
        self.events.append(("reset", stream_id, error_code))

    def on_window_update(self, stream_id: int, increment: int) -> None:
        assert increment
        self.events.append(("window", stream_id, increment))

    def on_stream_fault(self, stream_id: int, error_code: int, reason: str) -> None:
        assert reason
        self.events.append(("fault", stream_id, error_code))

    def on_block_begun(self) -> None:
        self.blocks_begun += 1

    def on_overhead(self) -> None:
        self.overhead += 1

    def on_goaway(self, last_stream_id: int, error_code: int, debug_data: bytes) -> None:
        self.events.append(("goaway", last_stream_id, error_code, debug_data))

    def on_settings(
        self, settings: ApplySettings, max_concurrent_streams: int | None, max_header_list_size: int | None
    ) -> None:
        self.acks.append(settings.ack)
        self.events.append(
            (
                "settings",
                settings.header_table_size,
                settings.initial_window_size,
                settings.max_frame_size,
                max_concurrent_streams,
            )
        )
        self.header_list_limit = max_header_list_size

    def on_settings_acknowledged(self) -> None:
        self.events.append(("settings acknowledged",))

    def on_ping(self, reply: bytes) -> None:
        self.events.append(("ping", reply))

    def on_ping_acknowledged(self, payload: bytes) -> None:
        self.events.append(("pong", payload))


class Conversation:
    """A framer, and what it has handed on."""

    def __init__(self, *, client_side: bool = False, max_frame_size: int = 16_384, begun: bool = True) -> None:
        self.recorder = Recorder()
        decoder: HeaderDecoder[tuple[Any, ...]] = HeaderDecoder(tuple, max_list_size=4096)
        self.framer = Framer(
            self.recorder,
            decoder,
            client_side=client_side,
            settings={frames.SETTINGS_MAX_FRAME_SIZE: max_frame_size},
            max_frame_size=max_frame_size,
        )
        self.encoder = hpack.Encoder()
        if begun:
            self.framer.receive((b"" if client_side else frames.PREFACE) + frames.frame(SETTINGS, 0, 0))
            self.recorder.events.clear()

    def receive(self, data: bytes) -> list[tuple[Any, ...]]:
        """What the framer hands on for these bytes."""
        self.framer.receive(data)
        events = self.recorder.events[:]
        self.recorder.events.clear()
        return events

    def fault(self, data: bytes) -> ConnectionFault:
        """The connection error that these bytes must be."""
        with pytest.raises(ConnectionFault) as caught:
            self.framer.receive(data)
        return caught.value

    def block(self, fields: list[tuple[bytes, bytes]] | None = None) -> bytes:
        return self.encoder.encode(FIELDS if fields is None else fields)


def setting(identifier: int, value: int) -> bytes:
    return identifier.to_bytes(2, "big") + value.to_bytes(4, "big")


# ---------------------------------------------------------------------------------------------------------------------
# The beginning


@pytest.mark.parametrize("client_side", [True, False])
def test_our_preface(client_side: bool) -> None:
    preface = Conversation(client_side=client_side).framer.preface
    if client_side:
        assert preface.startswith(frames.PREFACE)
        preface = preface[len(frames.PREFACE) :]
    frame, length = hyperframe.frame.Frame.parse_frame_header(memoryview(preface)[:9])
    frame.parse_body(memoryview(preface)[9:])
    assert isinstance(frame, hyperframe.frame.SettingsFrame)
    assert len(preface) == 9 + length
    assert frame.settings[frames.SETTINGS_MAX_FRAME_SIZE] == 16_384


def test_the_clients_preface_may_come_in_pieces() -> None:
    conversation = Conversation(begun=False)
    for octet in frames.PREFACE + frames.frame(SETTINGS, 0, 0):
        assert not conversation.framer.settings_received
        conversation.framer.receive(bytes((octet,)))
    assert conversation.framer.settings_received
    assert [event[0] for event in conversation.recorder.events] == ["settings"]


@pytest.mark.parametrize("position", range(len(frames.PREFACE)))
def test_every_octet_of_the_preface_counts(position: int) -> None:
    preface = bytearray(frames.PREFACE)
    preface[position] ^= 1
    conversation = Conversation(begun=False)
    conversation.framer.receive(bytes(preface[:position]))
    fault = conversation.fault(bytes(preface[position:]))
    assert fault.error_code is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"\x16\x03\x01\x02\x00\x01", "peer sent a TLS handshake to a plaintext port"),
        (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "peer speaks HTTP/1.x, not HTTP/2 with prior knowledge: it said b'GET / HTTP/1.1'",
        ),
        (
            b"POST /" + b"x" * 100 + b" HTTP/1.0\r\n\r\n",
            f"peer speaks HTTP/1.x, not HTTP/2 with prior knowledge: it said {b'POST /' + b'x' * 74!r}",
        ),
        (b"hello", "peer did not begin with the HTTP/2 client preface but with b'hello'"),
        (b"\xff" * 100, "peer did not begin with the HTTP/2 client preface but with " + repr(b"\xff" * 24)),
    ],
)
def test_what_a_stranger_at_a_server_is_taken_for(said: bytes, reason: str) -> None:
    assert Conversation(begun=False).fault(said).reason == reason


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"\x15\x03\x03\x00\x02\x02\x46", "peer answered with a TLS alert: it expects TLS"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "peer speaks HTTP/1.x, not HTTP/2 with prior knowledge"),
        (b"HTTP/1", "peer did not begin with SETTINGS but with b'HTTP/1'"),
        (frames.frame(PING, 0, 0, bytes(8)), "peer did not begin with SETTINGS but with "),
        (frames.frame(SETTINGS, ACK, 0), "peer did not begin with SETTINGS but with "),
        (frames.frame(DATA, 0, 1, b"x"), "peer did not begin with SETTINGS but with "),
        (frames.frame(0xEE, 0, 0), "peer did not begin with SETTINGS but with "),
    ],
)
def test_what_a_stranger_at_a_client_is_taken_for(said: bytes, reason: str) -> None:
    fault = Conversation(begun=False, client_side=True).fault(said)
    assert fault.error_code is ErrorCode.PROTOCOL_ERROR
    assert fault.reason.startswith(reason)


# ---------------------------------------------------------------------------------------------------------------------
# DATA


def test_data_is_handed_on_where_it_lies() -> None:
    """No copy: the bytes that were read, and positions in them."""
    conversation = Conversation()
    seen = []
    conversation.recorder.on_data = lambda *args: seen.append(args)  # type: ignore[method-assign]
    data = (
        frames.frame(DATA, 0, 1, b"abc")
        + frames.frame(DATA, END_STREAM, 3, b"")
        + frames.frame(DATA, 0, 1, b"def")[:10]
    )
    conversation.framer.receive(data)
    assert [args[1] is data for args in seen] == [True, True, True]
    assert [(args[0], *args[2:]) for args in seen] == [
        (1, 9, 12, 3, False),
        (3, 21, 21, 0, True),
        (1, 30, 31, 3, False),
    ]
    rest = frames.frame(DATA, 0, 1, b"def")[10:]
    conversation.framer.receive(rest)
    assert seen[3] == (1, rest, 0, 2, 0, False)


@pytest.mark.parametrize("padding", [0, 1, 255])
@pytest.mark.parametrize("length", [0, 1, 1000])
@pytest.mark.parametrize("flags", [0, END_STREAM])
def test_padding_counts_for_flow_control_only(padding: int, length: int, flags: int) -> None:
    payload = bytes((padding,)) + b"x" * length + bytes(padding)
    data = frames.frame(DATA, PADDED | flags, 1, payload)
    expected = [("data", 1, b"x" * length, length + padding + 1, bool(flags)), ("window", 1, 1)]
    assert Conversation().receive(data + frames.window_update(1, 1)) == expected
    # However it is cut; END_STREAM comes with the last payload byte.
    for size in (1, 2, 3, 10):
        conversation = Conversation()
        whole = data + frames.window_update(1, 1)
        for start in range(0, len(whole), size):
            conversation.framer.receive(whole[start : start + size])
        assert conversation.recorder.events == expected


@pytest.mark.parametrize("payload", [b"\x01", b"\x03ab", b"\xff" + bytes(254)])
def test_padding_as_long_as_the_frame(payload: bytes) -> None:
    assert Conversation().fault(frames.frame(DATA, PADDED, 1, payload)).error_code is ErrorCode.PROTOCOL_ERROR


def test_padding_without_a_length() -> None:
    assert Conversation().fault(frames.frame(DATA, PADDED, 1)).error_code is ErrorCode.FRAME_SIZE_ERROR


@pytest.mark.parametrize("flags", [0, PADDED])
def test_data_over_the_frame_size_is_a_fault_of_its_stream(flags: int) -> None:
    """RFC 9113, 4.2. Its bytes still count for the connection."""
    data = frames.frame(DATA, flags, 1, bytes(16_385)) + frames.rst_stream(3, 8)
    assert Conversation().receive(data) == [
        ("fault", 1, ErrorCode.FRAME_SIZE_ERROR),
        ("data", 1, bytes(16_385 - bool(flags)), 16_385, False),
        ("reset", 3, 8),
    ]


def test_data_on_stream_0() -> None:
    assert Conversation().fault(frames.frame(DATA, 0, 0, b"x")).error_code is ErrorCode.PROTOCOL_ERROR


def test_the_reserved_bit_of_a_stream_id_is_ignored() -> None:
    data = frames.frame(DATA, 0, 0x80000001, b"x") + frames.rst_stream(0x80000003, 8)
    assert Conversation().receive(data) == [("data", 1, b"x", 1, False), ("reset", 3, 8)]


# ---------------------------------------------------------------------------------------------------------------------
# Header blocks


def test_headers() -> None:
    conversation = Conversation()
    data = frames.frame(HEADERS, END_HEADERS, 1, conversation.block())
    data += frames.frame(HEADERS, END_HEADERS | END_STREAM, 3, conversation.block(OTHER_FIELDS))
    assert conversation.receive(data) == [
        ("headers", 1, tuple(FIELDS), False),
        ("headers", 3, tuple(OTHER_FIELDS), True),
    ]


@pytest.mark.parametrize("end_stream", [0, END_STREAM])
@pytest.mark.parametrize("priority", [b"", b"\0\0\0\0\0", b"\x80\0\0\3\xff"])
@pytest.mark.parametrize("padding", [None, 0, 7])
def test_padding_and_priority_of_headers_are_skipped(padding: int | None, priority: bytes, end_stream: int) -> None:
    conversation = Conversation()
    payload = priority + conversation.block()
    flags = END_HEADERS | end_stream | (PRIORITY_FLAG if priority else 0)
    if padding is not None:
        flags |= PADDED
        payload = bytes((padding,)) + payload + bytes(padding)
    assert conversation.receive(frames.frame(HEADERS, flags, 1, payload)) == [
        ("headers", 1, tuple(FIELDS), bool(end_stream))
    ]


@pytest.mark.parametrize("cuts", [[0], [1], [5, 6], [0, 0, 0], [3, 3, 10]])
@pytest.mark.parametrize("end_stream", [0, END_STREAM])
def test_continuation(cuts: list[int], end_stream: int) -> None:
    conversation = Conversation()
    block = conversation.block()
    edges = [0, *cuts, len(block)]
    pieces = [block[start:stop] for start, stop in itertools.pairwise(edges)]
    data = frames.frame(HEADERS, end_stream, 1, pieces[0])
    for piece in pieces[1:-1]:
        data += frames.frame(CONTINUATION, 0, 1, piece)
    # Flags that CONTINUATION does not have are ignored.
    data += frames.frame(CONTINUATION, END_HEADERS | END_STREAM, 1, pieces[-1])
    assert conversation.receive(data) == [("headers", 1, tuple(FIELDS), bool(end_stream))]
    assert conversation.receive(frames.frame(HEADERS, END_HEADERS, 3, conversation.block())) == [
        ("headers", 3, tuple(FIELDS), False)
    ]


@pytest.mark.parametrize(
    "intruder",
    [
        frames.frame(DATA, 0, 1, b"x"),
        frames.frame(DATA, 0, 3, b""),
        frames.frame(HEADERS, END_HEADERS, 1),
        frames.frame(HEADERS, END_HEADERS, 3),
        frames.frame(PRIORITY, 0, 1, bytes(5)),
        frames.frame(RST_STREAM, 0, 1, bytes(4)),
        frames.frame(SETTINGS, 0, 0),
        frames.frame(PING, 0, 0, bytes(8)),
        frames.frame(GOAWAY, 0, 0, bytes(8)),
        frames.frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\1"),
        frames.frame(CONTINUATION, END_HEADERS, 3),
        frames.frame(CONTINUATION, END_HEADERS, 0),
        frames.frame(0xEE, 0, 1),
    ],
)
def test_nothing_may_interrupt_a_header_block(intruder: bytes) -> None:
    conversation = Conversation()
    conversation.framer.receive(frames.frame(HEADERS, 0, 1, conversation.block()[:3]))
    assert conversation.fault(intruder).error_code is ErrorCode.PROTOCOL_ERROR


def test_a_block_that_never_ends() -> None:
    conversation = Conversation()
    conversation.framer.receive(frames.frame(HEADERS, 0, 1))
    fault = conversation.fault(frames.frame(CONTINUATION, 0, 1) * 1000)
    assert fault.error_code is ErrorCode.ENHANCE_YOUR_CALM


def test_a_block_that_is_too_long_is_not_decoded() -> None:
    conversation = Conversation()
    # Not HPACK at all.
    piece = frames.frame(CONTINUATION, 0, 1, b"\x80" * 16_384)
    conversation.framer.receive(frames.frame(HEADERS, 0, 1, b""))
    for _ in range(MAX_HEADER_BLOCK // 16_384):
        conversation.framer.receive(piece)
    assert conversation.fault(piece).error_code is ErrorCode.ENHANCE_YOUR_CALM
    assert not conversation.recorder.events


def test_a_list_over_the_limit_is_left_to_the_handler() -> None:
    conversation = Conversation()
    big = [(b"x-big", b"v" * 5000)]
    [event] = conversation.receive(frames.frame(HEADERS, END_HEADERS, 1, conversation.block(big)))
    assert isinstance(event[2], HeaderListTooLarge)
    # The tables still agree.
    assert conversation.receive(frames.frame(HEADERS, END_HEADERS, 3, conversation.block())) == [
        ("headers", 3, tuple(FIELDS), False)
    ]


@pytest.mark.parametrize("block", [b"\x80", b"\xff\xff\xff\xff\xff\xff", b"\x40\x05ab", b"\xbe", b"\x3f\xe2\x1f"])
def test_a_block_that_is_no_hpack(block: bytes) -> None:
    fault = Conversation().fault(frames.frame(HEADERS, END_HEADERS, 1, block))
    assert fault.error_code is ErrorCode.COMPRESSION_ERROR
    assert fault.__cause__ is not None


# ---------------------------------------------------------------------------------------------------------------------
# The others

FAULTS: dict[str, tuple[bytes, ErrorCode]] = {
    "HEADERS on stream 0": (frames.frame(HEADERS, END_HEADERS, 0), ErrorCode.PROTOCOL_ERROR),
    "HEADERS padding without a length": (frames.frame(HEADERS, END_HEADERS | PADDED, 1), ErrorCode.FRAME_SIZE_ERROR),
    "HEADERS padding too long": (frames.frame(HEADERS, END_HEADERS | PADDED, 1, b"\x02a"), ErrorCode.PROTOCOL_ERROR),
    "HEADERS too short for a priority": (
        frames.frame(HEADERS, END_HEADERS | PRIORITY_FLAG, 1, bytes(4)),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "HEADERS over the frame size": (frames.frame(HEADERS, END_HEADERS, 1, bytes(16_385)), ErrorCode.FRAME_SIZE_ERROR),
    "CONTINUATION alone": (frames.frame(CONTINUATION, END_HEADERS, 1), ErrorCode.PROTOCOL_ERROR),
    "RST_STREAM on stream 0": (frames.frame(RST_STREAM, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "RST_STREAM of 5 bytes": (frames.frame(RST_STREAM, 0, 1, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
    "PRIORITY on stream 0": (frames.frame(PRIORITY, 0, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR),
    "PUSH_PROMISE": (frames.frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "WINDOW_UPDATE of 3 bytes": (frames.frame(WINDOW_UPDATE, 0, 1, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE of 0": (frames.frame(WINDOW_UPDATE, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "SETTINGS on a stream": (frames.frame(SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
    "SETTINGS of 5 bytes": (frames.frame(SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
    "SETTINGS ACK with a payload": (frames.frame(SETTINGS, ACK, 0, setting(3, 1)), ErrorCode.FRAME_SIZE_ERROR),
    "33 settings": (frames.frame(SETTINGS, 0, 0, setting(3, 1) * 33), ErrorCode.ENHANCE_YOUR_CALM),
    "ENABLE_PUSH 2": (frames.frame(SETTINGS, 0, 0, setting(2, 2)), ErrorCode.PROTOCOL_ERROR),
    "INITIAL_WINDOW_SIZE 2**31": (frames.frame(SETTINGS, 0, 0, setting(4, 2**31)), ErrorCode.FLOW_CONTROL_ERROR),
    "MAX_FRAME_SIZE 16383": (frames.frame(SETTINGS, 0, 0, setting(5, 16_383)), ErrorCode.PROTOCOL_ERROR),
    "MAX_FRAME_SIZE 2**24": (frames.frame(SETTINGS, 0, 0, setting(5, 2**24)), ErrorCode.PROTOCOL_ERROR),
    "PING on a stream": (frames.frame(PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "PING of 9 bytes": (frames.frame(PING, 0, 0, bytes(9)), ErrorCode.FRAME_SIZE_ERROR),
    "GOAWAY on a stream": (frames.frame(GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "GOAWAY of 7 bytes": (frames.frame(GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    "unknown frame over the frame size": (frames.frame(0xEE, 0, 0, bytes(16_385)), ErrorCode.FRAME_SIZE_ERROR),
}


@pytest.mark.parametrize("client_side", [True, False], ids=["client", "server"])
@pytest.mark.parametrize("name", FAULTS)
def test_connection_errors(name: str, client_side: bool) -> None:
    data, error_code = FAULTS[name]
    conversation = Conversation(client_side=client_side)
    # What came before in the same read is handed on first.
    fault = conversation.fault(frames.window_update(1, 7) + data)
    assert fault.error_code == error_code
    assert fault.reason
    assert conversation.recorder.events == [("window", 1, 7)]


def test_a_frame_over_the_size_is_judged_by_its_header() -> None:
    data = frames.frame(HEADERS, END_HEADERS, 1, bytes(16_385))
    assert Conversation().fault(data[:9]).error_code is ErrorCode.FRAME_SIZE_ERROR


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (frames.rst_stream(1, 0xDEADBEEF), [("reset", 1, 0xDEADBEEF)]),
        (frames.window_update(0, 2**31 - 1), [("window", 0, 2**31 - 1)]),
        (frames.frame(WINDOW_UPDATE, 0, 5, b"\x80\0\0\2"), [("window", 5, 2)]),
        (frames.window_update(5, 0), [("fault", 5, ErrorCode.PROTOCOL_ERROR)]),
        (frames.goaway(7, 11, b"too_many_pings"), [("goaway", 7, 11, b"too_many_pings")]),
        (frames.goaway(0xFFFFFFFF, 0), [("goaway", 2**31 - 1, 0, b"")]),
        (frames.frame(PING, ACK, 0, b"12345678"), [("pong", b"12345678")]),
        (frames.frame(PING, 0xFE, 0, b"12345678"), [("ping", frames.frame(PING, ACK, 0, b"12345678"))]),
        (frames.frame(PRIORITY, 0, 1, bytes(5)), []),
        (frames.frame(PRIORITY, 0, 1, b"\0\0\0\1\0"), [("fault", 1, ErrorCode.PROTOCOL_ERROR)]),
        (frames.frame(PRIORITY, 0, 1, bytes(6)), [("fault", 1, ErrorCode.FRAME_SIZE_ERROR)]),
        (frames.frame(0xEE, 0xFF, 0, b"?"), []),
        (frames.frame(0xEE, 0xFF, 5, bytes(16_384)), []),
    ],
)
@pytest.mark.parametrize("client_side", [True, False], ids=["client", "server"])
def test_what_is_handed_on(data: bytes, expected: list[tuple[Any, ...]], client_side: bool) -> None:
    conversation = Conversation(client_side=client_side)
    if any(event[0] == "pong" for event in expected):
        conversation.framer.ping(b"12345678")
    assert conversation.receive(data) == expected


def test_settings_are_handed_on_with_their_ack() -> None:
    conversation = Conversation(client_side=True)
    payload = b"".join(
        setting(*one) for one in [(1, 100), (3, 7), (4, 2**31 - 1), (5, 2**24 - 1), (6, 1), (0x9999, 5), (3, 8)]
    )
    assert conversation.receive(frames.frame(SETTINGS, 0, 0, payload)) == [("settings", 100, 2**31 - 1, 2**24 - 1, 8)]
    assert conversation.recorder.acks[-1] == frames.frame(SETTINGS, ACK, 0)
    assert conversation.receive(frames.frame(SETTINGS, 0, 0)) == [("settings", None, None, None, None)]
    # Our own were acknowledged.
    assert conversation.receive(frames.frame(SETTINGS, ACK, 0)) == [("settings acknowledged",)]


def test_a_peer_does_not_choose_our_memory() -> None:
    [event] = Conversation().receive(frames.frame(SETTINGS, 0, 0, setting(1, 2**32 - 1)))
    assert event == ("settings", 4096, None, None, None)


def test_unknown_settings_are_not_remembered() -> None:
    conversation = Conversation()
    for number in range(100, 10_000, 32):
        payload = b"".join(setting(number + step, 1) for step in range(32))
        conversation.framer.receive(frames.frame(SETTINGS, 0, 0, payload))
    assert conversation.framer._h2 is not None
    assert len(conversation.framer._h2.remote_settings) < 20


@pytest.mark.parametrize("client_side", [True, False], ids=["client", "server"])
def test_what_judges_settings_is_there_only_until_ours_are_acknowledged(client_side: bool) -> None:
    conversation = Conversation(client_side=client_side)
    assert conversation.framer._h2 is not None
    conversation.receive(frames.frame(SETTINGS, ACK, 0))
    assert conversation.framer._h2 is None
    assert conversation.receive(frames.frame(SETTINGS, 0, 0, setting(4, 7))) == [("settings", None, 7, None, None)]
    assert conversation.recorder.acks[-1] == frames.frame(SETTINGS, ACK, 0)
    with pytest.raises(ConnectionFault) as caught:
        conversation.receive(frames.frame(SETTINGS, 0, 0, setting(4, 2**31)))
    assert caught.value.error_code == ErrorCode.FLOW_CONTROL_ERROR


def test_pings_of_connections_do_not_mix() -> None:
    conversations = [Conversation(client_side=client_side) for client_side in (True, False, True, False)]
    for number, conversation in enumerate(conversations):
        payload = bytes([number]) * 8
        assert conversation.framer.ping(payload) == frames.frame(PING, 0, 0, payload)
        reply = frames.frame(PING, ACK, 0, payload)
        assert conversation.receive(frames.frame(PING, 0, 0, payload)) == [("ping", reply)]


def test_a_ping_of_ours() -> None:
    framer = Conversation().framer
    assert framer.ping(b"trio_bdp") == frames.frame(PING, 0, 0, b"trio_bdp")
    # h2 keeps nothing back.
    assert framer.ping(b"trio_bye") == frames.frame(PING, 0, 0, b"trio_bye")


# ---------------------------------------------------------------------------------------------------------------------
# However the bytes are cut


def script(conversation: Conversation) -> bytes:
    block = conversation.block()
    return b"".join(
        (
            frames.frame(SETTINGS, 0, 0, setting(3, 5)),
            frames.frame(HEADERS, 0, 1, block[:2]),
            frames.frame(CONTINUATION, 0, 1, block[2:2]),
            frames.frame(CONTINUATION, END_HEADERS, 1, block[2:]),
            frames.frame(DATA, 0, 1, b"abcdef"),
            frames.frame(DATA, PADDED, 3, b"\x03ghi\0\0\0"),
            frames.frame(DATA, PADDED, 1, b"\0"),
            frames.frame(DATA, PADDED, 3, b"\x02\0\0"),
            frames.frame(DATA, 0, 3),
            frames.frame(PING, 0, 0, b"12345678"),
            frames.frame(DATA, PADDED | END_STREAM, 3, b"\x01jk\0"),
            frames.frame(DATA, END_STREAM, 1, b""),
            frames.frame(0xEE, 0, 9, b"unknown"),
            frames.frame(HEADERS, END_HEADERS | END_STREAM, 5, conversation.block(OTHER_FIELDS)),
            frames.rst_stream(5, 8),
            frames.window_update(0, 3),
            frames.goaway(0, 0, b"bye"),
        )
    )


@pytest.mark.parametrize("client_side", [True, False], ids=["client", "server"])
def test_every_cut_gives_the_same(client_side: bool) -> None:
    reference = Conversation(client_side=client_side)
    expected = reference.receive(script(reference))
    assert len(expected) == 13
    whole = script(Conversation(client_side=client_side))
    for size in (*range(1, 30), 100):
        conversation = Conversation(client_side=client_side)
        for start in range(0, len(whole), size):
            conversation.framer.receive(whole[start : start + size])
        assert conversation.recorder.events == expected
    for cut in range(len(whole)):
        conversation = Conversation(client_side=client_side)
        conversation.framer.receive(whole[:cut])
        conversation.framer.receive(whole[cut:])
        assert conversation.recorder.events == expected
