"""Frames read from bytes: what each says, windows, messages, and what cannot be read."""

from __future__ import annotations

import random
from typing import Any

import h2.config
import h2.connection
import h2.settings
import pytest

from trio_grpc.cli._frames import FrameLog, FrameSeen, document

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def message(data: bytes, compressed: bool = False) -> bytes:
    return bytes([compressed]) + len(data).to_bytes(4, "big") + data


def read(*passed: tuple[bool, bytes]) -> list[FrameSeen]:
    log = FrameLog()
    return [seen for sent, data in passed for seen in log.feed(sent, data)]


def conversation() -> list[tuple[bool, bytes]]:
    """A call as h2 writes it, both ways."""
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    passed: list[tuple[bool, bytes]] = []

    def exchange() -> None:
        for _ in range(3):
            for sent, side, other in ((True, client, server), (False, server, client)):
                data = side.data_to_send()
                if data:
                    passed.append((sent, data))
                    other.receive_data(data)

    client.initiate_connection()
    server.initiate_connection()
    exchange()
    headers = [(":method", "POST"), (":scheme", "http"), (":path", "/a.B/C"), (":authority", "x"), ("key", "value")]
    client.send_headers(1, headers)
    client.send_data(1, message(b"hello") + message(b"again", True)[:3])
    client.send_data(1, message(b"again", True)[3:], end_stream=True)
    exchange()
    server.send_headers(1, [(":status", "200"), ("content-type", "application/grpc")])
    server.send_data(1, message(b"reply"))
    server.increment_flow_control_window(1000)
    server.increment_flow_control_window(500, 1)
    server.send_headers(1, [("grpc-status", "0")], end_stream=True)
    client.ping(b"12345678")
    exchange()
    server.close_connection(2, b"why", 1)
    exchange()
    return passed


def of_type(seen: list[FrameSeen], kind: str, sent: bool) -> list[FrameSeen]:
    return [one for one in seen if one.type == kind and one.sent is sent]


def test_a_call() -> None:
    seen = read(*conversation())
    (request,) = of_type(seen, "HEADERS", sent=True)
    assert request.headers is not None
    assert (":path", "/a.B/C") in request.headers
    assert ("key", "value") in request.headers
    head, trailers = of_type(seen, "HEADERS", sent=False)
    assert head.headers == [(":status", "200"), ("content-type", "application/grpc")]
    assert trailers.headers == [("grpc-status", "0")]
    assert trailers.flags == ["END_STREAM", "END_HEADERS"]
    first, second = of_type(seen, "DATA", sent=True)
    assert [(one.compressed, one.data) for one in first.messages] == [(False, b"hello")]
    assert first.partial == 3
    assert [(one.compressed, one.data) for one in second.messages] == [(True, b"again")]
    assert (second.partial, second.flags) == (0, ["END_STREAM"])
    (ping,) = of_type(seen, "PING", sent=True)
    (pong,) = of_type(seen, "PING", sent=False)
    assert (ping.text, ping.flags, pong.flags) == (b"12345678".hex(), [], ["ACK"])
    (goaway,) = of_type(seen, "GOAWAY", sent=False)
    assert (goaway.error, goaway.last_stream, goaway.text) == ("INTERNAL_ERROR", 1, "why")
    assert of_type(seen, "SETTINGS", sent=True)[0].settings is not None


def test_windows() -> None:
    seen = read(*conversation())
    first, second = of_type(seen, "DATA", sent=True)
    assert first.windows == (65_535 - 13, 65_535 - 13)
    assert second.windows == (65_535 - 20, 65_535 - 20)
    connection, stream = of_type(seen, "WINDOW_UPDATE", sent=False)
    assert (connection.increment, connection.windows) == (1000, (66_535 - 20, None))
    assert (stream.increment, stream.windows) == (500, (66_535 - 20, 66_035 - 20))
    (reply,) = of_type(seen, "DATA", sent=False)
    assert reply.windows == (65_535 - 10, 65_535 - 10)


def test_settings_change_the_windows_of_streams() -> None:
    settings = (4).to_bytes(2, "big") + (100).to_bytes(4, "big")
    *_, data = read(
        (True, PREFACE + frame(0, 0, 1, b"x" * 10)),
        (False, frame(4, 0, 0, settings)),
        (True, frame(0, 0, 1, b"x" * 10)),
    )
    assert data.windows == (65_535 - 20, 80)


@pytest.mark.parametrize("seed", range(5))
def test_bytes_may_come_in_any_pieces(seed: int) -> None:
    whole = conversation()
    chance = random.Random(seed)
    pieces: list[tuple[bool, bytes]] = []
    for sent, data in whole:
        while data:
            size = chance.randint(1, 20)
            pieces.append((sent, data[:size]))
            data = data[size:]
    assert read(*pieces) == read(*whole)


def test_headers_in_several_frames_and_padding() -> None:
    block = b"\x83\x86"  # :method: POST, :scheme: http
    padded = bytes([3]) + bytes(5) + block + bytes(3)
    first, second, data = read(
        (True, PREFACE + frame(1, 0x28, 1, padded)),
        (True, frame(9, 4, 1, b"\x84")),
        (True, frame(0, 8, 1, bytes([2]) + message(b"x") + bytes(2))),
    )
    assert (first.headers, first.flags) == (None, ["PADDED", "PRIORITY"])
    assert second.headers == [(":method", "POST"), (":scheme", "http"), (":path", "/")]
    assert [one.data for one in data.messages] == [b"x"]
    assert data.windows == (65_535 - 9, 65_535 - 9)


def test_what_nobody_knows_is_shown_as_it_is() -> None:
    unknown, reset, setting, broken = read(
        (False, frame(0x77, 1, 3, b"abc")),
        (False, frame(3, 0, 1, (0x99).to_bytes(4, "big"))),
        (False, frame(4, 0, 0, (0x99).to_bytes(2, "big") + bytes(4))),
        (False, frame(1, 4, 1, b"\xff\xff\xff\xff\xff\xff")),
    )
    assert (unknown.type, unknown.length, unknown.flags) == ("0x77", 3, [])
    assert reset.error == "0x99"
    assert setting.settings == {"0x99": 0}
    assert broken.headers is None
    assert str(broken.text).startswith("cannot be read: ")


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_reason_to_fail(seed: int) -> None:
    chance = random.Random(seed)
    log = FrameLog()
    for _ in range(200):
        payload = chance.randbytes(chance.randint(0, 40))
        data = frame(chance.randint(0, 12), chance.randint(0, 255), chance.randint(0, 9), payload)
        for seen in log.feed(chance.random() < 0.5, data):
            document(seen)


def test_documents() -> None:
    seen = read(*conversation())
    (goaway,) = of_type(seen, "GOAWAY", sent=False)
    assert document(goaway) == {
        "direction": "received", "stream": 0, "type": "GOAWAY", "flags": [], "length": 11,
        "error": "INTERNAL_ERROR", "last_stream": 1, "text": "why",
    }  # fmt: skip
    first: Any = document(of_type(seen, "DATA", sent=True)[0])
    assert (first["windows"], first["partial_message"]) == ({"connection": 65_522, "stream": 65_522}, 3)
    head: Any = document(of_type(seen, "HEADERS", sent=False)[0])
    assert head["headers"] == [[":status", "200"], ["content-type", "application/grpc"]]
