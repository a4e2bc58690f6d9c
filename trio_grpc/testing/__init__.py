"""Helpers for test suites, pytest-trio's above all. Plain context managers: wrap them in fixtures of your own."""

from __future__ import annotations

from trio_grpc.testing._channel_pair import ChannelPair as ChannelPair
from trio_grpc.testing._channel_pair import open_channel_pair as open_channel_pair
from trio_grpc.testing._memory_listener import MemoryListener as MemoryListener

__all__ = ("ChannelPair", "MemoryListener", "open_channel_pair")
