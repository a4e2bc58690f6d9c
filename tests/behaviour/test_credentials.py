"""Call credentials: what is asked when, what is sent, and what plaintext does not get."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer, EchoStub

import trio_grpc
from tests.echo_service import Context
from trio_grpc import BearerToken, CallCredentials, CallInfo, InterceptedCall, Metadata, Proceed, RpcError, StatusCode
from trio_grpc.testing import MemoryListener, open_channel_pair

Clock = trio.testing.MockClock


class Guarded(EchoServicer):
    """Tells what came as ``authorization``, and refuses what it is told to refuse."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.refused: set[str] = set()

    def _note(self, context: Context) -> str:
        values = context.metadata.get_all("authorization")
        self.seen.append(values)
        if self.refused.intersection(map(str, values)):
            raise RpcError(StatusCode.UNAUTHENTICATED, "who are you?")
        return " ".join(map(str, values))

    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        return EchoReply(text=self._note(context))

    async def ServerStream(self, request: EchoRequest, context: Context, /) -> Any:
        yield EchoReply(text=self._note(context))

    async def ClientStream(self, requests: Any, context: Context, /) -> EchoReply:
        async for _ in requests:
            pass
        return EchoReply(text=self._note(context))

    async def Bidi(self, requests: Any, context: Context, /) -> Any:
        yield EchoReply(text=self._note(context))


async def _unary(echo: EchoStub, **options: Any) -> str:
    return (await echo.Unary(EchoRequest(), **options)).text


async def _unary_opened(echo: EchoStub, **options: Any) -> str:
    async with echo.Unary.open(EchoRequest(), **options) as call:
        return (await call.receive()).text


async def _server_stream(echo: EchoStub, **options: Any) -> str:
    async with echo.ServerStream(EchoRequest(), **options) as call:
        return (await call.receive()).text


async def _client_stream(echo: EchoStub, **options: Any) -> str:
    return (await echo.ClientStream([EchoRequest()], **options)).text


async def _client_stream_opened(echo: EchoStub, **options: Any) -> str:
    async with echo.ClientStream.open(**options) as call:
        await call.done_sending()
        return (await call.receive()).text


async def _bidi(echo: EchoStub, **options: Any) -> str:
    async with echo.Bidi(**options) as call:
        return (await call.receive()).text


MakeCall = Callable[..., Awaitable[str]]
kinds = pytest.mark.parametrize(
    "call", [_unary, _unary_opened, _server_stream, _client_stream, _client_stream_opened, _bidi]
)


def saying(text: str) -> Callable[[CallInfo], Awaitable[dict[str, str]]]:
    async def credentials(_call: CallInfo) -> dict[str, str]:
        await trio.lowlevel.checkpoint()
        return {"authorization": text}

    return credentials


@kinds
async def test_all_kinds_of_call_take_them_of_their_channel_and_of_their_own(call: MakeCall) -> None:
    async with open_channel_pair(Guarded()) as (channel, _):
        assert await call(EchoStub(channel)) == ""
        assert await call(EchoStub(channel), credentials=saying("mine")) == "mine"
    async with open_channel_pair(Guarded(), credentials=saying("ours")) as (channel, _):
        assert await call(EchoStub(channel)) == "ours"
        assert await call(EchoStub(channel), credentials=saying("mine")) == "ours mine"


@kinds
async def test_they_go_beside_metadata_and_other_options(call: MakeCall) -> None:
    async with open_channel_pair(Guarded()) as (channel, _):
        text = await call(
            EchoStub(channel),
            metadata={"authorization": "by hand"},
            timeout=10,
            wait_for_ready=True,
            compression="gzip",
            credentials=saying("mine"),
        )
        assert text == "by hand mine"


async def test_they_are_told_of_the_call() -> None:
    calls: list[CallInfo] = []

    async def credentials(call: CallInfo) -> Metadata:
        calls.append(call)
        return Metadata()

    async with open_channel_pair(Guarded(), credentials=credentials) as (channel, _):
        await _unary(EchoStub(channel))
    method = EchoStub(channel).Unary.method.path
    service = method.rpartition("/")[0]
    assert calls == [CallInfo(method, "localhost", f"http://localhost{service}")]


