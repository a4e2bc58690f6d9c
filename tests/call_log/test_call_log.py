"""Logs of calls: what each record says, at which level, and that logging never changes a call."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

from tests.echo_service import Context, Echo
from tests.support.retries import TWO_RETRIES
from trio_grpc import RpcError, StatusCode, open_channel
from trio_grpc.call_log import CallLog, default_level
from trio_grpc.testing import open_channel_pair

Clock = trio.testing.MockClock


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "trio_grpc.calls")
    return caplog


def of_calls(log: pytest.LogCaptureFixture, side: str | None = None) -> list[Any]:
    return [
        record
        for record in log.records
        if record.name == "trio_grpc.calls" and (side is None or getattr(record, "rpc_side", None) == side)
    ]


class Acting(Echo):
    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        await trio.sleep(1.5)
        if request.text == "missing":
            await context.abort(StatusCode.NOT_FOUND, "no such thing")
        if request.text == "bug":
            raise KeyError("x")
        return EchoReply(text=request.text)


async def test_a_record_for_each_side_of_a_call(autojump_clock: Clock, records: pytest.LogCaptureFixture) -> None:
    log = CallLog()
    async with open_channel_pair(Acting(), interceptors=[log], server_interceptors=[log]) as (channel, _):
        await EchoStub(channel).Unary(EchoRequest(text="secret"), timeout=9, metadata={"token": "secret"})
        await trio.testing.wait_all_tasks_blocked()
    (client,) = of_calls(records, "client")
    (server,) = of_calls(records, "server")
    for record in client, server:
        assert (record.rpc_service, record.rpc_method, record.rpc_kind) == ("echo.Echo", "Unary", "unary_unary")
        assert (record.rpc_status, record.rpc_message) == ("OK", "")
        assert record.rpc_duration == pytest.approx(1.5, abs=0.1)
        assert record.rpc_timeout == pytest.approx(9, abs=0.1)
        assert (record.rpc_sent, record.rpc_received) == (1, 1)
        assert record.rpc_peer
        assert record.levelno == logging.INFO
        assert "secret" not in str(vars(record))
    assert (client.rpc_attempts, server.rpc_attempts) == (1, 0)
    assert client.getMessage() == "client echo.Echo.Unary: OK after 1.500 s"


async def test_streams_are_counted(autojump_clock: Clock, records: pytest.LogCaptureFixture) -> None:
    log = CallLog()
    pair = open_channel_pair(Echo(), interceptors=[log], server_interceptors=[log])
    async with pair as (channel, _), EchoStub(channel).Bidi() as call:
        for _ in range(3):
            await call.send(EchoRequest())
        await call.receive()
    (client,) = of_calls(records, "client")
    assert (client.rpc_kind, client.rpc_sent, client.rpc_received) == ("stream_stream", 3, 1)
    assert (client.rpc_status, client.rpc_timeout) == ("CANCELLED", None)


@pytest.mark.parametrize(
    ("text", "status", "message", "level"),
    [
        ("missing", "NOT_FOUND", "no such thing", logging.INFO),
        ("bug", "UNKNOWN", "exception in the handler", logging.ERROR),
    ],
)
async def test_failures(
    text: str, status: str, message: str, level: int, autojump_clock: Clock, records: pytest.LogCaptureFixture
) -> None:
    log = CallLog()
    async with open_channel_pair(Acting(), interceptors=[log], server_interceptors=[log]) as (channel, _):
        with pytest.raises(RpcError, match=message):
            await EchoStub(channel).Unary(EchoRequest(text=text))
    (client,) = of_calls(records, "client")
    (server,) = of_calls(records, "server")
    assert (client.rpc_status, client.rpc_message, client.levelno) == (status, message, level)
    assert (server.rpc_status, server.levelno) == (status, level)
    assert client.getMessage().endswith(f"{status} after 1.500 s: {message}")


async def test_cancelled_and_too_late(autojump_clock: Clock, records: pytest.LogCaptureFixture) -> None:
    log = CallLog()
    async with open_channel_pair(Acting(), interceptors=[log], server_interceptors=[log]) as (channel, _):
        echo = EchoStub(channel)
        with trio.move_on_after(1):
            await echo.Unary(EchoRequest())
        await trio.sleep(0.1)
        with pytest.raises(RpcError):
            await echo.Unary(EchoRequest(), timeout=1)
        await trio.sleep(0.1)
    assert [record.rpc_status for record in of_calls(records, "client")] == ["CANCELLED", "DEADLINE_EXCEEDED"]
    first, second = (record.rpc_status for record in of_calls(records, "server"))
    assert first in ("CANCELLED", "DEADLINE_EXCEEDED")
    assert second in ("CANCELLED", "DEADLINE_EXCEEDED")
    assert of_calls(records, "client")[1].levelno == logging.WARNING


async def test_a_call_that_finds_no_server(autojump_clock: Clock, records: pytest.LogCaptureFixture) -> None:
    async def refuse() -> trio.abc.Stream:
        raise OSError("nobody is there")

    async with open_channel(refuse, interceptors=[CallLog()]) as channel:
        with pytest.raises(RpcError):
            await EchoStub(channel).Unary(EchoRequest())
    (record,) = of_calls(records)
    assert (record.rpc_status, record.rpc_peer, record.rpc_sent) == ("UNAVAILABLE", "", 0)
    assert "nobody is there" in record.rpc_message


async def test_retries_are_attempts_of_one_call(autojump_clock: Clock, records: pytest.LogCaptureFixture) -> None:
    class Flaky(Echo):
        async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
            reply = await super().Unary(request, context)
            if self.calls < 3:
                raise RpcError(StatusCode.UNAVAILABLE, "busy")
            return reply

    async with open_channel_pair(Flaky(), interceptors=[CallLog()], service_config=TWO_RETRIES) as (channel, _):
        await EchoStub(channel).Unary(EchoRequest())
    (record,) = of_calls(records)
    assert (record.rpc_attempts, record.rpc_sent, record.rpc_received) == (3, 1, 1)


async def test_starts(autojump_clock: Clock, records: pytest.LogCaptureFixture) -> None:
    log = CallLog(starts=True)
    async with open_channel_pair(Echo(), interceptors=[log], server_interceptors=[log]) as (channel, _):
        await EchoStub(channel).Unary(EchoRequest())
    texts = [record.getMessage() for record in of_calls(records)]
    assert texts[:2] == ["client echo.Echo.Unary: started", "server echo.Echo.Unary: started"]
    assert of_calls(records)[0].levelno == logging.DEBUG
    assert len(texts) == 4


async def test_options(autojump_clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mine")
    seen: list[StatusCode] = []

    def level(status: StatusCode) -> int:
        seen.append(status)
        return logging.CRITICAL

    log = CallLog(
        logging.getLogger("mine"), level=level, fields=lambda call: {"who": call.metadata.get("who"), "rpc_peer": "x"}
    )
    async with open_channel_pair(Echo(), server_interceptors=[log]) as (channel, _):
        await EchoStub(channel).Unary(EchoRequest(), metadata={"who": "Ada"})
    (record,) = [record for record in caplog.records if record.name == "mine"]
    extra: Any = record
    assert (record.levelno, extra.who, extra.rpc_peer) == (logging.CRITICAL, "Ada", "x")
    assert seen == [StatusCode.OK]


@pytest.mark.parametrize("name", ["name", "message", "asctime", "args", "levelname"])
async def test_fields_with_names_that_records_have_are_left_out(name: str, records: pytest.LogCaptureFixture) -> None:
    log = CallLog(fields=lambda _: {"mine": 1, name: "x"})
    async with open_channel_pair(Echo(), interceptors=[log], server_interceptors=[log]) as (channel, _):
        assert (await EchoStub(channel).Unary(EchoRequest(text="a"))).text == "a"
        await trio.testing.wait_all_tasks_blocked()
    for side in "client", "server":
        (record,) = of_calls(records, side)
        assert record.rpc_status == "OK"
        assert not hasattr(record, "mine")
    wrong = [record for record in of_calls(records) if record.exc_info]
    assert [record.getMessage() for record in wrong] == ["exception in the fields= of a CallLog"] * 2
    assert all(f"attributes of these names: {name}" in str(record.exc_info) for record in wrong)


@pytest.mark.parametrize("level", [{}.__getitem__, lambda _: None, lambda _: "INFO"])
async def test_a_level_that_is_none_is_logged_and_the_call_goes_on(
    level: Any, records: pytest.LogCaptureFixture
) -> None:
    log = CallLog(level=level)
    async with open_channel_pair(Echo(), interceptors=[log], server_interceptors=[log]) as (channel, _):
        assert (await EchoStub(channel).Unary(EchoRequest(text="a"))).text == "a"
        await trio.testing.wait_all_tasks_blocked()
    for side in "client", "server":
        (record,) = of_calls(records, side)
        assert (record.rpc_status, record.levelno) == ("OK", logging.INFO)
    wrong = [record.getMessage() for record in of_calls(records) if record.exc_info]
    assert wrong == ["exception in the level= of a CallLog"] * 2


async def test_what_fields_raises_is_logged_and_the_call_goes_on(
    autojump_clock: Clock, records: pytest.LogCaptureFixture
) -> None:
    def fields(call: Any) -> dict[str, object]:
        raise KeyError("who")

    async with open_channel_pair(Echo(), interceptors=[CallLog(fields=fields)]) as (channel, _):
        await EchoStub(channel).Unary(EchoRequest())
    texts = [record.getMessage() for record in of_calls(records)]
    assert texts == ["exception in the fields= of a CallLog", "client echo.Echo.Unary: OK after 0.000 s"]


async def test_a_level_that_nobody_wants_is_not_logged(autojump_clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "trio_grpc.calls")
    async with open_channel_pair(Echo(), interceptors=[CallLog(starts=True)]) as (channel, _):
        await EchoStub(channel).Unary(EchoRequest())
    assert of_calls(caplog) == []


def test_levels() -> None:
    assert {status.name for status in StatusCode if default_level(status) == logging.ERROR} == {
        "UNKNOWN",
        "UNIMPLEMENTED",
        "INTERNAL",
        "DATA_LOSS",
    }
    assert default_level(StatusCode.UNAVAILABLE) == logging.WARNING
    assert default_level(StatusCode.OK) == logging.INFO


def test_wrong_arguments() -> None:
    for wrong in ({"logger": 5}, {"level": 10}, {"fields": "x"}, {"starts": 1}):
        with pytest.raises(TypeError, match=f"{next(iter(wrong))} must be"):
            CallLog(**wrong)  # type: ignore[arg-type]
