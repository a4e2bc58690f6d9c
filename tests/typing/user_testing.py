"""A user's tests: fakes know the messages of each method."""

from __future__ import annotations

from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer
from typing_extensions import assert_type

import trio_grpc
from trio_grpc.testing import FakeCall, FakeMethod, FakeServicer, Faults, assert_no_leaks, open_channel_pair

fake = FakeServicer(EchoServicer)
assert_type(fake.on(EchoServicer.Unary), FakeMethod[EchoRequest, EchoReply])
assert_type(fake.on(EchoServicer.ServerStream), FakeMethod[EchoRequest, EchoReply])
assert_type(fake.on(EchoServicer.ClientStream), FakeMethod[EchoRequest, EchoReply])
assert_type(fake.on(EchoServicer.Bidi), FakeMethod[EchoRequest, EchoReply])
assert_type(fake.on(EchoServicer.Bidi).calls, list[FakeCall[EchoRequest]])


async def double(call: FakeCall[EchoRequest]) -> EchoReply:
    return EchoReply(count=2 * call.request.count)


async def use_them() -> None:
    fake.on(EchoServicer.Unary).reply(EchoReply()).abort(trio_grpc.StatusCode.ABORTED).run(double)
    faults = Faults(latency=0.1)
    async with assert_no_leaks(), open_channel_pair(fake, faults=faults) as (channel, _):
        assert_type(channel, trio_grpc.Channel)
        faults.cut_after(10, toward="client")
