"""Three machines behind one name: kills, cuts off and restarts them under load, and shows what their clients notice.

``make machines`` runs this; it takes some 40 seconds. Its exit status is 0 only if no other calls have failed than may.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from functools import partial

import trio
from load import Load, Phase
from machines import Machine, open_machines
from name_server import serve_name

import trio_grpc

NAME = "machines.example"
#: For all of it, also on a machine that is busy with other things.
TIME_LIMIT = 120
CALLERS = 6
#: Two kinds of callers. The first end a call after two seconds, and do not try again.
PLAIN, RETRYING = "without retries", "with retries"
TIMEOUTS = {PLAIN: 2.0, RETRYING: 30.0}

#: Three servers, found by their name. One that is lost is left out at once, and called again as soon as it is back.
SERVICE_CONFIG: dict[str, object] = {"loadBalancingConfig": [{"round_robin": {}}]}
#: A call that has failed for want of its machine is made again, most probably to another one.
WITH_RETRIES: dict[str, object] = {
    **SERVICE_CONFIG,
    "methodConfig": [
        {
            "name": [{"service": "many_machines.Machine"}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.05s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ],
}
#: A machine that has sent nothing for ten seconds is asked, and has two for an answer. On Linux that is also how long
#: bytes may stay unacknowledged, so that one that is off the network is missed earlier than one that just hangs.
KEEPALIVE = trio_grpc.Keepalive(time=10, timeout=2)

#: The calls that are in flight to one machine when it goes: at most one of each caller.
IN_FLIGHT = {PLAIN: CALLERS}
LOST = frozenset({"UNAVAILABLE"})
#: While nobody knows yet that a machine does not answer, more and more callers end up there, again and again.
UNANSWERED = {PLAIN: 1000}
LATE = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})


class Report:
    """The table."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.problems: list[str] = []
        columns = "".join(f"{name:>11}" for name in names)
        print(f"\n{'':<40}{'answered by':>22}{'calls that failed':>34}")
        print(f"{'':<34}{'calls':>7}{columns}  {PLAIN:<38}{RETRYING:<14}")

    def add(self, phase: Phase, problem: str) -> None:
        total = phase.answers.total() + sum(failures.total() for failures in phase.failures.values())
        shares = "".join(f"{share(phase.answers, name):>11}" for name in self.names)
        plain, retrying = (failures_text(phase.failures.get(kind, Counter())) for kind in (PLAIN, RETRYING))
        print(f"{phase.name:<34}{total:>7}{shares}  {plain:<38}{retrying:<14}".rstrip(), flush=True)
        if problem:
            self.problems.append(f"{phase.name}: {problem}")
            print(f"    NOT ALLOWED: {problem}", flush=True)


def share(answers: Counter[str], name: str) -> str:
    return f"{answers[name] / answers.total():.0%}" if answers[name] else "-"


def failures_text(failures: Counter[str]) -> str:
    return ", ".join(f"{count} {code}" for code, count in sorted(failures.items())) or "-"


class Story:
    """What is done to the machines, one thing after the other."""

    def __init__(self, machines: list[Machine], load: Load, report: Report) -> None:
        self.machines = machines
        self.load = load
        self.report = report

    def begin(self, name: str) -> Phase:
        self.load.phase = Phase(name)
        return self.load.phase

    def end(self, *, allowed: dict[str, int] | None = None, codes: frozenset[str] = frozenset(), even: int = 0) -> None:
        """End a phase, and judge it: what may fail, and how many machines share its calls evenly."""
        phase = self.load.phase
        problem = phase.judge(allowed or {}, codes)
        if even and not problem:
            answers = sorted(phase.answers.values())
            if len(answers) != even or answers[0] < 0.8 * answers[-1]:
                problem = f"the calls are not evenly shared by {even} machines"
        self.report.add(phase, problem)

    async def tell(self) -> None:
        _, second, third = self.machines
        await self.watch("three machines", machines=3)

        self.begin("machine-2 is killed")
        await second.kill()
        await self.load.wait_flowing()
        self.end(allowed=IN_FLIGHT, codes=LOST)
        await self.watch("two are left", machines=2)
        self.begin("machine-2 is started again")
        await second.start()
        await self.load.wait_answers(second.name)
        self.end()

        self.begin("machine-3 does not answer")
        await third.cut_off()
        await self.load.wait_flowing()
        self.end(allowed=UNANSWERED, codes=LATE)
        await self.watch("two are left", machines=2)
        self.begin("machine-3 answers again")
        await third.reconnect()
        await self.load.wait_answers(third.name)
        self.end()

        for machine in self.machines:
            self.begin(f"{machine.name} is restarted")
            await machine.stop()
            await machine.start()
            await self.load.wait_answers(machine.name)
            self.end()
        await self.watch("three machines", machines=3)

    async def watch(self, name: str, *, machines: int) -> None:
        """Do nothing for a while: no call may fail, and all machines have the same share."""
        self.begin(name)
        await trio.sleep(1.5)
        self.end(even=machines)


async def main(*, loopback: bool) -> int:
    report: Report | None = None
    with trio.move_on_after(TIME_LIMIT) as scope:
        async with open_machines(loopback=loopback) as machines, trio.open_nursery() as nursery:
            addresses = [machine.host for machine in machines]
            name_server = await nursery.start(serve_name, NAME, addresses)
            target = f"dns://127.0.0.1:{name_server}/{NAME}:{machines[0].port}"
            print(f"Target: {target}, which has the addresses {', '.join(addresses)}.")
            open_channel = partial(trio_grpc.open_channel, target, keepalive=KEEPALIVE)
            async with (
                open_channel(service_config=SERVICE_CONFIG) as plain,
                open_channel(service_config=WITH_RETRIES) as retrying,
                trio.open_nursery() as calling,
            ):
                load = Load(Phase("at first"), TIMEOUTS)
                for channel, kind in ((plain, PLAIN), (retrying, RETRYING)):
                    for _ in range(CALLERS):
                        calling.start_soon(load.call, channel, kind, TIMEOUTS[kind])
                for machine in machines:
                    await load.wait_answers(machine.name)
                report = Report([machine.name for machine in machines])
                await Story(machines, load, report).tell()
                calling.cancel_scope.cancel()
            nursery.cancel_scope.cancel()
    problems = [] if report is None else report.problems
    if scope.cancelled_caught:
        problems.append(f"it was not over after {TIME_LIMIT} s")
    if problems:
        print("\nThe demo FAILED:", *problems, sep="\n  ", file=sys.stderr)
        return 1
    print("\nMachines were lost and came back, and no calls failed but those on their way to one that was lost.")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loopback", action="store_true", help="use loopback addresses, not network namespaces")
    logging.basicConfig(level=logging.ERROR)
    sys.exit(trio.run(partial(main, loopback=parser.parse_args().loopback)))
