"""Several processes that run one program: they are started, started again when they die, and stopped together.

Nothing here knows trio: the processes are forks of this one, and an event loop does not survive being forked. So this
one only waits: for signals, for what its workers report, and for the time to start one again.

Two pipes join it to each worker. Through one it passes signals on, as their numbers. Signals themselves would not do:
Ctrl-C in a terminal and ``systemctl stop`` signal every process of the program, so that a worker would take the same
request for two. And the pipe ends when this process does, however it dies, on every system; a worker then drains.
Through the other a worker reports that it serves, or why it cannot.
"""

from __future__ import annotations

import logging
import os
import random
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

import attrs

from trio_grpc._balancing.backoff import Backoff
from trio_grpc._signals import announce_drain, announce_end

_logger = logging.getLogger("trio_grpc")

#: A worker that has lived so long is started again at once: its death has nothing to do with its start. (systemd counts
#: the starts within as much, DefaultStartLimitIntervalSec.)
_YOUNG_SECONDS = 10.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_UP = b"+"
_FAILED = b"-"
#: Longer than any text of an error that says something; a pipe takes as much at once (PIPE_BUF is 4096 on Linux).
_REPORT_SIZE = 1000


@attrs.frozen
class Link:
    """A worker's ends of its two pipes.

    Attributes:
        orders: where signals come in, one byte each; it ends when the supervisor has died.
        reports: where it says what has become of it.
    """

    orders: int
    reports: int

    def report_up(self) -> None:
        """Say that this worker serves."""
        self._report(_UP)

    def report_failure(self, error: BaseException) -> None:
        """Say why this worker ends."""
        text = f"{type(error).__name__}: {error}".encode(errors="backslashreplace")
        self._report(_FAILED + text[:_REPORT_SIZE])

    def _report(self, data: bytes) -> None:
        # A supervisor that has died reads no more; the worker learns of that by its orders.
        with suppress(BrokenPipeError):
            os.write(self.reports, data)


def check_workers(workers: int) -> None:
    """Refuse what is no number of processes, or more than this system or thread can have.

    Raises:
        TypeError: it is no number.
        ValueError: it is less than 1, or several, and the system cannot share a port among processes.
        RuntimeError: it is several, and this is not the main thread, which alone receives signals.
    """
    if isinstance(workers, bool) or not isinstance(workers, int):
        raise TypeError(f"workers must be a number of processes, not {type(workers).__name__}")
    if workers < 1:
        raise ValueError(f"workers must be 1 or more, got {workers}")
    if workers == 1:
        return
    if not hasattr(os, "fork"):
        raise ValueError(f"workers must be 1 on this system, which has no fork; got {workers}")
    if not hasattr(socket, "SO_REUSEPORT"):
        raise ValueError(f"workers must be 1 on this system, which has no SO_REUSEPORT; got {workers}")
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("workers need the main thread, which alone receives signals")


@attrs.define
class Restarts:
    """When a worker that has died is started again.

    The first death of a worker just started makes it wait a second, each further one longer, as between attempts to
    connect (1 s x 1.6 up to 120 s, +-20 %). One that has lived for a while is replaced at once.
    """

    _backoff: Backoff = attrs.field(factory=Backoff)
    _uniform: Callable[[float, float], float] = random.uniform
    _young_deaths: int = 0

    def delay(self, lived: float) -> float:
        """Return the seconds to wait after the death of a worker that has lived so many."""
        if lived >= _YOUNG_SECONDS:
            self._young_deaths = 0
            return 0.0
        self._young_deaths += 1
        return self._backoff.delay(self._young_deaths, self._uniform)


@attrs.define(eq=False)
class _Worker:
    """One of the processes; when it has died, the place of the next one.

    Attributes:
        restarts: when to start the next.
        pid: its number; None between its death and the start of the next.
        orders: where signals are passed on.
        reports: where it says what has become of it; None when it has said all.
        started_at: when it, or the last one, was started.
        restart_at: when the next is to be started; None when it runs.
        error: why it could not serve, as far as it has said.
    """

    restarts: Restarts = attrs.field(factory=Restarts)
    pid: int | None = None
    orders: int = -1
    reports: int | None = None
    started_at: float = 0.0
    restart_at: float | None = None
    error: str = ""

    def close(self) -> None:
        """Close our ends of the pipes."""
        os.close(self.orders)
        self.close_reports()
        self.pid = None

    def close_reports(self) -> None:
        """Close one of them, from which nothing more comes."""
        if self.reports is not None:
            os.close(self.reports)
            self.reports = None