async def test_interceptors_do_not_see_what_they_say() -> None:
    seen: list[Metadata] = []

    async def look(call: InterceptedCall, proceed: Proceed) -> None:
        await proceed()
        seen.append(call.metadata)

    async with open_channel_pair(Guarded(), interceptors=[look], credentials=saying("secret")) as (channel, _):
        assert await _unary(EchoStub(channel)) == "secret"
    assert [len(metadata) for metadata in seen] == [0]


# -- plaintext


@pytest.mark.parametrize("target", ["localhost:1", "dns:///localhost:1", "ipv4:127.0.0.1:1"])
async def test_they_are_not_sent_in_plaintext(target: str) -> None:
    with pytest.raises(ValueError, match=r"^credentials must not be sent to .*:1 in plaintext: use ssl_context="):
        trio_grpc.open_channel(target, credentials=saying("secret"))
    async with trio_grpc.open_channel(target) as channel:
        with pytest.raises(ValueError, match=r"^credentials must not be sent to .*:1 in plaintext: use ssl_context="):
            await EchoStub(channel).Unary(EchoRequest(), credentials=saying("secret"))
        assert channel.statistics().state == "idle"


async def test_nor_over_streams_that_the_channel_knows_nothing_of() -> None:
    with pytest.raises(ValueError, match=r"credentials must not be sent to MemoryListener.connect in plaintext"):
        trio_grpc.open_channel(MemoryListener().connect, credentials=saying("secret"))


async def test_they_may_allow_plaintext(nursery: trio.Nursery) -> None:
    class Careless(CallCredentials):
        allow_plaintext = True

        async def __call__(self, _call: CallInfo, /) -> dict[str, str]:
            return {"authorization": "known to all"}

    async def fetch() -> str:
        return "token"

    listener = MemoryListener()
    await nursery.start(trio_grpc.serve, [Guarded()], listener)
    async with trio_grpc.open_channel(listener.connect, credentials=Careless()) as channel:
        assert await _unary(EchoStub(channel)) == "known to all"
        token = BearerToken(fetch, allow_plaintext=True)
        assert await _unary(EchoStub(channel), credentials=token) == "known to all Bearer token"


async def test_a_unix_socket_needs_no_tls(nursery: trio.Nursery, tmp_path: Any) -> None:
    address = f"unix:{tmp_path}/socket"
    await nursery.start(trio_grpc.serve, [Guarded()], address)
    async with trio_grpc.open_channel(address, credentials=saying("secret")) as channel:
        assert await _unary(EchoStub(channel)) == "secret"


@pytest.mark.parametrize("credentials", ["token", 7, {"authorization": "x"}, BearerToken, CallCredentials])
async def test_what_cannot_be_called_is_refused(credentials: Any) -> None:
    with pytest.raises(TypeError, match=r"^credentials must be an async callable or None, not "):
        open_channel_pair(Guarded(), credentials=credentials)
    async with open_channel_pair(Guarded()) as (channel, _):
        with pytest.raises(TypeError, match=r"^credentials must be an async callable or None, not "):
            await EchoStub(channel).Unary(EchoRequest(), credentials=credentials)


# -- what they raise


def failing(error: Exception) -> Callable[[CallInfo], Awaitable[dict[str, str]]]:
    async def credentials(_call: CallInfo) -> dict[str, str]:
        raise error

    return credentials


@kinds
@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ConnectionRefusedError("no such luck"), StatusCode.UNAVAILABLE, "ConnectionRefusedError: no such luck"),
        (KeyError(), StatusCode.UNAVAILABLE, "KeyError"),
        (RpcError(StatusCode.PERMISSION_DENIED, "not you"), StatusCode.PERMISSION_DENIED, "not you"),
        (RpcError(StatusCode.NOT_FOUND, "no account"), StatusCode.INTERNAL, "NOT_FOUND: no account"),
    ],
)
async def test_failures_are_the_calls_own(call: MakeCall, error: Exception, code: StatusCode, text: str) -> None:
    guarded = Guarded()
    async with open_channel_pair(guarded, credentials=failing(error)) as (channel, _):
        with pytest.raises(RpcError) as caught:
            await call(EchoStub(channel))
        assert caught.value.code is code
        assert caught.value.message.endswith(text)
    assert guarded.seen == []


