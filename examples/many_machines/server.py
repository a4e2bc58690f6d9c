"""The program that runs on each machine: ``python server.py ADDRESS NAME``."""

from __future__ import annotations

import logging
import sys

import trio
from many_machines_pb2 import WorkReply, WorkRequest
from many_machines_trio_grpc import MachineServicer

import trio_grpc
from trio_grpc.health import HealthServicer


class Machine(MachineServicer):
    def __init__(self, name: str) -> None:
        self.name = name

    async def Work(self, request: WorkRequest, context: trio_grpc.ServicerContext[WorkReply], /) -> WorkReply:
        await trio.sleep(request.seconds)
        return WorkReply(machine=self.name)


def main(address: str, name: str) -> None:
    # It says when it can be called, where, and what signals do to it.
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    machine = Machine(name)
    trio_grpc.run(
        # Proxies and orchestrators ask for its health.
        [machine, HealthServicer([machine])],
        address,
        grace=5,
        # The clients ask every ten seconds whether a machine is still there. By default only five minutes are allowed.
        keepalive_enforcement=trio_grpc.KeepaliveEnforcement(min_time=5),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