def supervise(
    count: int,
    work: Callable[[Link], None],
    *,
    grace: float | None,
    where: str,
    on_drain: Callable[[], object],
) -> signal.Signals | None:
    """Run a program in several processes until a signal; return when all of them have ended.

    Args:
        count: how many.
        work: the program. It is called in each process, which ends when it returns or raises. SIGINT and SIGTERM do
            nothing there until it asks for them.
        grace: what the log says about the drain.
        where: what the log says about the addresses.
        on_drain: called here before the workers are told to drain.

    Returns:
        None after a drain; the second signal if one came before its end.

    Raises:
        RuntimeError: a worker could not start, and none of them ever served. All are gone then.
        OSError: the system has no room for the processes.
    """
    with _signal_bytes() as signals:
        supervisor = _Supervisor(signals, [_Worker() for _ in range(count)], work, grace, where, on_drain)
        try:
            second, third = supervisor.run()
        finally:
            # Whatever went wrong here, no worker stays behind.
            supervisor.kill()
    if third is not None:
        # It has the effect that it has in any Python program, now that our handlers are gone.
        signal.raise_signal(third)
    return second


@attrs.define(eq=False)
class _Supervisor:
    """The loop around all workers."""

    _signals: _SignalBytes
    _workers: list[_Worker]
    _work: Callable[[Link], None]
    _grace: float | None
    _where: str
    _on_drain: Callable[[], object]
    _received: list[signal.Signals] = attrs.field(factory=list)
    _ever_up: bool = False

    def run(self) -> tuple[signal.Signals | None, signal.Signals | None]:
        """Return the second and the third signal, None for each that has not come."""
        for worker in self._workers:
            self._start(worker)
        while len(self._received) < 3 and self._running():
            self._wait()
            # Signals first: one to all processes may have ended a worker already.
            for number in self._signals.take():
                self._receive(number)
            for worker in self._workers:
                if worker.pid is not None:
                    self._hear(worker)
                    self._reap(worker, worker.pid)
            self._start_due()
        second, third, *_ = [*self._received[1:], None, None]
        return second, third

    def kill(self) -> None:
        """End all that are left, without asking."""
        for worker in self._workers:
            if worker.pid is not None:
                os.kill(worker.pid, signal.SIGKILL)
                os.waitpid(worker.pid, 0)
                worker.close()

    def _running(self) -> bool:
        return not self._received or any(worker.pid is not None for worker in self._workers)

    def _wait(self) -> None:
        """Wait for a signal (the death of a worker is one), a report, or the time to start a worker."""
        poller = select.poll()
        poller.register(self._signals.reading, select.POLLIN)
        for worker in self._workers:
            if worker.reports is not None:
                poller.register(worker.reports, select.POLLIN)
        due = [worker.restart_at for worker in self._workers if worker.restart_at is not None]
        poller.poll(max(0.0, min(due) - time.monotonic()) * 1000 if due else None)

    # -- the life of a worker

    def _start(self, worker: _Worker) -> None:
        """Make the process.

        Raises:
            OSError: there is no room for it.
        """
        _flush()
        ends: list[int] = []
        # A signal that the child gets before it is told apart from us would reach us through its copy of our pipe.
        with _signals_blocked() as mask:
            try:
                for _ in range(2):
                    ends.extend(os.pipe())
                pid = os.fork()
            except BaseException:
                for end in ends:
                    os.close(end)
                raise
            orders_in, orders, reports, reports_out = ends
            if pid == 0:
                self._become_worker(Link(orders_in, reports_out), (orders, reports), mask)
        os.close(orders_in)
        os.close(reports_out)
        os.set_blocking(reports, False)
        worker.pid, worker.orders, worker.reports = pid, orders, reports
        worker.started_at, worker.restart_at, worker.error = time.monotonic(), None, ""

    def _become_worker(self, link: Link, ours: tuple[int, int], mask: Iterable[int]) -> NoReturn:
        """Run the program in the process that was just made, and end it.

        It ends here, as a child of multiprocessing does: the blocks around `run` in the user's program, and what that
        has registered with `atexit`, belong to the supervisor's process.
        """
        status = 1
        try:
            self._signals.leave_to_parent(mask)
            for descriptor in ours:
                os.close(descriptor)
            # With the write end of another worker's orders in here, that one would not learn that we are orphans.
            for other in self._workers:
                if other.pid is not None:
                    other.close()
            self._work(link)
            status = 0
        except BaseException as error:
            _logger.exception("worker %d has failed", os.getpid())
            link.report_failure(error)
            raise
        finally:
            with suppress(Exception):
                logging.shutdown()
            _flush()
            os._exit(status)

    def _hear(self, worker: _Worker) -> None:
        """Take what a worker has reported."""
        if worker.reports is None:
            return
        try:
            report = os.read(worker.reports, 2 * _REPORT_SIZE)
        except BlockingIOError:
            return
        if not report:
            worker.close_reports()
        if report.startswith(_UP):
            if not self._ever_up:
                self._ever_up = True
                _logger.info("serving on %s with %d workers", self._where, len(self._workers))
            _logger.info("worker %d serves", worker.pid)
            report = report[len(_UP) :]
        if report.startswith(_FAILED):
            worker.error = report[len(_FAILED) :].decode(errors="replace")

    def _reap(self, worker: _Worker, pid: int) -> None:
        """See whether a worker has died, and what is to be done then."""
        ended, wait_status = os.waitpid(pid, os.WNOHANG)
        if not ended:
            return
        # Its last words.
        self._hear(worker)
        worker.close()
        how = _describe_end(os.waitstatus_to_exitcode(wait_status)) + (f" ({worker.error})" if worker.error else "")
        if self._received:
            _logger.info("worker %d ended with %s", pid, how)
        elif not self._ever_up:
            raise RuntimeError(f"worker {pid} ended with {how} before it served")
        else:
            now = time.monotonic()
            delay = worker.restarts.delay(now - worker.started_at)
            worker.restart_at = now + delay
            when = f"in {delay:.1f} s" if delay else "now"
            _logger.warning("worker %d ended with %s; another one starts %s", pid, how, when)

    def _start_due(self) -> None:
        """Start those whose time has come."""
        for worker in self._workers:
            if worker.restart_at is not None and worker.restart_at <= time.monotonic():
                try:
                    self._start(worker)
                except OSError as error:
                    delay = worker.restarts.delay(0)
                    worker.restart_at = time.monotonic() + delay
                    _logger.error("a worker cannot be started: %s; again in %.1f s", error, delay)

    # -- the end of all

    def _receive(self, number: signal.Signals) -> None:
        """Pass a signal on to the workers."""
        self._received.append(number)
        if len(self._received) == 1:
            announce_drain(number, self._grace)
            self._on_drain()
            for worker in self._workers:
                worker.restart_at = None
        elif len(self._received) == 2:
            announce_end(number)
        for worker in self._workers:
            if worker.pid is not None:
                # One that has just died is not told.
                with suppress(BrokenPipeError):
                    os.write(worker.orders, bytes([number]))


