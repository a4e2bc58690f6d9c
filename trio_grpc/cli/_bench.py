"""``trio-grpc bench``: load with a live progress bar, rates and latencies."""

from __future__ import annotations

import contextlib
import math
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import click
import trio
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from trio_grpc.cli._call_options import CallOptions, call_options
from trio_grpc.cli._connection import ConnectionOptions, connect, connection_options, open_channel_for
from trio_grpc.cli._failure import ExitCode, Failure
from trio_grpc.cli._load import Load, Plan, Results
from trio_grpc.cli._output import Output, output_options
from trio_grpc.cli._requests import RequestData, data_option
from trio_grpc.cli._running import run_async
from trio_grpc.cli._schema import SchemaOptions, schema_options
from trio_grpc.cli._seconds import POSITIVE_SECONDS, Seconds

#: What is told of the latencies.
_PERCENTILES = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
#: Bars of the picture, and the characters of the longest.
_BARS = 12
_BAR_WIDTH = 40
#: Seconds between two looks at the progress.
_TICK = 0.1


@click.command("bench")
@connection_options
@click.argument("method")
@data_option
@schema_options
@call_options
@click.option(
    "-c",
    "--concurrency",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    metavar="N",
    help="Calls under way at a time.",
)
@click.option(
    "--connections", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Connections."
)
@click.option(
    "--duration",
    type=POSITIVE_SECONDS,
    metavar="SECONDS",
    help="How long to measure.  [default: 10]",
)
@click.option("--calls", type=click.IntRange(min=1), metavar="N", help="How many calls to measure, instead.")
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="Calls per second. Latencies then count from when a call was due. Default: as many as go.",
)
@click.option(
    "--warm-up",
    type=Seconds(min=0),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Load before anything is measured.",
)
@output_options
def command(
    connection: ConnectionOptions,
    method: str,
    data: RequestData,
    schema: SchemaOptions,
    call: CallOptions,
    concurrency: int,
    connections: int,
    duration: float | None,
    calls: int | None,
    rate: float | None,
    warm_up: float,
    output: Output,
) -> int:
    """Load METHOD of the server at TARGET, and tell how quick it is.

    Requests are made once, and replies are not read. Ctrl-C ends it early: what was measured is told, and the exit
    code is 130. Where no call succeeds the exit code is 64 plus the number of the status that most of them had.
    """
    if rate is not None and not math.isfinite(rate):
        raise click.UsageError(f"--rate must be a number of calls, not {rate}")
    if calls is not None and duration is not None:
        raise click.UsageError("--calls and --duration both say when it is over: give one of them")
    plan = Plan(
        concurrency=concurrency,
        duration=10.0 if calls is None and duration is None else duration,
        calls=calls,
        rate=rate,
        warm_up=warm_up,
        timeout=call.timeout,
        metadata=call.metadata,
    )

    async def main() -> int:
        async with AsyncExitStack() as stack:
            channels = []
            for _ in range(connections):
                channel = await stack.enter_async_context(open_channel_for(connection))
                await connect(channel, connection)
                channels.append(channel)
            known = schema.open(channels[0], call.question_timeout, call.metadata)
            described = await known.find_method(method)
            requests = [one.SerializeToString() for one in data.messages(described, known.pool)]
            load = Load(channels, described, requests, plan)
            interrupted = await _run(load, plan, output)
        results = load.results
        if interrupted and results.began is None:
            return ExitCode.INTERRUPTED
        if output.json:
            output.document(_document(described.path[1:], connection.target, plan, connections, results))
        else:
            _show(results, output)
        if interrupted:
            return ExitCode.INTERRUPTED
        if results.failures and not results.latencies.count:
            (worst, _), *_ = results.failures.most_common(1)
            text = results.messages[worst]
            raise Failure(f"no call succeeded: {worst.name}{f': {text}' if text else ''}", ExitCode.RPC + worst.value)
        return ExitCode.OK

    return run_async(main)


