"""The standard interoperability cases between our own client and our own server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.interop.standard.cases import CASES, Client
from tests.interop.standard.service import InteropServicer
from trio_grpc import Channel
from trio_grpc.testing import open_channel_pair


@asynccontextmanager
async def open_channel(servicer: InteropServicer) -> AsyncIterator[Channel]:
    async with open_channel_pair(servicer) as (channel, _):
        yield channel


@pytest.mark.parametrize("name", CASES)
async def test_our_client_with_our_server(name: str) -> None:
    servicer = InteropServicer()
    async with open_channel(servicer) as channel:
        await CASES[name](Client(channel, lambda: open_channel(servicer)))
