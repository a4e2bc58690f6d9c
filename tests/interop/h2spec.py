"""h2spec against our server, plaintext and TLS: `python -m tests.interop.h2spec` (what `make h2spec` runs).

h2spec is a conformance suite for HTTP/2 servers. It is installed when missing, by `go install`, into the cache of the
interop peers. All of its cases have to pass; it ends with exit status 1 otherwise.
"""

from __future__ import annotations

import argparse
import re
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path

import trio
import trustme

import trio_grpc
from tests.interop.standard.installing import Unavailable, go_programs
from tests.interop.standard.service import InteropServicer

_PROGRAM = "github.com/summerwind/h2spec/cmd/h2spec"
_VERSION = "v2.2.1+incompatible"
#: h2spec takes the default frame size for granted, and wants to reach the limit of streams.
_LIMITS = trio_grpc.Limits(max_frame_size=16_384, max_concurrent_streams=100)
_SUMMARY = re.compile(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed")


def _server_context(folder: Path) -> ssl.SSLContext:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    return context


async def _run(h2spec: Path, context: ssl.SSLContext | None, arguments: list[str]) -> bool:
    """Run h2spec against a server of ours; True when every case passed."""
    name = "plaintext" if context is None else "TLS"
    async with trio.open_nursery() as nursery:
        server = await nursery.start(_serve, context)
        port = server.addresses[0].rpartition(":")[2]
        command = [str(h2spec), "-h", "127.0.0.1", "-p", port, *arguments]
        if context is not None:
            command += ["-t", "-k"]
        done = await trio.run_process(command, capture_stdout=True, stderr=subprocess.STDOUT, check=False)
        nursery.cancel_scope.cancel()
    output = done.stdout.decode()
    summary = _SUMMARY.search(output)
    if summary is None or int(summary[2]) != int(summary[1]):
        sys.stdout.write(output[output.find("Failures:") :] if "Failures:" in output else output)
    sys.stdout.write(f"h2spec, {name}: {summary[0] if summary else 'ended without a result'}\n")
    return summary is not None and int(summary[1]) > 0 and summary[2] == summary[1]


async def _serve(
    context: ssl.SSLContext | None, task_status: trio.TaskStatus[trio_grpc.Server] = trio.TASK_STATUS_IGNORED
) -> None:
    await trio_grpc.serve(
        [InteropServicer()], "127.0.0.1:0", ssl_context=context, limits=_LIMITS, task_status=task_status
    )


async def _main(arguments: list[str]) -> int:
    try:
        h2spec = go_programs("h2spec", {"h2spec": f"{_PROGRAM}@{_VERSION}"}) / "h2spec"
    except Unavailable as reason:
        sys.stdout.write(f"h2spec: SKIPPED ({reason})\n")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        passed = [
            await _run(h2spec, None, arguments),
            await _run(h2spec, _server_context(Path(folder)), arguments),
        ]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("arguments", nargs="*", help="passed on to h2spec, e.g. http2/5.1")
    sys.exit(trio.run(_main, parser.parse_args().arguments))
