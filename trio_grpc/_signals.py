"""Signals of the operating system, and what they mean to a server: the first one drains it, the second one ends it."""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

import trio
from trio.lowlevel import checkpoint

from trio_grpc._options import check_kind
from trio_grpc._server import Server
from trio_grpc._transport.service_nursery import ServiceNursery

_logger = logging.getLogger("trio_grpc")

#: Half of the 10 seconds that Docker lets pass between SIGTERM and SIGKILL, the shortest patience of the common
#: supervisors (Kubernetes: 30 s, systemd: 90 s). The other half is for the clean-up of handlers that were cancelled.
DEFAULT_GRACE = 5.0


async def drain_on_signal(
    *servers: Server,
    grace: float | None = DEFAULT_GRACE,
    signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> signal.Signals | None:
    """Wait for a signal, then drain servers; a second signal meanwhile ends them at once.

    While it waits, these signals do nothing else: Ctrl-C raises no `KeyboardInterrupt`. From the second signal on they
    have again the effect that they had before, so a third one ends a program whose handlers do not let themselves be
    cancelled.

    Args:
        servers: running servers, as `serve` gives them. One call for all of a program's: two calls at a time would
            take each other's signals.
        grace: seconds after which the drain cancels handlers that still run, see `Server.drain`; None waits for them as
            long as it takes. Default: 5, half of what Docker lets pass before it kills.
        signals: those to wait for.
        task_status: for `trio.Nursery.start`; started once the signals are received here.

    Returns:
        None when the servers have ended in good order: drained, or without any signal. The second signal when it was
        that which ended them; handlers were cancelled then, and have cleaned up. By custom a program so ended exits
        with 128 + its number, as `run` does.

    Raises:
        RuntimeError: this is not the main thread, which alone receives signals.
        TypeError, ValueError: no server, no signals, or a malformed ``grace``.
    """
    if not servers:
        raise TypeError("drain_on_signal needs a server")
    for server in servers:
        check_kind("server", server, Server)
    check_grace(grace)
    if not signals:
        raise ValueError("signals must not be empty: there would be nothing to wait for")

    with trio.open_signal_receiver(*signals) as received:
        task_status.started()
        second = await drain_in_two_steps(servers, grace, received, announce_drain, announce_end)
    if second is not None:
        await _wait_ended(servers)
    return second


async def drain_in_two_steps(
    servers: Sequence[Server],
    grace: float | None,
    received: AsyncIterator[int],
    on_first: Callable[[signal.Signals, float | None], None] | None = None,
    on_second: Callable[[signal.Signals], None] | None = None,
) -> signal.Signals | None:
    """Start to drain at the first signal received, and to cancel at the second.

    Returns:
        None when the servers have ended; the second signal as soon as it has come, before they have.
    """
    first = await _signal_or_end(received, servers)
    if first is None:
        return None
    if on_first is not None:
        on_first(first, grace)
    for server in servers:
        server._start_drain(grace)
    second = await _signal_or_end(received, servers)
    if second is None:
        return None
    if on_second is not None:
        on_second(second)
    for server in servers:
        server._start_drain(0)
    return second


def announce_drain(number: signal.Signals, grace: float | None) -> None:
    """Log what the first signal does."""
    patience = "" if grace is None else f", at most {grace:g} s for the calls that run"
    _logger.info("%s: draining%s", number.name, patience)


def announce_end(number: signal.Signals) -> None:
    """Log what the second signal does."""
    _logger.warning("%s while draining: calls that still run are cancelled", number.name)


def check_grace(grace: float | None) -> None:
    """Refuse what is no number of seconds.

    Raises:
        TypeError: it is no number.
        ValueError: it is negative or NaN.
    """
    if grace is None:
        return
    if isinstance(grace, bool) or not isinstance(grace, (int, float)):
        raise TypeError(f"grace must be a number of seconds or None, not {type(grace).__name__}")
    if not grace >= 0:
        raise ValueError(f"grace must be 0 or more seconds, got {grace}")


async def _wait_ended(servers: Iterable[Server]) -> None:
    for server in servers:
        await server.wait_ended()


async def _signal_or_end(received: AsyncIterator[int], servers: Iterable[Server]) -> signal.Signals | None:
    """Return the next signal, or None if all servers end before one comes."""
    number: int | None = None
    # Not a plain nursery: a Ctrl-C that is not among the signals comes out of here as itself.
    with trio.CancelScope() as scope:
        async with ServiceNursery(checkpoint) as services:

            async def watch() -> None:
                await _wait_ended(servers)
                scope.cancel()

            services.start_soon(watch)
            number = await anext(received)
    return None if number is None else signal.Signals(number)
