"""The TLS handshake: what is closed, and what both ends are told."""

from __future__ import annotations

import ssl

import pytest
import trio
import trio.testing
import trustme

from trio_grpc._transport.side import Side
from trio_grpc._transport.tls import TlsError, explain, offer_h2, start_tls

Clock = trio.testing.MockClock
AUTHORITY = trustme.CA()


@pytest.fixture
def server_context() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    AUTHORITY.issue_cert("localhost").configure_cert(context)
    offer_h2(context)
    return context


@pytest.fixture
def client_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    offer_h2(context)
    return context


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    data = b""
    while chunk := await stream.receive_some():
        data += chunk
    return data


async def test_both_sides(server_context: ssl.SSLContext, client_context: ssl.SSLContext) -> None:
    near, far = trio.testing.memory_stream_pair()

    async def serve() -> None:
        tls = await start_tls(far, server_context, Side.SERVER)
        await tls.send_all(await tls.receive_some())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        tls = await start_tls(near, client_context, Side.CLIENT, "localhost")
        assert tls.selected_alpn_protocol() == "h2"
        await tls.send_all(b"hello")
        assert await tls.receive_some() == b"hello"


#: A ClientHello that offers no version but SSL 3.0.
ANCIENT_HELLO = bytes.fromhex("160300002d010000290300") + bytes(32) + bytes.fromhex("000002000a0100")


async def test_a_server_says_what_was_wrong_and_lets_the_client_hang_up_first(
    server_context: ssl.SSLContext, autojump_clock: Clock
) -> None:
    near, far = trio.testing.memory_stream_pair()

    async def serve() -> None:
        with pytest.raises(TlsError):
            await start_tls(far, server_context, Side.SERVER)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await near.send_all(ANCIENT_HELLO)
        alert = await read_all(near)
        assert alert[0] == 0x15
        await near.send_all(bytes(1000))
        await near.send_stream.aclose()
    assert trio.current_time() == 0


@pytest.mark.parametrize("reads", [True, False])
async def test_a_client_that_does_not_hang_up_is_not_waited_for(
    server_context: ssl.SSLContext, autojump_clock: Clock, reads: bool
) -> None:
    near, far = trio.testing.memory_stream_pair()
    await near.send_all(ANCIENT_HELLO)
    if not reads:

        async def never() -> None:
            await trio.sleep_forever()

        far.send_stream.send_all_hook = never
    with pytest.raises(TlsError):
        await start_tls(far, server_context, Side.SERVER)
    assert trio.current_time() == pytest.approx(1)


async def test_a_client_says_what_was_wrong_and_does_not_wait(
    server_context: ssl.SSLContext, autojump_clock: Clock
) -> None:
    near, far = trio.testing.memory_stream_pair()
    texts: list[str] = []

    async def serve() -> None:
        with pytest.raises(TlsError) as caught:
            await start_tls(far, server_context, Side.SERVER)
        texts.append(str(caught.value))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        # This one does not know the authority.
        with pytest.raises(TlsError, match="certificate verify failed for 'localhost': "):
            await start_tls(near, ssl.create_default_context(), Side.CLIENT, "localhost")
        assert trio.current_time() == 0
    assert texts[0].startswith("the peer refused: ")


@pytest.mark.parametrize("side", list(Side))
async def test_a_cancelled_handshake_closes_its_stream(
    side: Side, server_context: ssl.SSLContext, client_context: ssl.SSLContext, autojump_clock: Clock
) -> None:
    near, far = trio.testing.memory_stream_pair()
    with trio.move_on_after(1) as scope:
        await start_tls(far, server_context if side is Side.SERVER else client_context, side, None)
    assert scope.cancelled_caught
    await read_all(near)


def broken(cause: BaseException | None) -> trio.BrokenResourceError:
    error = trio.BrokenResourceError()
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionResetError(104, "Connection reset by peer"), "[Errno 104] Connection reset by peer"),
        (broken(ConnectionResetError(104, "Connection reset by peer")), "[Errno 104] Connection reset by peer"),
        (broken(None), "BrokenResourceError"),
        (trio.BrokenResourceError("a text"), "a text"),
        (trio.ClosedResourceError(), "ClosedResourceError"),
        (broken(ssl.SSLEOFError(8, "EOF occurred")), "the peer hung up in the middle of it"),
        (broken(ssl.SSLError(1, "something")), "something"),
    ],
)
def test_explanations(error: BaseException, text: str) -> None:
    assert explain(error) == text