@kinds
async def test_a_timeout_bounds_the_asking(call: MakeCall, autojump_clock: Clock) -> None:
    async def slow(_call: CallInfo) -> dict[str, str]:
        await trio.sleep_forever()
        raise AssertionError

    async with open_channel_pair(Guarded(), credentials=slow) as (channel, _):
        with pytest.raises(RpcError, match="DEADLINE_EXCEEDED"):
            await call(EchoStub(channel), timeout=3)
        assert trio.current_time() == pytest.approx(3)


# -- bearer tokens


class Issuer:
    """Issues numbered tokens."""

    def __init__(self, *, lifetime: float | None = None, takes: float = 0) -> None:
        self.lifetime = lifetime
        self.takes = takes
        self.begun = 0
        self.issued = 0
        self.error: Exception | None = None

    async def __call__(self) -> Any:
        self.begun += 1
        await trio.sleep(self.takes)
        if self.error is not None:
            raise self.error
        self.issued += 1
        token = f"t{self.issued}"
        return token if self.lifetime is None else (token, self.lifetime)


async def test_a_token_is_fetched_once_and_kept(autojump_clock: Clock) -> None:
    issuer = Issuer()
    async with open_channel_pair(Guarded(), credentials=BearerToken(issuer)) as (channel, _):
        assert issuer.begun == 0
        for _ in range(3):
            assert await _unary(EchoStub(channel)) == "Bearer t1"
            await trio.sleep(86_000)


@pytest.mark.parametrize(
    ("lifetime", "options", "good_for"),
    [(3600, {}, 3540), (3600, {"refresh_before": 600}, 3000), (100, {}, 50), (3600, {"refresh_before": 0}, 3600)],
)
async def test_a_token_is_fetched_anew_before_it_expires(
    autojump_clock: Clock, lifetime: float, options: dict[str, float], good_for: float
) -> None:
    token = BearerToken(Issuer(lifetime=lifetime), **options)  # type: ignore[arg-type]
    async with open_channel_pair(Guarded(), credentials=token) as (channel, _):
        began = trio.current_time()
        assert await _unary(EchoStub(channel)) == "Bearer t1"
        await trio.sleep_until(began + good_for - 0.5)
        assert await _unary(EchoStub(channel)) == "Bearer t1"
        await trio.sleep_until(began + good_for + 0.5)
        assert await _unary(EchoStub(channel)) == "Bearer t2"


async def test_calls_at_the_same_time_share_a_fetch(autojump_clock: Clock) -> None:
    issuer, guarded = Issuer(takes=5), Guarded()
    async with open_channel_pair(guarded, credentials=BearerToken(issuer)) as (channel, _):
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(_unary, EchoStub(channel))
        assert trio.current_time() == pytest.approx(5)
    assert issuer.begun == 1
    assert guarded.seen == [("Bearer t1",)] * 10


@pytest.mark.parametrize("timeout", [False, True])
async def test_the_end_of_the_call_that_fetches_is_not_the_end_of_others(autojump_clock: Clock, timeout: bool) -> None:
    issuer, guarded = Issuer(takes=5), Guarded()
    scope = trio.CancelScope()

    async def first(echo: EchoStub) -> None:
        if timeout:
            with pytest.raises(RpcError, match="DEADLINE_EXCEEDED"):
                await _unary(echo, timeout=2)
        else:
            with scope:
                await _unary(echo)

    async with open_channel_pair(guarded, credentials=BearerToken(issuer)) as (channel, _):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first, EchoStub(channel))
            await trio.sleep(1)
            for _ in range(3):
                nursery.start_soon(_unary, EchoStub(channel))
            await trio.sleep(1)
            scope.cancel()
        assert trio.current_time() == pytest.approx(7)
    assert issuer.begun == 2
    assert guarded.seen == [("Bearer t1",)] * 3


