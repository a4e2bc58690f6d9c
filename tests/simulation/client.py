"""A client of a simulated world: a real channel, a few workers that call, and what has become of their calls."""

from __future__ import annotations

from collections import Counter
from math import ceil
from random import Random

import trio
from echo_pb2 import EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.simulation.chronicle import Chronicle
from tests.simulation.dns import Dns
from tests.simulation.network import Network
from tests.simulation.stories import MAX_TOKENS, TOKEN_RATIO, Attempt, Story
from tests.simulation.watching import Watched, Watcher
from trio_grpc import Keepalive, Limits, RoundRobin, RpcError, StatusCode

#: Calls that one client has in flight, at most.
WORKERS = 3
#: Seconds between the times at which calls begin.
STEP = 0.5
#: Seconds that calls may take, and those that are in a hurry.
PATIENT, HASTY = 60.0, 1.0
#: How many calls in a hundred are streams, and are in a hurry.
STREAMS, HASTY_CALLS = 15, 5
#: Messages of a stream.
REPLIES = 5

_LIMITS = Limits(adaptive_window=False)
#: The quickest that gRFC A8 lets clients be; only connections with calls are asked.
_KEEPALIVE = Keepalive(time=10, timeout=5)


class Client:
    """A program with one channel.

    Attributes:
        name: of its machine.
        watcher: of its channel's policy.
        codes: calls that have ended.
        reasons: failures by why they could not be prevented.
        attempts: that were made.
        retries: those of them that followed a failure which a backend had sent.
        faults: what should not have happened.
    """

    def __init__(
        self, name: str, *, network: Network, dns: Dns, rng: Random, chronicle: Chronicle, calls_per_second: float
    ) -> None:
        self.name = name
        self.watcher = Watcher(self._begin_attempt, self._end_attempt)
        self.codes: Counter[StatusCode] = Counter()
        self.reasons: Counter[str] = Counter()
        self.attempts = 0
        self.retries = 0
        self.faults: list[str] = []
        self._network = network
        self._rng = rng
        self._chronicle = chronicle
        self._stories: dict[str, Story] = {}
        self._codes: dict[str, StatusCode] = {}
        self._calls = 0
        self._pause = WORKERS / calls_per_second
        self._channel = trio_grpc.open_channel(
            "sim:///echo",
            resolvers={"sim": dns.resolver(name)},
            load_balancing=Watched(RoundRobin(), self.watcher),
            limits=_LIMITS,
            keepalive=_KEEPALIVE,
        )

    async def run(self, over: trio.Event) -> None:
        """Call until it is over."""
        async with self._channel:
            async with trio.open_nursery() as workers:
                for _ in range(WORKERS):
                    workers.start_soon(self._work, over)
            # Before the connections are given up: that is nobody's loss.
            self.watcher.settle()
        for story in self._stories.values():
            self.faults.append(f"still running: {story}")

    async def _work(self, over: trio.Event) -> None:
        echo = EchoStub(self._channel)
        while True:
            due = trio.current_time() + self._rng.expovariate(1 / self._pause)
            # On a grid, so that several calls begin at once: the virtual clock need not stop for each of them.
            await trio.sleep_until(ceil(due / STEP) * STEP)
            if over.is_set():
                return
            self._calls += 1
            kind = self._rng.randrange(100)
            story = Story(f"{self.name}-{self._calls}", HASTY if STREAMS <= kind < STREAMS + HASTY_CALLS else PATIENT)
            self._stories[story.name] = story
            code = StatusCode.OK
            try:
                await self._call(echo, story, stream=kind < STREAMS)
            except RpcError as error:
                code = error.code
                self._chronicle.note("failed", story.name, code.name, error.message)
            story.end = trio.current_time()
            self._codes[story.name] = code
            self._settle(story)

    async def _call(self, echo: EchoStub, story: Story, *, stream: bool) -> None:
        request = EchoRequest(text=story.name, count=REPLIES)
        metadata = {"call": story.name}
        if not stream:
            reply = await echo.Unary(request, timeout=story.timeout, metadata=metadata)
            assert reply.text == story.name
            return
        async with echo.ServerStream(request, timeout=story.timeout, metadata=metadata) as call:
            async for reply in call:
                assert (reply.text, reply.count) == (story.name, story.replies)
                story.replies += 1
        assert story.replies == REPLIES

    # -- what became of them

    def _begin_attempt(self, call: str, attempt: Attempt) -> None:
        attempts = self._stories[call].attempts
        # What a backend has sent is never tried again unseen: this takes a token.
        self.retries += bool(attempts) and not attempts[-1].local
        attempts.append(attempt)
        self._chronicle.note("attempt", call, attempt.address)

    def _end_attempt(self, call: str, attempt: Attempt) -> None:
        story = self._stories[call]
        if attempt.code is None:
            story.attempts.remove(attempt)
        elif attempt.code is not StatusCode.OK:
            self._chronicle.note("ended", call, attempt)
            if not self._network.troubles(self.name, attempt.address, attempt.begin, attempt.end):
                self.faults.append(f"nothing was wrong with {attempt.address}: {story}")
        self._settle(story)

    def _settle(self, story: Story) -> None:
        """Judge a call that has ended, and whose attempts have; the latter is told a little later."""
        if not story.over:
            return
        del self._stories[story.name]
        code = self._codes.pop(story.name)
        self.codes[code] += 1
        self.attempts += len(story.attempts)
        if code is StatusCode.OK:
            return
        reason = story.reason(code, throttled=self._throttled())
        if reason is None:
            self.faults.append(f"a retry should have saved it, {code.name}: {story}")
        else:
            self.reasons[reason] += 1

    def _throttled(self) -> bool:
        """Whether a retry may have found no tokens just now; other workers may have brought some back since."""
        throttle = self._channel._retry_throttle
        return throttle is not None and throttle.tokens <= MAX_TOKENS / 2 + WORKERS * TOKEN_RATIO
