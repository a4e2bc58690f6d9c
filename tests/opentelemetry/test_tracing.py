"""Spans of calls, attempts and RPCs: names, parents, events and status."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub
from opentelemetry import trace
from opentelemetry.context import Context as OtelContext
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tests.behaviour.scripted import UNARY, expect_reply
from tests.echo_service import Context, Echo
from tests.support.retries import TWO_RETRIES
from trio_grpc import Metadata, RpcError, StatusCode, open_channel, serve
from trio_grpc.opentelemetry import ClientTracing, GrpcTraceBinPropagator, ServerTracing
from trio_grpc.opentelemetry._propagation import GETTER, SETTER
from trio_grpc.testing import MemoryListener, ScriptedPeer, open_channel_pair

Clock = trio.testing.MockClock


class Spans:
    """What was traced, with a tracing interceptor for either side."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.client = ClientTracing(self.provider)
        self.server = ServerTracing(self.provider)

    @property
    def all(self) -> list[ReadableSpan]:
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def pair(self, servicer: Any, **options: Any) -> Any:
        return open_channel_pair(servicer, interceptors=[self.client], server_interceptors=[self.server], **options)


@pytest.fixture
def spans() -> Iterator[Spans]:
    traced = Spans()
    yield traced
    traced.provider.shutdown()