async def test_a_failed_fetch_fails_those_that_wait_and_a_later_call_tries_again(autojump_clock: Clock) -> None:
    issuer = Issuer(takes=5)
    issuer.error = OSError("no route")
    errors: list[RpcError] = []

    async def fail(echo: EchoStub) -> None:
        with pytest.raises(RpcError) as caught:
            await _unary(echo)
        errors.append(caught.value)

    async with open_channel_pair(Guarded(), credentials=BearerToken(issuer)) as (channel, _):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(fail, EchoStub(channel))
        assert issuer.begun == 1
        assert len({id(error) for error in errors}) == 3
        for error in errors:
            assert error.code is StatusCode.UNAVAILABLE
            assert error.message == "no bearer token: OSError: no route"
            assert error.__cause__ is issuer.error
        issuer.error = None
        await trio.sleep(2)
        assert await _unary(EchoStub(channel)) == "Bearer t1"


async def test_fetches_that_fail_are_further_and_further_apart(autojump_clock: Clock) -> None:
    issuer = Issuer()
    issuer.error = OSError("no route")
    async with open_channel_pair(Guarded(), credentials=BearerToken(issuer)) as (channel, _):
        # gRPC's backoff: 1 s, then 1.6 times as much each time, up to 120 s; 20 % more or less.
        for failures, pause in enumerate([1, 1.6, 2.56], start=1):
            with pytest.raises(RpcError, match=r"UNAVAILABLE: no bearer token: OSError: no route$"):
                await _unary(EchoStub(channel))
            assert issuer.begun == failures
            await trio.sleep(pause * 0.79)
            with pytest.raises(RpcError, match=r"no bearer token: OSError: no route; next attempt in \d\.\d s$"):
                await _unary(EchoStub(channel))
            assert issuer.begun == failures
            await trio.sleep(pause * 0.42)
        issuer.error = None
        assert await _unary(EchoStub(channel)) == "Bearer t1"


async def test_an_old_token_serves_while_there_is_no_new_one(autojump_clock: Clock) -> None:
    issuer = Issuer(lifetime=100)
    async with open_channel_pair(Guarded(), credentials=BearerToken(issuer, refresh_before=30)) as (channel, _):
        assert await _unary(EchoStub(channel)) == "Bearer t1"
        began = trio.current_time()
        issuer.error = OSError("no route")
        await trio.sleep_until(began + 80)
        for _ in range(2):
            assert await _unary(EchoStub(channel)) == "Bearer t1"
        assert issuer.begun == 2
        await trio.sleep_until(began + 101)
        with pytest.raises(RpcError, match="UNAVAILABLE: no bearer token"):
            await _unary(EchoStub(channel))


@kinds
async def test_a_token_that_a_server_refuses_is_fetched_anew(call: MakeCall) -> None:
    guarded = Guarded()
    guarded.refused.add("Bearer t1")
    async with open_channel_pair(guarded, credentials=BearerToken(Issuer())) as (channel, _):
        with pytest.raises(RpcError, match="UNAUTHENTICATED: who are you"):
            await call(EchoStub(channel))
        assert await call(EchoStub(channel)) == "Bearer t2"
        assert await call(EchoStub(channel)) == "Bearer t2"


async def test_a_late_refusal_of_an_old_token_leaves_the_new_one() -> None:
    issuer = Issuer()
    token = BearerToken(issuer)
    info = CallInfo("/a/b", "host", "https://host/a")
    old = await token(info)
    token.rejected(old)
    new = await token(info)
    token.rejected(old)
    assert await token(info) == new
    assert issuer.begun == 2


async def test_a_fetch_over_the_channel_that_waits_for_it(autojump_clock: Clock) -> None:
    async def fetch() -> str:
        return await _unary(EchoStub(channel))

    async with open_channel_pair(Guarded(), credentials=BearerToken(fetch)) as (channel, _):
        with pytest.raises(RpcError, match=r"UNAVAILABLE: .*fetch has made a call with the credentials"):
            await _unary(EchoStub(channel))


