"""What every test gets: a watchdog in real time, no proxies, and a search for what it has left behind.

Tests run on trio's virtual clock, where a test that waits for something that never comes does not time out: it
jumps over every timeout and then hangs, or spins.  So each test (with its fixtures) has a bound in real time.  When
it is reached the watchdog fails that one test, tells where each of its tasks waits, and lets the run go on.  Where
asking trio does not help, because a task never yields or is shielded, it raises where the main thread is; where that
does not help either, because the main thread is stuck in C, the run ends with the stacks of all threads.

A connection that a test ran must have ended with it, its streams and handlers accounted for and its control frames
written or orphaned; what `open_channel_pair` started must be gone; and nothing may have been logged as a fault of ours.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import hypothesis
import pytest
import trio

from tests.support.interceptors import install as install_interceptors
from tests.support.stacks import describe_tasks
from trio_grpc._channel import Channel
from trio_grpc._handler_pool import HandlerPool
from trio_grpc._server import Server
from trio_grpc._transport.connection import Connection
from trio_grpc.testing import ChannelPair

# The same examples in every run: a test that fails now and then tells nobody anything. HYPOTHESIS_PROFILE=explore looks
# for new ones.
hypothesis.settings.register_profile("repeat", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))

WATCHDOG_SECONDS = 60.0
#: Between one step and the next, harsher one.
GRACE_SECONDS = 5.0

_real_stderr: int | None = None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--interceptors",
        action="store_true",
        help="two interceptors that change nothing around every call, on both sides: no test may notice them",
    )


def pytest_configure() -> None:
    """Keep the real stderr, which pytest hides while a test runs."""
    global _real_stderr  # noqa: PLW0603 -- one descriptor for the whole run
    _real_stderr = os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2)
    # Shells start what runs in the background with SIGINT ignored, and tests of Ctrl-C would wait for it in vain.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure() -> None:
    global _real_stderr  # noqa: PLW0603
    if _real_stderr is not None:
        os.close(_real_stderr)
        _real_stderr = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Bound one test, its set-up and its tear-down in real time."""
    marker = item.get_closest_marker("watchdog")
    seconds = float(marker.args[0]) if marker is not None else WATCHDOG_SECONDS

    asked = False

    def on_alarm(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        report = f"{item.name} still runs after {seconds:g} s of real time\n{describe_tasks()}"
        try:
            token = None if asked else trio.lowlevel.current_trio_token()
        except RuntimeError:  # not inside trio.run
            token = None
        asked = True
        if token is None:
            pytest.fail(report)
        # A failure in trio's entry queue cancels all tasks, lets them clean up, and comes out of trio.run.
        token.run_sync_soon(pytest.fail, report)

    assert _real_stderr is not None
    faulthandler.dump_traceback_later(seconds + 3 * GRACE_SECONDS, exit=True, file=_real_stderr)
    has_alarm = hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGALRM, on_alarm) if has_alarm else None
    if has_alarm:
        signal.setitimer(signal.ITIMER_REAL, seconds, GRACE_SECONDS)
    try:
        return (yield)
    finally:
        if has_alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
        faulthandler.cancel_dump_traceback_later()


class InternalErrors(logging.Handler):
    """Collects what the library calls an internal error: a fault of ours that was contained, but is one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "internal error" in record.getMessage():
            self.texts.append(logging.Formatter().format(record))


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the proxies of this machine out: what a test connects to is its own."""
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def interceptors_around_everything(request: pytest.FixtureRequest) -> None:
    """Install what ``--interceptors`` asks for."""
    if request.config.getoption("--interceptors"):
        install_interceptors(request.getfixturevalue("monkeypatch"))


@pytest.fixture(autouse=True)
def leak_check(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that leaves a stream, a handler, a control frame or a task behind."""
    # What has ended well is not kept: some tests count what is left of it.
    running: set[Connection] = set()
    pools: set[HandlerPool] = set()
    pairs: list[tuple[Channel, Server]] = []
    tasks_left: list[str] = []
    run, enter_pool, exit_pool = Connection.run, HandlerPool.__aenter__, HandlerPool.__aexit__
    enter_pair, exit_pair = ChannelPair.__aenter__, ChannelPair.__aexit__

    async def tracked_run(self: Connection) -> None:
        running.add(self)
        try:
            await run(self)
        finally:
            table, control_buffer = self.table, self.control_buffer
            if (
                self.closed.is_set()
                and (table.slots_used, table.waiting, len(table.streams)) == (0, 0, 0)
                and (control_buffer.closed, control_buffer.pending_responses) == (True, 0)
            ):
                running.discard(self)

    async def tracked_pool(self: HandlerPool) -> HandlerPool:
        pools.add(self)
        return await enter_pool(self)

    async def tracked_pool_exit(self: HandlerPool, *exc_info: Any) -> bool | None:
        try:
            return await exit_pool(self, *exc_info)
        finally:
            if self.running == 0:
                pools.discard(self)

    async def tracked_enter(self: ChannelPair) -> tuple[Channel, Server]:
        # Tasks are told apart by their parents: the library's nurseries belong to the task that entered the pair.
        nurseries = set(trio.lowlevel.current_task().child_nurseries)
        pair = await enter_pair(self)
        self.__dict__["nurseries"] = [
            nursery for nursery in trio.lowlevel.current_task().child_nurseries if nursery not in nurseries
        ]
        pairs.append(pair)
        return pair

    async def tracked_exit(self: ChannelPair, *exc_info: Any) -> None:
        await exit_pair(self, *exc_info)
        for nursery in self.__dict__["nurseries"]:
            tasks_left.extend(task.name for task in nursery.child_tasks)

    monkeypatch.setattr(Connection, "run", tracked_run)
    monkeypatch.setattr(HandlerPool, "__aenter__", tracked_pool)
    monkeypatch.setattr(HandlerPool, "__aexit__", tracked_pool_exit)
    monkeypatch.setattr(ChannelPair, "__aenter__", tracked_enter)
    monkeypatch.setattr(ChannelPair, "__aexit__", tracked_exit)
    errors = InternalErrors()
    logger = logging.getLogger("trio_grpc")
    logger.addHandler(errors)
    try:
        yield
    finally:
        logger.removeHandler(errors)
    assert not errors.texts, "\n".join(errors.texts)
    assert not tasks_left
    for channel, server in pairs:
        at_client, at_server = channel.statistics(), server.statistics()
        assert (at_client.connections, at_client.streams, at_client.waiting, at_client.control_frames) == (0, 0, 0, 0)
        assert (at_server.connections, at_server.streams, at_server.handlers, at_server.control_frames) == (0, 0, 0, 0)
    # Each of these connections ran on beyond its end, or left a stream, a waiter, a control frame or a reply behind.
    assert not running
    assert [pool.running for pool in pools] == []
