"""The client of reflection, with servers that answer anything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing
from google.protobuf import descriptor_pb2

from trio_grpc import RpcError, StatusCode
from trio_grpc.reflection._client import ReflectionClient
from trio_grpc.reflection._v1.reflection_pb2 import ServerReflectionResponse
from trio_grpc.reflection._v1.reflection_trio_grpc import ServerReflectionServicer
from trio_grpc.testing import open_channel_pair

Clock = trio.testing.MockClock


class Answering(ServerReflectionServicer):
    """Gives the same answers to any question."""

    def __init__(self, *answers: Any) -> None:
        self._answers = answers

    async def ServerReflectionInfo(self, requests: Any, context: Any, /) -> AsyncIterator[Any]:
        async for _ in requests:
            for answer in self._answers:
                yield answer


def files(*serialized: bytes) -> Any:
    answer = ServerReflectionResponse()
    answer.file_descriptor_response.file_descriptor_proto.extend(serialized)
    return answer


def file(**fields: Any) -> bytes:
    return descriptor_pb2.FileDescriptorProto(name="a.proto", **fields).SerializeToString()


NOWHERE = {"name": "S", "method": [{"name": "M", "input_type": ".a.Nowhere", "output_type": ".a.Nowhere"}]}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (files(b"\xff\xff"), "gave what is no file: "),
        (files(file(dependency=["a.proto"])), "has files that import each other: a.proto"),
        (files(file(dependency=["b.proto"])), "did not give b.proto, which it was asked for"),
        (files(file(service=[NOWHERE])), "gave a a.proto that is no valid file: "),
    ],
)
async def test_files_that_are_of_no_use(answer: Any, problem: str, autojump_clock: Clock) -> None:
    async with open_channel_pair(Answering(answer)) as (channel, _):
        with pytest.raises(ValueError, match=f"^the server's reflection {problem}"):
            await ReflectionClient(channel, timeout=5).load_symbol("a.S")


async def test_no_answer_at_all(autojump_clock: Clock) -> None:
    async with open_channel_pair(Answering()) as (channel, _):
        client = ReflectionClient(channel, timeout=5)
        for ask in client.list_services, lambda: client.load_symbol("a.S"):
            with pytest.raises(RpcError, match="the server's reflection gave no answer") as caught:
                await ask()
            assert caught.value.code is StatusCode.INTERNAL


@pytest.mark.parametrize(("number", "code"), [(5, "NOT_FOUND"), (0, "UNKNOWN"), (99, "UNKNOWN"), (-1, "UNKNOWN")])
async def test_errors_of_any_number(number: int, code: str, autojump_clock: Clock) -> None:
    answer = ServerReflectionResponse()
    answer.error_response.error_code = number
    answer.error_response.error_message = "no"
    async with open_channel_pair(Answering(answer)) as (channel, _):
        with pytest.raises(RpcError, match=f"^{code}: no$"):
            await ReflectionClient(channel, timeout=5).load_symbol("a.S")


async def test_an_answer_without_end_takes_no_longer_than_its_time(autojump_clock: Clock) -> None:
    class Endless(Answering):
        async def ServerReflectionInfo(self, requests: Any, context: Any, /) -> AsyncIterator[Any]:
            while True:
                yield ServerReflectionResponse()
                await trio.sleep(1)

    async with open_channel_pair(Endless()) as (channel, _):
        with pytest.raises(RpcError, match="DEADLINE_EXCEEDED"):
            await ReflectionClient(channel, timeout=5).list_services()
