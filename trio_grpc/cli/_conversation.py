"""One call of whatever kind, with requests that come and replies that are shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
from google.protobuf.descriptor_pool import DescriptorPool

from trio_grpc._channel import Channel
from trio_grpc._lone_exception import unwrapped
from trio_grpc._metadata import Metadata
from trio_grpc._method import Method
from trio_grpc._stub import bind
from trio_grpc.cli._requests import RequestData


def open_call(channel: Channel, method: Method[Any, Any], requests: list[Any], **options: Any) -> Any:
    """Return the call object of a method of any kind, to be entered.

    Args:
        channel: carries the call.
        method: what is called.
        requests: the one request of a method that takes one.
        options: of the call.
    """
    bound = bind(channel, method)
    start = getattr(bound, "open", bound)
    return start(**options) if method.cardinality.client_streaming else start(*requests, **options)


async def converse(
    channel: Channel,
    method: Method[Any, Any],
    data: RequestData,
    pool: DescriptorPool,
    *,
    on_reply: Callable[[Any], None],
    **options: Any,
) -> tuple[Metadata, Metadata]:
    """Make a call.

    Args:
        channel: carries it.
        method: what is called.
        data: its requests.
        pool: has the types of ``google.protobuf.Any`` fields.
        on_reply: called with each reply.
        options: of the call.

    Returns:
        The metadata that came before the replies, and after them.

    Raises:
        RpcError: it ended with another status than OK.
        Failure: the requests are wrong.
    """
    streams = method.cardinality.client_streaming
    requests = [] if streams else data.messages(method, pool)
    with unwrapped():
        async with open_call(channel, method, requests, **options) as call, trio.open_nursery() as nursery:
            if streams:
                nursery.start_soon(_send_all, call, method, data, pool)
            if method.cardinality.server_streaming:
                async for reply in call:
                    on_reply(reply)
            else:
                on_reply(await call.receive())
            initial = await call.wait_initial_metadata()
            nursery.cancel_scope.cancel()  # it has its answer, whatever stdin still has
    return initial, call.trailing_metadata


async def _send_all(call: Any, method: Method[Any, Any], data: RequestData, pool: DescriptorPool) -> None:
    requests = data.stream(method, pool)
    try:
        async for request in requests:
            await call.send(request)
        await call.done_sending()
    except trio.BrokenResourceError:
        # The call has ended; whoever receives is told why.
        return
    finally:
        await requests.aclose()  # type: ignore[attr-defined]  # it is a generator


__all__ = ["converse", "open_call"]
