"""The standard interoperability client, on trio_grpc; options are those of the other implementations' clients.

``python -m tests.interop.standard.client --server_host=localhost --server_port=8080 --test_case=large_unary``
"""

# ruff: noqa: T201 -- a command line
from __future__ import annotations

import argparse
import ssl
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import trio

import trio_grpc
from tests.interop.standard.cases import CASES, Client, Soak
from tests.interop.standard.options import boolean
from trio_grpc._lone_exception import unwrapped


class TookTooLong(Exception):
    """A case did not end."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="client", description=__doc__.partition("\n")[0])
    parser.add_argument("--server_host", default="localhost")
    parser.add_argument("--server_port", type=int, default=8080)
    parser.add_argument("--server_host_override", help="the name that the server's certificate must carry")
    parser.add_argument(
        "--test_case", default="large_unary", choices=tuple(CASES), metavar="NAME", help=", ".join(CASES)
    )
    parser.add_argument("--use_tls", type=boolean, nargs="?", const=True, default=False)
    parser.add_argument("--ca_file", help="trust this authority, PEM; default: what the system trusts")
    parser.add_argument("--http_proxy", help="reach the server through this proxy; default: what the environment says")
    parser.add_argument("--patience", type=float, default=60, help="seconds after which a case has failed")
    parser.add_argument("--concurrency", type=int, default=100, help="calls at once in concurrent_large_unary")
    soak = Soak()
    parser.add_argument("--soak_iterations", type=int, default=soak.iterations)
    parser.add_argument("--soak_max_failures", type=int, default=soak.max_failures)
    parser.add_argument("--soak_per_iteration_max_acceptable_latency_ms", type=int, default=soak.max_latency_ms)
    parser.add_argument("--soak_overall_timeout_seconds", type=float, default=soak.overall_timeout_seconds)
    parser.add_argument("--soak_min_time_ms_between_rpcs", type=int, default=soak.min_time_ms_between_rpcs)
    parser.add_argument("--soak_request_size", type=int, default=soak.request_size)
    parser.add_argument("--soak_response_size", type=int, default=soak.response_size)
    return parser.parse_args(arguments)


async def run_case(name: str, target: str, options: argparse.Namespace) -> None:
    """Run one of the standard cases on a channel of its own; raises what went wrong."""
    await run(name, CASES[name], target, options)


async def run(name: str, case: Callable[[Client], Awaitable[None]], target: str, options: argparse.Namespace) -> None:
    """Run any case, likewise."""
    context = ssl.create_default_context(cafile=options.ca_file) if options.use_tls else None
    open_channel = partial(
        trio_grpc.open_channel,
        target,
        ssl_context=context,
        server_hostname=options.server_host_override if options.use_tls else None,
        authority=options.server_host_override,
        http_proxy=options.http_proxy,
    )
    soak = Soak(
        iterations=options.soak_iterations,
        max_failures=options.soak_max_failures,
        max_latency_ms=options.soak_per_iteration_max_acceptable_latency_ms,
        overall_timeout_seconds=options.soak_overall_timeout_seconds,
        min_time_ms_between_rpcs=options.soak_min_time_ms_between_rpcs,
        request_size=options.soak_request_size,
        response_size=options.soak_response_size,
    )

    async def give_up() -> None:
        await trio.sleep(options.patience)
        raise TookTooLong(f"{name} has not ended within {options.patience:g} s")

    with unwrapped():
        # Not a scope with a deadline: that would go out with every call.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(give_up)
            async with open_channel() as channel:
                await case(Client(channel, open_channel, soak, options.concurrency))
            nursery.cancel_scope.cancel()


async def main(options: argparse.Namespace) -> int:
    try:
        await run_case(options.test_case, f"{options.server_host}:{options.server_port}", options)
    except Exception as error:
        print(f"{options.test_case}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(f"{options.test_case}: passed")
    return 0


if __name__ == "__main__":
    sys.exit(trio.run(main, parse(sys.argv[1:])))