@pytest.mark.parametrize(
    "token",
    ["secret\n", "", "se cret", "s\xe9cret", 7, ("secret\n", 5), ("secret", "soon"), ("secret",), ("secret", 5, 6)],
)
async def test_what_is_no_token_is_refused_without_being_shown(token: Any) -> None:
    async def fetch() -> Any:
        return token

    async with open_channel_pair(Guarded(), credentials=BearerToken(fetch)) as (channel, _):
        with pytest.raises(RpcError) as caught:
            await _unary(EchoStub(channel))
    assert caught.value.code is StatusCode.UNAVAILABLE
    assert "fetch" in str(caught.value)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("token", "text"),
    [
        ("", "fetch returned an empty token"),
        (("secret",), "fetch must return a token, or a pair of a token and seconds, not 1 values"),
        (("secret", 5, 6), "fetch must return a token, or a pair of a token and seconds, not 3 values"),
        (["secret", 5], "fetch must return a token, or a pair of a token and seconds, not list"),
    ],
)
async def test_what_is_no_token_is_named(token: Any, text: str) -> None:
    async def fetch() -> Any:
        return token

    async with open_channel_pair(Guarded(), credentials=BearerToken(fetch)) as (channel, _):
        with pytest.raises(RpcError) as caught:
            await _unary(EchoStub(channel))
    assert str(caught.value).endswith(text)


def test_wrong_options_are_named() -> None:
    with pytest.raises(TypeError, match=r"^fetch must be an async callable"):
        BearerToken("token")  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"^fetch must be an async callable, not the class Issuer: did you mean Issuer\(\)"
    ):
        BearerToken(Issuer)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^refresh_before must not be negative"):
        BearerToken(Issuer(), refresh_before=-1)
    with pytest.raises(TypeError, match=r"^allow_plaintext must be bool"):
        BearerToken(Issuer(), allow_plaintext=1)  # type: ignore[arg-type]


async def test_a_token_is_not_in_its_representation() -> None:
    token = BearerToken(Issuer())
    await token(CallInfo("/a/b", "host", "https://host/a"))
    assert repr(token) == "<BearerToken of Issuer>"


async def test_failures_leave_no_garbage(autojump_clock: Clock) -> None:
    issuer = Issuer()
    issuer.error = OSError("no route")
    token = BearerToken(issuer)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            with pytest.raises(RpcError):
                await token(CallInfo("/a/b", "host", "https://host/a"))
            await trio.sleep(200)
        issuer.error = None
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("call", ["bidi", "server stream"])
async def test_a_refusal_that_a_block_keeps_to_itself_counts(call: str) -> None:
    guarded = Guarded()
    guarded.refused.add("Bearer t1")
    async with open_channel_pair(guarded, credentials=BearerToken(Issuer())) as (channel, _):
        echo = EchoStub(channel)
        async with echo.Bidi() if call == "bidi" else echo.ServerStream(EchoRequest()) as block:
            with pytest.raises(RpcError, match="UNAUTHENTICATED: who are you"):
                await block.receive()
        assert await _unary(echo) == "Bearer t2"


async def test_an_interceptor_that_tries_again_has_them_asked_again() -> None:
    async def twice(call: InterceptedCall, proceed: Proceed) -> None:
        try:
            await proceed()
        except RpcError as error:
            if error.code is not StatusCode.UNAUTHENTICATED:
                raise
            await proceed()

    guarded = Guarded()
    guarded.refused.add("Bearer t1")
    async with open_channel_pair(guarded, interceptors=[twice], credentials=BearerToken(Issuer())) as (channel, _):
        assert await _unary(EchoStub(channel)) == "Bearer t2"
    assert guarded.seen == [("Bearer t1",), ("Bearer t2",)]


async def test_attempts_of_a_retry_send_the_same() -> None:
    asked = 0

    async def credentials(_call: CallInfo) -> dict[str, str]:
        nonlocal asked
        await trio.lowlevel.checkpoint()
        asked += 1
        return {"authorization": f"number {asked}"}

    class Late(Guarded):
        async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
            reply = EchoReply(text=self._note(context))
            if len(self.seen) < 3:
                raise RpcError(StatusCode.UNAVAILABLE, "not yet")
            return reply

    retry = {
        "maxAttempts": 3,
        "initialBackoff": "0.01s",
        "maxBackoff": "0.01s",
        "backoffMultiplier": 1,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    config = {"methodConfig": [{"name": [{}], "retryPolicy": retry}]}
    late = Late()
    async with open_channel_pair(late, service_config=config, credentials=credentials) as (channel, _):
        assert await _unary(EchoStub(channel)) == "number 1"
    assert late.seen == [("number 1",)] * 3
