"""Helpers for test suites, pytest-trio's above all. Plain context managers: wrap them in fixtures of your own."""

from __future__ import annotations

from trio_grpc._transport.frames import ErrorCode as ErrorCode
from trio_grpc.testing._channel_pair import ChannelPair as ChannelPair
from trio_grpc.testing._channel_pair import open_channel_pair as open_channel_pair
from trio_grpc.testing._fake_servicer import FakeCall as FakeCall
from trio_grpc.testing._fake_servicer import FakeMethod as FakeMethod
from trio_grpc.testing._fake_servicer import FakeServicer as FakeServicer
from trio_grpc.testing._faults import Faults as Faults
from trio_grpc.testing._leaks import NoLeaks as NoLeaks
from trio_grpc.testing._leaks import assert_no_leaks as assert_no_leaks
from trio_grpc.testing._manual_resolver import ManualResolver as ManualResolver
from trio_grpc.testing._memory_listener import MemoryListener as MemoryListener
from trio_grpc.testing._scripted_peer import DataFrame as DataFrame
from trio_grpc.testing._scripted_peer import Frame as Frame
from trio_grpc.testing._scripted_peer import GoawayFrame as GoawayFrame
from trio_grpc.testing._scripted_peer import HeadersFrame as HeadersFrame
from trio_grpc.testing._scripted_peer import PingFrame as PingFrame
from trio_grpc.testing._scripted_peer import RstStreamFrame as RstStreamFrame
from trio_grpc.testing._scripted_peer import ScriptedPeer as ScriptedPeer
from trio_grpc.testing._scripted_peer import SettingsFrame as SettingsFrame
from trio_grpc.testing._scripted_peer import UnknownFrame as UnknownFrame
from trio_grpc.testing._scripted_peer import WindowUpdateFrame as WindowUpdateFrame

__all__ = (
    "ChannelPair",
    "DataFrame",
    "ErrorCode",
    "FakeCall",
    "FakeMethod",
    "FakeServicer",
    "Faults",
    "Frame",
    "GoawayFrame",
    "HeadersFrame",
    "ManualResolver",
    "MemoryListener",
    "NoLeaks",
    "PingFrame",
    "RstStreamFrame",
    "ScriptedPeer",
    "SettingsFrame",
    "UnknownFrame",
    "WindowUpdateFrame",
    "assert_no_leaks",
    "open_channel_pair",
)
