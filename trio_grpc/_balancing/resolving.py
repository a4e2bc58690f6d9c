"""Keeps a resolver running: what it raises is published, and it is called again after a backoff."""

from __future__ import annotations

import random
from collections.abc import Callable

import trio

from trio_grpc._balancing.backoff import Backoff
from trio_grpc._balancing.resolver import Resolution, Resolver
from trio_grpc._balancing.target import ResolverTarget


async def run_resolver(
    resolver: Resolver,
    target: ResolverTarget,
    resolution: Resolution,
    backoff: Backoff,
    uniform: Callable[[float, float], float] = random.uniform,
) -> None:
    """Call the resolver until it ends without an error; a task of the channel.

    Args:
        resolver: the user's or ours.
        target: what it is to resolve.
        resolution: where it publishes.
        backoff: the waits between failures in a row; a published list ends the row.
        uniform: gives the jitter.
    """
    failures = 0
    while True:
        updates = resolution.updates
        try:
            await resolver(target, resolution)
        except Exception as error:
            resolution.fail(error)
        else:
            if resolution.updates:
                return
            resolution.fail(RuntimeError("the resolver ended without publishing anything"))
        failures = 1 if resolution.updates > updates else failures + 1
        await trio.sleep(backoff.delay(failures, uniform))
