"""The clock that asks a quiet peer, and the count of a client's early PINGs, without a connection."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from trio_grpc._options import KeepaliveEnforcement
from trio_grpc._transport.frames import ConnectionFault, ErrorCode
from trio_grpc._transport.keepalive import KEEPALIVE_PING, KeepaliveTimer, PingStrikes


class Peer:
    """What the timer sees of a connection, and a record of its PINGs."""

    def __init__(
        self, nursery: trio.Nursery, time: float, timeout: float, *, busy: bool = True, answers: bool = True
    ) -> None:
        self.last_read = trio.current_time()
        self.busy = busy
        self.answers = answers
        self.asked: list[float] = []
        self.died: float | None = None
        self.timer = KeepaliveTimer(
            time,
            timeout,
            last_read=lambda: self.last_read,
            busy=lambda: self.busy,
            ask=self._ask,
            on_dead=self._die,
        )
        nursery.start_soon(self._run)

    async def _run(self) -> None:
        self.timer.begin()
        try:
            await trio.sleep_forever()
        finally:
            self.timer.end()

    def _die(self) -> None:
        assert self.died is None
        self.died = trio.current_time()

    def _ask(self) -> None:
        self.asked.append(trio.current_time())
        if self.answers:
            self.read()

    def read(self) -> None:
        """A byte comes."""
        self.last_read = trio.current_time()

    def open(self) -> None:
        """The first call."""
        self.busy = True
        self.timer.wake()


def test_payloads_differ() -> None:
    """An answer to a drain's PING or to a bandwidth probe must not be taken for another's."""
    assert len(KEEPALIVE_PING) == 8
    assert KEEPALIVE_PING not in (b"trio_bye", b"trio_bdp")


@pytest.mark.parametrize(("time", "timeout"), [(10, 20), (20, 10), (10, 10), (1, 1000)])
async def test_an_answer_in_no_time_is_an_answer(
    time: float, timeout: float, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    """On a virtual clock it comes at the same instant."""
    peer = Peer(nursery, time, timeout)
    await trio.sleep(100.5)
    assert peer.asked == pytest.approx([float(moment) for moment in range(time, 101, time)])  # type: ignore[call-overload]
    assert peer.died is None
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("time", "timeout"), [(10, 20), (20, 10), (10, 10), (1, 1000), (1000, 0.1)])
async def test_no_answer(time: float, timeout: float, nursery: trio.Nursery, autojump_clock: Any) -> None:
    peer = Peer(nursery, time, timeout, answers=False)
    await trio.sleep(time + timeout + 1)
    assert peer.asked == [pytest.approx(time)]
    assert peer.died == pytest.approx(time + timeout)


async def test_an_answer_at_the_last_moment(nursery: trio.Nursery, autojump_clock: Any) -> None:
    peer = Peer(nursery, 10, 20, answers=False)
    await trio.sleep(29.9)
    peer.read()
    await trio.sleep(40)
    # Counted from the answer, not from the PING.
    assert peer.asked == pytest.approx([10, 39.9])
    assert peer.died == pytest.approx(59.9)


async def test_what_comes_by_itself_puts_the_ping_off(nursery: trio.Nursery, autojump_clock: Any) -> None:
    peer = Peer(nursery, 10, 20)
    for _ in range(50):
        await trio.sleep(9.5)
        peer.read()
    assert peer.asked == []
    await trio.sleep(10.5)
    assert peer.asked == pytest.approx([485])
    nursery.cancel_scope.cancel()


async def test_asleep_until_there_is_a_call(nursery: trio.Nursery, autojump_clock: Any) -> None:
    peer = Peer(nursery, 10, 20, busy=False)
    await trio.sleep(1000)
    assert peer.asked == []
    peer.open()
    # At once, so that it goes before the headers of the call.
    assert peer.asked == [1000]
    await trio.sleep(10.5)
    assert peer.asked == pytest.approx([1000, 1010])
    nursery.cancel_scope.cancel()


async def test_a_call_on_a_connection_that_was_quiet_but_not_for_long(
    nursery: trio.Nursery, autojump_clock: Any
) -> None:
    peer = Peer(nursery, 10, 20, busy=False)
    await trio.sleep(15)
    peer.read()
    await trio.sleep(5)
    peer.open()
    assert peer.asked == []
    await trio.sleep(5.5)
    assert peer.asked == pytest.approx([25])
    peer.busy = False
    await trio.sleep(100)
    assert peer.asked == pytest.approx([25])
    nursery.cancel_scope.cancel()


async def test_a_call_that_ends_before_the_timer_has_woken(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """The PING is out, and what does not answer is dead, calls or no calls."""
    peer = Peer(nursery, 10, 20, busy=False, answers=False)
    await trio.sleep(100)
    peer.open()
    peer.busy = False
    await trio.sleep(5)
    # Nor does the next call ask again while no answer has come.
    peer.open()
    await trio.sleep(25)
    assert peer.asked == [100]
    assert peer.died == pytest.approx(120)


async def test_many_calls_one_after_the_other_ask_once(nursery: trio.Nursery, autojump_clock: Any) -> None:
    peer = Peer(nursery, 10, 20, busy=False, answers=False)
    await trio.sleep(100)
    for _ in range(10):
        peer.open()
        peer.busy = False
    await trio.testing.wait_all_tasks_blocked()
    assert peer.asked == [100]
    peer.read()
    await trio.sleep(1000)
    assert (peer.asked, peer.died) == ([100], None)
    nursery.cancel_scope.cancel()


async def test_a_month(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """Sums of floats do not drift into a tight loop or a missed beat."""
    await trio.sleep(12_345.678_9)
    peer = Peer(nursery, 3600.1, 0.1)
    month = 30 * 24 * 3600.0
    await trio.sleep(month)
    assert len(peer.asked) == int(month / 3600.1)
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("after", [5, 15, 1005])
async def test_being_cancelled(after: float, nursery: trio.Nursery, autojump_clock: Any) -> None:
    """Before its time, while it waits for an answer, and asleep."""
    peer = Peer(nursery, 10, 20, answers=False, busy=after < 1000)
    await trio.sleep(after)
    nursery.cancel_scope.cancel()
    await trio.lowlevel.checkpoint_if_cancelled()
    assert peer.died is None
    await trio.sleep(10_000)
    peer.open()
    assert peer.died is None


# ---------------------------------------------------------------------------------------------------------------------
# Strikes


class Strikes:
    """A count, and what it looks at."""

    def __init__(self, enforcement: KeepaliveEnforcement | None = None, *, busy: bool = True) -> None:
        self.busy = busy
        self.spoken = 0
        self.count = PingStrikes(
            enforcement or KeepaliveEnforcement(), busy=lambda: self.busy, spoken=lambda: self.spoken
        )

    def out(self, now: float) -> bool:
        """Whether the PING of this moment is one too many."""
        try:
            self.count.receive(now)
        except ConnectionFault as fault:
            return (fault.error_code, fault.reason) == (ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")
        return False


@pytest.mark.parametrize("now", [0.0, 1e9])
def test_the_first_ping_is_good_and_two_more_are_forgiven(now: float) -> None:
    strikes = Strikes()
    assert [strikes.out(now) for _ in range(4)] == [False, False, False, True]


def test_good_pings_do_not_wipe_out_strikes() -> None:
    strikes = Strikes(KeepaliveEnforcement(min_time=10))
    assert [strikes.out(now) for now in (0, 5, 10, 15, 20, 25)] == [False] * 5 + [True]


def test_early_is_judged_from_the_last_good_ping() -> None:
    strikes = Strikes(KeepaliveEnforcement(min_time=10))
    assert not any(strikes.out(now) for now in (0, 9, 10, 20, 30, 39, 40, 50))
    assert strikes.out(59.9)


@pytest.mark.parametrize(("busy", "permit", "least"), [(True, False, 300), (False, True, 300), (False, False, 7200)])
def test_how_often(busy: bool, permit: bool, least: float) -> None:
    strikes = Strikes(KeepaliveEnforcement(permit_without_calls=permit), busy=busy)
    assert not any(strikes.out(number * least) for number in range(100))
    strikes = Strikes(KeepaliveEnforcement(permit_without_calls=permit), busy=busy)
    assert [strikes.out(number * (least - 1)) for number in range(6)].index(True) == 5


def test_no_least_time() -> None:
    strikes = Strikes(KeepaliveEnforcement(min_time=0))
    assert not any(strikes.out(5) for _ in range(1000))
    strikes.busy = False
    assert [strikes.out(5) for _ in range(3)] == [False, False, True]


def test_what_is_sent_wipes_out_strikes_and_the_clock() -> None:
    strikes = Strikes()
    for now in range(100):
        assert not any(strikes.out(now) for _ in range(3))
        strikes.spoken += 1
    assert [strikes.out(100) for _ in range(4)] == [False, False, False, True]