async def _run(load: Load, plan: Plan, output: Output) -> bool:
    """Make the load; return whether Ctrl-C has ended it."""
    interrupted = False

    async def watch_for_ctrl_c(task_status: trio.TaskStatus[None]) -> None:
        nonlocal interrupted
        with trio.open_signal_receiver(signal.SIGINT) as signals:
            task_status.started()
            async for _ in signals:
                interrupted = True
                load.stop()

    async with trio.open_nursery() as nursery:
        await nursery.start(watch_for_ctrl_c)
        nursery.start_soon(_show_progress, load.results, plan, output)
        await load.run()
        nursery.cancel_scope.cancel()
    return interrupted


async def _show_progress(results: Results, plan: Plan, output: Output) -> None:
    if output.json or not output.errors.is_terminal:
        return
    with _progress(plan, output) as (progress, task):
        while True:
            progress.update(
                task,
                completed=results.calls if plan.calls is not None else results.seconds,
                what="measuring" if results.began is not None else "warming up",
                rate=f"{results.rate:,.0f}/s",
                failed=f"{results.failures.total():,} failed" if results.failures else "",
            )
            progress.refresh()
            await trio.sleep(_TICK)


@contextlib.contextmanager
def _progress(plan: Plan, output: Output) -> Iterator[tuple[Progress, Any]]:
    # It is gone when all is over: what was measured says more.
    progress = Progress(
        TextColumn("{task.fields[what]}"),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("[bold]{task.fields[rate]}"),
        TextColumn("[red]{task.fields[failed]}"),
        console=output.errors,
        auto_refresh=False,
        transient=True,
    )
    with progress:
        yield progress, progress.add_task("", total=plan.calls or plan.duration, what="", rate="", failed="")


def _document(path: str, target: str, plan: Plan, connections: int, results: Results) -> dict[str, Any]:
    latencies = results.latencies
    return {
        "target": target,
        "method": path,
        "concurrency": plan.concurrency,
        "connections": connections,
        "rate": plan.rate,
        "seconds": round(results.seconds, 6),
        "calls": results.calls,
        "ok": latencies.count,
        "failures": {code.name: count for code, count in results.failures.most_common()},
        "calls_per_second": round(results.rate, 3),
        "messages_sent": results.sent,
        "messages_received": results.received,
        "latency_ms": {
            "min": _milliseconds(latencies.smallest),
            "mean": _milliseconds(latencies.mean),
            **{f"p{percent:g}": _milliseconds(latencies.percentile(percent)) for percent in _PERCENTILES},
            "max": _milliseconds(latencies.largest),
        },
        "histogram": [{"up_to_ms": _milliseconds(limit), "calls": count} for limit, count in latencies.rows(_BARS)],
    }


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 4)


def _show(results: Results, output: Output) -> None:
    latencies = results.latencies
    output.show(f"{results.calls:,} calls in {results.seconds:.2f} s: {results.rate:,.1f} per second", style="bold")
    for code, count in results.failures.most_common():
        text = results.messages[code]
        output.show(f"{count:,} failed with {code.name}{f', the first: {text}' if text else ''}", style="red")
    if not latencies.count:
        return
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    rows = [("fastest", latencies.smallest), ("mean", latencies.mean)]
    rows += [(f"{percent:g} %", latencies.percentile(percent)) for percent in _PERCENTILES]
    rows.append(("slowest", latencies.largest))
    for title, seconds in rows:
        table.add_row(f"  {title}", _readable(seconds))
    output.show("latency")
    output.show(table)
    bars = list(latencies.rows(_BARS))
    most = max(count for _, count in bars)
    picture = Table.grid(padding=(0, 2))
    picture.add_column(justify="right")
    picture.add_column(justify="right")
    picture.add_column(style="cyan")
    for limit, count in bars:
        length = round(count / most * _BAR_WIDTH)
        picture.add_row(f"  up to {_readable(limit)}", f"{count:,}", "█" * length or ("▏" if count else ""))
    output.show("calls by latency")
    output.show(picture)


def _readable(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1000:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


__all__ = ["command"]