class _SignalBytes:
    """Signals of this process as bytes in a pipe, which can be waited for together with other things.

    Attributes:
        reading: the descriptor from which they come.
    """

    def __init__(self) -> None:
        self.reading, self._writing = os.pipe()
        for end in (self.reading, self._writing):
            os.set_blocking(end, False)
        self._wakeup_before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._before = {
            number: signal.signal(number, lambda *_: None) or signal.SIG_DFL
            for number in (*_STOP_SIGNALS, signal.SIGCHLD)
        }

    def take(self) -> list[signal.Signals]:
        """Return the signals to stop that have come since the last time."""
        try:
            numbers = os.read(self.reading, 4096)
        except BlockingIOError:
            return []
        return [signal.Signals(number) for number in numbers if number in _STOP_SIGNALS]

    def leave_to_parent(self, mask: Iterable[int]) -> None:
        """Forget all this, in a worker: signals to stop do nothing there, until it asks for them."""
        signal.set_wakeup_fd(-1)
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, self._before[signal.SIGCHLD])
        self._close()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def put_back(self) -> None:
        """Have signals do what they did before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._close()

    def _close(self) -> None:
        os.close(self.reading)
        os.close(self._writing)


@contextmanager
def _signal_bytes() -> Iterator[_SignalBytes]:
    signals = _SignalBytes()
    try:
        yield signals
    finally:
        signals.put_back()


@contextmanager
def _signals_blocked() -> Iterator[set[int]]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*_STOP_SIGNALS, signal.SIGCHLD))
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _describe_end(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        # Real-time signals have no names.
        return f"signal {-status}"


def _flush() -> None:
    """Write what is buffered: a fork would have a copy of it, and write it again."""
    for stream in (sys.stdout, sys.stderr):
        # There is none in a program without a console, and a closed or broken one is not our concern.
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
