"""The deadline of the RPC whose handler this task is running, for the calls that the handler makes.

A context variable, so that it follows the handler's own child tasks and nobody else's. Cancel scopes carry deadlines
too, but others than the RPC's (watchdogs, `nursery.start`), which may move and must not go on the wire.
"""

from __future__ import annotations

from contextvars import ContextVar
from math import inf

#: Absolute trio time; `math.inf` outside handlers and for RPCs without a deadline.
rpc_deadline: ContextVar[float] = ContextVar("trio_grpc_rpc_deadline", default=inf)
