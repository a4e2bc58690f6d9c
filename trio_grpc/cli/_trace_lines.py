"""Frames as lines for people, and as documents for programs: what they say, when, and of which message."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.descriptor_pool import DescriptorPool
from rich.text import Text

from trio_grpc._compression import get_compressor
from trio_grpc._method import Method
from trio_grpc.cli._frames import FrameSeen, MessageSeen, document
from trio_grpc.cli._messages import to_document
from trio_grpc.cli._output import Output

#: Of a message that is shown: a larger one is cut for people, never for programs.
_MAX_SHOWN = 400
#: That a message may have after decompression.
_MAX_MESSAGE = 64 * 2**20
_INDENT = " " * 14


class TraceReport:
    """Prints frames as they pass, and sums them up at the end.

    Args:
        method: what is called; its messages are shown as JSON.
        pool: has the types of ``google.protobuf.Any`` fields.
        output: where to print.
        messages: show messages, not only their sizes.
    """

    def __init__(self, method: Method[Any, Any], pool: DescriptorPool, output: Output, messages: bool) -> None:
        self._method = method
        self._pool = pool
        self._output = output
        self._messages = messages
        self._encodings: dict[tuple[bool, int], str] = {}
        self._frames = {True: 0, False: 0}
        self._bytes = {True: 0, False: 0}
        self._firsts: dict[str, float] = {}

    def frame(self, seconds: float, seen: FrameSeen) -> None:
        """Print one frame.

        Args:
            seconds: since the trace began.
            seen: the frame.
        """
        self._frames[seen.sent] += 1
        self._bytes[seen.sent] += 9 + seen.length
        self._note_times(seconds, seen)
        if seen.headers is not None:
            for name, value in seen.headers:
                if name == "grpc-encoding":
                    self._encodings[seen.sent, seen.stream] = value
        messages = [self._message(seen, message) for message in seen.messages]
        if self._output.json:
            values = {"seconds": round(seconds, 6), **document(seen)}
            if messages:
                values["messages"] = messages
            self._output.document(values)
        else:
            self._show(seconds, seen, messages)

    def _note_times(self, seconds: float, seen: FrameSeen) -> None:
        if not seen.stream:
            return
        what = None
        if seen.type == "HEADERS" and seen.headers is not None:
            names = {name for name, _ in seen.headers}
            if seen.sent:
                what = "request headers"
            else:
                what = "trailers" if "grpc-status" in names else "response headers"
        elif seen.messages:
            what = "first request" if seen.sent else "first response"
        if what is not None:
            self._firsts.setdefault(what, seconds)

    def _message(self, seen: FrameSeen, message: MessageSeen) -> dict[str, Any]:
        values: dict[str, Any] = {"length": len(message.data), "compressed": message.compressed}
        if not self._messages:
            return values
        data = message.data
        message_type: Any = self._method.request_type if seen.sent else self._method.response_type
        try:
            if message.compressed:
                compressor = get_compressor(self._encodings.get((seen.sent, seen.stream), "identity"))
                if compressor is None:
                    raise ValueError("there is no such compression here")
                data = compressor.decompress(data, _MAX_MESSAGE)
            values["message"] = to_document(message_type.FromString(data), self._pool)
        except Exception as error:
            # Whatever passes is shown: what it is that cannot be read, and why.
            values["unreadable"] = str(error)
        return values

    # -- for people

    def _show(self, seconds: float, seen: FrameSeen, messages: list[dict[str, Any]]) -> None:
        line = Text(f"{seconds * 1000:9.2f} ms ", style="dim")
        line.append("-> " if seen.sent else "<- ", style="bold cyan" if seen.sent else "bold green")
        line.append("conn  " if seen.stream == 0 else f"{seen.stream:<5} ", style="default")
        line.append(seen.type, style="bold cyan" if seen.sent else "bold green")
        rest = [*seen.flags, f"{seen.length} B"]
        line.append(f" {' '.join(rest)}", style="default")
        self._print(line)
        for text, style in self._details(seen):
            self._print(Text(f"{_INDENT}{text}", style=style))
        for message in messages:
            state = "compressed, " if message["compressed"] else ""
            self._print(Text(f"{_INDENT}message, {state}{message['length']} B", style="default"))
            if "message" in message:
                text = json.dumps(message["message"], ensure_ascii=False)
                cut = "" if len(text) <= _MAX_SHOWN else f"... ({len(text)} characters)"
                self._print(Text(f"{_INDENT}  {text[:_MAX_SHOWN]}{cut}", style="default"))
            if "unreadable" in message:
                self._print(Text(f"{_INDENT}  cannot be read: {message['unreadable']}", style="red"))
        if seen.partial:
            self._print(Text(f"{_INDENT}and {seen.partial} B of a message that goes on", style="dim"))

    def _details(self, seen: FrameSeen) -> list[tuple[str, str]]:
        lines: list[tuple[str, str]] = []
        for name, value in seen.headers or ():
            bad = name == "grpc-status" and value != "0"
            lines.append((f"{name}: {value}", "red" if bad else "default"))
        lines.extend((f"{name} = {number}", "default") for name, number in (seen.settings or {}).items())
        if seen.last_stream is not None:
            lines.append((f"last stream {seen.last_stream}", "default"))
        if seen.error is not None:
            lines.append((seen.error, "default" if seen.error == "NO_ERROR" else "red"))
        if seen.text is not None:
            lines.append((seen.text, "dim"))
        if seen.windows is not None:
            connection, stream = seen.windows
            more = f"+{seen.increment}: " if seen.increment is not None else ""
            whose = "server" if seen.sent == (seen.increment is not None) else "client"
            left = f"{connection} on the connection"
            if stream is not None:
                left += f", {stream} on stream {seen.stream}"
            lines.append((f"window {more}the {whose} may send {left}", "dim"))
        return lines

    def _print(self, line: Text) -> None:
        self._output.show(line)

    def summary(self, seconds: float, status: str) -> None:
        """Print the sum of it all.

        Args:
            seconds: from the beginning of the trace to the end of the call.
            status: the name of the status code that the call has ended with.
        """
        values = {
            "status": status,
            "seconds": round(seconds, 6),
            "frames_sent": self._frames[True],
            "frames_received": self._frames[False],
            "bytes_sent": self._bytes[True],
            "bytes_received": self._bytes[False],
            "times": {what: round(when, 6) for what, when in self._firsts.items()},
        }
        if self._output.json:
            self._output.document({"summary": values})
            return
        self._print(
            Text(
                f"{status} after {seconds * 1000:.2f} ms; sent {self._frames[True]} frames, {self._bytes[True]} B; "
                f"received {self._frames[False]} frames, {self._bytes[False]} B",
                style="bold",
            )
        )
        for what, when in self._firsts.items():
            self._print(Text(f"  {what}: {when * 1000:.2f} ms"))


__all__ = ["TraceReport"]