def parent_id(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def events(span: ReadableSpan) -> list[Any]:
    return [(event.name, dict(event.attributes or {})) for event in span.events]


async def test_a_call_is_three_spans(autojump_clock: Clock, spans: Spans) -> None:
    async with spans.pair(Echo()) as (channel, _):
        for _ in range(2):
            await EchoStub(channel).Unary(EchoRequest(text="x"))
        await trio.testing.wait_all_tasks_blocked()
    sent = spans.named("Sent.echo.Echo.Unary")
    attempts = spans.named("Attempt.echo.Echo.Unary")
    received = spans.named("Recv.echo.Echo.Unary")
    assert len(sent) == len(attempts) == len(received) == 2
    for call, attempt, handled in zip(sent, attempts, received, strict=True):
        assert parent_id(call) is None
        assert parent_id(attempt) == span_id(call)
        assert parent_id(handled) == span_id(attempt)
        assert [span.kind.name for span in (call, attempt, handled)] == ["CLIENT", "INTERNAL", "SERVER"]
        assert {span.status.status_code.name for span in (call, attempt, handled)} == {"OK"}
        assert dict(attempt.attributes or {}) == {"previous-rpc-attempts": 0, "transparent-retry": False}
        for span in call, handled:
            assert span.attributes is not None
            assert span.attributes["rpc.system"] == "grpc"
            assert span.attributes["rpc.service"] == "echo.Echo"
            assert span.attributes["rpc.method"] == "Unary"
            assert span.attributes["rpc.grpc.status_code"] == 0
            assert span.attributes["network.peer.address"]
        outbound = ("Outbound message", {"sequence-number": 0, "message-size": 3})
        inbound = ("Inbound message", {"sequence-number": 0, "message-size": 3})
        assert events(attempt)[-2:] == [outbound, inbound]
        assert events(handled) == [inbound, outbound]
    assert [events(attempt)[0][0] for attempt in attempts] == ["Delayed LB pick complete", "Outbound message"]


async def test_messages_of_streams_are_numbered(autojump_clock: Clock, spans: Spans) -> None:
    async with spans.pair(Echo()) as (channel, _), EchoStub(channel).Bidi() as call:
        for _ in range(2):
            await call.send(EchoRequest(text="x"))
            await call.receive()
        await call.done_sending()
        with pytest.raises(trio.EndOfChannel):
            await call.receive()
    numbers = [
        (name.partition(" ")[0], attributes["sequence-number"])
        for name, attributes in events(spans.one("Attempt.echo.Echo.Bidi"))
        if "message" in name
    ]
    assert numbers == [("Outbound", 0), ("Inbound", 0), ("Outbound", 1), ("Inbound", 1)]


async def test_compressed_messages(autojump_clock: Clock, spans: Spans) -> None:
    request = EchoRequest(text="x" * 1000)
    async with spans.pair(Echo(), compression="gzip", server_compression="gzip") as (channel, _):
        await EchoStub(channel).Unary(request)
    outbound, inbound = events(spans.one("Attempt.echo.Echo.Unary"))[-2:]
    assert set(outbound[1]) == {"sequence-number", "message-size-compressed"}
    assert set(inbound[1]) == {"sequence-number", "message-size", "message-size-compressed"}
    assert inbound[1]["message-size-compressed"] < inbound[1]["message-size"] == request.ByteSize()


class Failing(Echo):
    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        self.calls += 1
        if request.text == "wait":
            await trio.sleep_forever()
        if request.text == "bug":
            raise KeyError("x")
        if self.calls < 3:
            raise RpcError(StatusCode.UNAVAILABLE, "busy")
        return EchoReply()


@pytest.mark.parametrize(
    ("text", "description"),
    [("x", "UNAVAILABLE: busy"), ("bug", "UNKNOWN: exception in the handler")],
)
async def test_failures(text: str, description: str, autojump_clock: Clock, spans: Spans) -> None:
    async with spans.pair(Failing()) as (channel, _):
        with pytest.raises(RpcError):
            await EchoStub(channel).Unary(EchoRequest(text=text))
    call, attempt, handled = (spans.one(f"{kind}.echo.Echo.Unary") for kind in ("Sent", "Attempt", "Recv"))
    assert {span.status.status_code.name for span in (call, attempt, handled)} == {"ERROR"}
    assert call.status.description == description
    code = description.partition(":")[0]
    assert attempt.status.description == code
    assert str(handled.status.description).startswith(code)


async def test_retries_have_spans_of_their_own(autojump_clock: Clock, spans: Spans) -> None:
    async with spans.pair(Failing(), service_config=TWO_RETRIES) as (channel, _):
        await EchoStub(channel).Unary(EchoRequest())
    call = spans.one("Sent.echo.Echo.Unary")
    attempts = spans.named("Attempt.echo.Echo.Unary")
    assert [(span.attributes or {})["previous-rpc-attempts"] for span in attempts] == [0, 1, 2]
    assert [span.status.status_code.name for span in attempts] == ["ERROR", "ERROR", "OK"]
    assert {parent_id(span) for span in attempts} == {span_id(call)}
    handled = spans.named("Recv.echo.Echo.Unary")
    assert [parent_id(span) for span in handled] == [span_id(span) for span in attempts]


async def test_cancelled_and_too_late(autojump_clock: Clock, spans: Spans) -> None:
    async with spans.pair(Failing()) as (channel, _):
        echo = EchoStub(channel)
        with trio.move_on_after(1):
            await echo.Unary(EchoRequest(text="wait"))
        with pytest.raises(RpcError):
            await echo.Unary(EchoRequest(text="wait"), timeout=1)
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(1)
    assert [span.status.description for span in spans.named("Attempt.echo.Echo.Unary")] == [
        "CANCELLED",
        "DEADLINE_EXCEEDED",
    ]
    assert [str(span.status.description).partition(":")[0] for span in spans.named("Sent.echo.Echo.Unary")] == [
        "CANCELLED",
        "DEADLINE_EXCEEDED",
    ]
    assert len(spans.named("Recv.echo.Echo.Unary")) == 2


async def test_a_call_without_a_connection(autojump_clock: Clock, spans: Spans) -> None:
    async def refuse() -> trio.abc.Stream:
        raise OSError("nobody is there")

    async with open_channel(refuse, interceptors=[spans.client]) as channel:
        with pytest.raises(RpcError):
            await EchoStub(channel).Unary(EchoRequest())
    assert spans.one("Attempt.echo.Echo.Unary").status.description == "UNAVAILABLE"


async def test_the_current_span_is_that_of_the_call_in_a_block_and_in_a_handler(
    autojump_clock: Clock, spans: Spans
) -> None:
    current: list[int] = []

    class Looking(Echo):
        async def ServerStream(self, request: EchoRequest, context: Context, /) -> Any:
            current.append(trace.get_current_span().get_span_context().span_id)

            async def look() -> None:
                current.append(trace.get_current_span().get_span_context().span_id)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(look)
            yield EchoReply()

    before = trace.get_current_span()
    async with spans.pair(Looking()) as (channel, _):
        async with EchoStub(channel).ServerStream(EchoRequest()) as call:
            current.append(trace.get_current_span().get_span_context().span_id)
            async for _ in call:
                pass
        assert trace.get_current_span() is before
    call_id = span_id(spans.one("Sent.echo.Echo.ServerStream"))
    handler_id = span_id(spans.one("Recv.echo.Echo.ServerStream"))
    assert sorted(current) == sorted([call_id, handler_id, handler_id])


async def test_a_call_made_in_a_handler_belongs_to_its_trace(autojump_clock: Clock, spans: Spans) -> None:
    async with spans.pair(Echo()) as (behind, _):

        class Front(Echo):
            async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
                return await EchoStub(behind).Unary(request)

        async with spans.pair(Front()) as (channel, _), trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(EchoStub(channel).Unary, EchoRequest())
    by_id = {span_id(span): span for span in spans.all}
    traces = {span.context.trace_id for span in spans.all if span.context is not None}
    assert len(traces) == 3
    assert len(spans.all) == 18
    for span in spans.all:
        chain = [span.name.partition(".")[0]]
        while (above := parent_id(span)) is not None:
            span = by_id[above]
            chain.append(span.name.partition(".")[0])
        assert (
            chain in (["Recv", "Attempt", "Sent"] * 2)[-len(chain) :]
            or chain == (["Recv", "Attempt", "Sent"] * 2)[-len(chain) :]
        )


# -- what goes over the wire


class TestPropagation:
    async def test_the_global_propagator_is_w3c(self, autojump_clock: Clock, spans: Spans) -> None:
        seen: list[Any] = []

        class Looking(Echo):
            async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
                seen.append(context.metadata)
                return EchoReply()

        async with open_channel_pair(Looking(), interceptors=[spans.client]) as (channel, _):
            await EchoStub(channel).Unary(EchoRequest(), metadata={"key": "value"})
        attempt = spans.one("Attempt.echo.Echo.Unary")
        assert attempt.context is not None
        ids = attempt.context
        expected = f"00-{ids.trace_id:032x}-{ids.span_id:016x}-{ids.trace_flags:02x}"
        assert (seen[0]["traceparent"], seen[0]["key"]) == (expected, "value")

    @pytest.mark.parametrize("propagator", [GrpcTraceBinPropagator(), TraceContextTextMapPropagator()])
    async def test_both_ends_with_another_one(self, propagator: Any, autojump_clock: Clock, spans: Spans) -> None:
        client = ClientTracing(spans.provider, propagator=propagator)
        server = ServerTracing(spans.provider, propagator=propagator)
        async with open_channel_pair(Echo(), interceptors=[client], server_interceptors=[server]) as (channel, _):
            await EchoStub(channel).Unary(EchoRequest())
        attempt, handled = spans.one("Attempt.echo.Echo.Unary"), spans.one("Recv.echo.Echo.Unary")
        assert parent_id(handled) == span_id(attempt)
        assert handled.parent is not None
        assert handled.parent.is_remote

    def test_the_binary_form(self) -> None:
        """The example of OpenCensus's specification of its binary encoding."""
        data = bytes([0, 0, *range(64, 80), 1, *range(97, 105), 2, 1])
        propagator = GrpcTraceBinPropagator()
        context = propagator.extract(Metadata({"grpc-trace-bin": data}), getter=GETTER)
        span = trace.get_current_span(context).get_span_context()
        assert span.trace_id.to_bytes(16, "big") == bytes(range(64, 80))
        assert span.span_id.to_bytes(8, "big") == bytes(range(97, 105))
        assert (span.trace_flags, span.is_remote) == (1, True)
        metadata = Metadata()
        propagator.inject(metadata, context, SETTER)
        assert metadata["grpc-trace-bin"] == data
        plain: dict[str, str] = {}
        propagator.inject(plain, context)
        assert base64.b64decode(plain["grpc-trace-bin"]) == data
        assert propagator.fields == {"grpc-trace-bin"}

    @pytest.mark.parametrize(
        "data", [b"", b"\x01" * 29, bytes(29), b"\x00" * 28, bytes([0, 0, *range(16), 1, *bytes(8), 2, 1])]
    )
    def test_what_is_no_span_context_changes_nothing(self, data: bytes) -> None:
        before = OtelContext({"key": "value"})
        metadata = Metadata({"grpc-trace-bin": data})
        assert GrpcTraceBinPropagator().extract(metadata, before, GETTER) == before
        assert GrpcTraceBinPropagator().extract(Metadata(), before, GETTER) == before
        assert GrpcTraceBinPropagator().extract({"grpc-trace-bin": "!"}, before) == before

    def test_nothing_is_written_without_a_span(self) -> None:
        metadata = Metadata()
        GrpcTraceBinPropagator().inject(metadata, OtelContext(), SETTER)
        assert len(metadata) == 0

    async def test_a_malformed_parent_is_none(self, autojump_clock: Clock, spans: Spans) -> None:
        async with open_channel_pair(Echo(), server_interceptors=[spans.server]) as (channel, _):
            await EchoStub(channel).Unary(EchoRequest(), metadata={"traceparent": "nonsense"})
        assert spans.one("Recv.echo.Echo.Unary").parent is None


async def test_malformed_metadata_ends_no_rpc_that_does_not_look_at_it(
    spans: Spans, autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    listener = MemoryListener()
    await nursery.start(partial(serve, interceptors=[spans.server]), [Echo()], listener)
    async with ScriptedPeer.client(await listener.connect()) as peer:
        await peer.handshake()
        await peer.send_request(1, UNARY, [("x-bin", "*")])
        await peer.send_message(1, b"", end_stream=True)
        await expect_reply(peer, 1, EchoReply())
    nursery.cancel_scope.cancel()
    span = spans.one("Recv.echo.Echo.Unary")
    assert span.parent is None
    assert span.status.status_code is trace.StatusCode.OK
