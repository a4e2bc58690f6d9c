"""Standard interoperability cases played with programs that call any server: buf curl, grpcurl, nghttp, h2load.

``python -m tests.interop.standard.tool_client --program=grpcurl --server_port=8080 --test_case=large_unary``

The first two speak gRPC and take messages as JSON; the other two know HTTP/2 only and are given the bytes.
"""

# ruff: noqa: T201 -- a command line
from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from tests.interop.standard import empty_pb2, messages_pb2, testing_pb2
from tests.interop.standard import messages_pb2 as pb
from tests.interop.standard.cases import DOWNLOADS, REQUEST_SIZE, RESPONSE_SIZE, UPLOADS, output_request
from tests.interop.standard.empty_pb2 import Empty
from tests.interop.standard.options import boolean
from trio_grpc import StatusCode

SPECIAL = "\t\ntest with whitespace\r\nand Unicode BMP \u263a and non-BMP \U0001f608\t\n"
SERVICE = "grpc.testing.TestService"
RESPONSES: dict[str, Any] = {
    "EmptyCall": Empty,
    "UnaryCall": pb.SimpleResponse,
    "StreamingOutputCall": pb.StreamingOutputCallResponse,
    "StreamingInputCall": pb.StreamingInputCallResponse,
    "FullDuplexCall": pb.StreamingOutputCallResponse,
    "HalfDuplexCall": pb.StreamingOutputCallResponse,
}
#: More messages than a window holds, on a connection per client, with a hundred streams at once.
LOADS = {"h2load_small": (20_000, 4, 100), "h2load_large": (400, 4, 20)}


class CaseFailed(AssertionError):
    """A case did not go as it must."""


def check(condition: object, *what: object) -> None:
    if not condition:
        raise CaseFailed(" ".join(str(one) for one in what))


@attrs.frozen
class Answer:
    """What a program has to say about a call.

    Attributes:
        code: the status code.
        text: all that it printed, where headers and messages of errors are.
        responses: the messages.
    """

    code: int
    text: str
    responses: Sequence[Any] = ()


class Tool:
    """Calls a method by running a program."""

    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        self._options = options
        self._directory = directory
        self._host = "localhost" if options.use_tls else "127.0.0.1"
        self._url = f"http{'s' if options.use_tls else ''}://{self._host}:{options.server_port}"

    def run(self, *arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [self._options.path, *[str(argument) for argument in arguments]],
            input=stdin,
            capture_output=True,
            timeout=50,
            check=False,
        )

    def call(
        self,
        name: str,
        *requests: Any,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
        service: str = SERVICE,
    ) -> Answer:
        raise NotImplementedError

    def schema(self) -> Path:
        """A file with the descriptors of the services."""
        files = FileDescriptorSet()
        for module in (empty_pb2, messages_pb2, testing_pb2):
            proto = FileDescriptorProto()
            module.DESCRIPTOR.CopyToProto(proto)
            files.file.append(proto)
        path = self._directory / "schema.binpb"
        path.write_bytes(files.SerializeToString())
        return path

    def parse(self, name: str, text: str) -> list[Any]:
        """Messages from JSON documents one after the other."""
        messages, decoder = [], json.JSONDecoder()
        text = text.strip()
        while text:
            document, end = decoder.raw_decode(text)
            messages.append(json_format.ParseDict(document, RESPONSES[name]()))
            text = text[end:].strip()
        return messages


def documents(requests: Sequence[Any]) -> bytes:
    return "\n".join(json_format.MessageToJson(request, indent=None) for request in requests).encode()


class Buf(Tool):
    """``buf curl``: connect-go's client."""

    def call(
        self,
        name: str,
        *requests: Any,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
        service: str = SERVICE,
    ) -> Answer:
        arguments: list[object] = ["curl", "--protocol=grpc", "--schema", self.schema(), "--data=@-", "--verbose"]
        arguments.append(f"--cacert={self._options.ca_file}" if self._options.use_tls else "--http2-prior-knowledge")
        for key, value in (metadata or {}).items():
            arguments += ["--header", f"{key}: {value}"]
        if timeout is not None:
            arguments.append(f"--timeout={timeout * 1000:g}ms")
        done = self.run(*arguments, f"{self._url}/{service}/{name}", stdin=documents(requests))
        text = done.stderr.decode()
        if done.returncode % 8:
            raise CaseFailed(f"exit code {done.returncode}: {text[-300:]}")
        code = done.returncode // 8
        return Answer(code, text, () if code else self.parse(name, done.stdout.decode()))


class Grpcurl(Tool):
    """``grpcurl``: grpc-go's client."""

    def call(
        self,
        name: str,
        *requests: Any,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
        service: str = SERVICE,
    ) -> Answer:
        arguments: list[object] = ["-protoset", self.schema(), "-d", "@", "-format-error"]
        arguments += ["-cacert", self._options.ca_file] if self._options.use_tls else ["-plaintext"]
        for key, value in (metadata or {}).items():
            arguments += ["-H", f"{key}: {value}"]
        if timeout is not None:
            arguments += ["-max-time", timeout]
        target = f"{self._host}:{self._options.server_port}"
        done = self.run(*arguments, target, f"{service}/{name}", stdin=documents(requests))
        text = done.stderr.decode()
        if done.returncode and done.returncode < 64:
            raise CaseFailed(f"exit code {done.returncode}: {text[-300:]}")
        code = max(0, done.returncode - 64)
        responses = () if code else self.parse(name, done.stdout.decode())
        if metadata:
            # It prints headers between the responses, or no headers.
            text = self.run("-v", *arguments, target, f"{service}/{name}", stdin=documents(requests)).stdout.decode()
        return Answer(code, text, responses)


class Nghttp(Tool):
    """``nghttp``: an HTTP/2 client; headers are all it shows."""

    def call(
        self,
        name: str,
        *requests: Any,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
        service: str = SERVICE,
    ) -> Answer:
        body = self._directory / "body"
        body.write_bytes(frames(requests))
        fields = {"content-type": "application/grpc", "te": "trailers", **(metadata or {})}
        if timeout is not None:
            fields["grpc-timeout"] = f"{timeout * 1000:.0f}m"
        headers = [argument for key, value in fields.items() for argument in ("-H", f"{key}: {value}")]
        done = self.run("--verbose", "--null-out", "--data", body, *headers, f"{self._url}/{service}/{name}")
        text = done.stdout.decode()
        found = re.search(r"grpc-status: (\d+)", text)
        if found is None:
            raise CaseFailed(f"no status in {text[-300:]}")
        return Answer(int(found[1]), text)


class H2load(Tool):
    """``h2load``: many requests at once."""

    def load(self, name: str, request: Any, requests: int, clients: int, streams: int) -> None:
        body = self._directory / "body"
        body.write_bytes(frames([request]))
        done = self.run(
            f"--requests={requests}",
            f"--clients={clients}",
            f"--max-concurrent-streams={streams}",
            f"--data={body}",
            "--header=content-type: application/grpc",
            "--header=te: trailers",
            f"{self._url}/{SERVICE}/{name}",
        )
        text = done.stdout.decode()
        check(f" {requests} succeeded, 0 failed, 0 errored, 0 timeout" in text, text[-600:])
        check(f"{requests} 2xx" in text, text[-600:])


def frames(messages: Sequence[Any]) -> bytes:
    """gRPC's length-prefixed messages."""
    encoded = [message.SerializeToString() for message in messages]
    return b"".join(b"\0" + len(data).to_bytes(4, "big") + data for data in encoded)


def large_request() -> pb.SimpleRequest:
    return pb.SimpleRequest(response_size=RESPONSE_SIZE, payload=pb.Payload(body=bytes(REQUEST_SIZE)))


def succeeds(answer: Answer, *responses: Any) -> None:
    check(answer.code == 0, "status", answer.code, answer.text[-300:])
    if answer.responses:
        check(list(answer.responses) == list(responses), "responses", str(answer.responses)[:300])


def simple(size: int) -> pb.SimpleResponse:
    return pb.SimpleResponse(payload=pb.Payload(body=bytes(size)))


def output(size: int) -> pb.StreamingOutputCallResponse:
    return pb.StreamingOutputCallResponse(payload=pb.Payload(body=bytes(size)))


def large_unary(tool: Tool) -> None:
    answer = tool.call("UnaryCall", large_request())
    check(answer.code == 0, "status", answer.code, answer.text[-300:])
    check(all(len(response.payload.body) == RESPONSE_SIZE for response in answer.responses), "payload")


def client_streaming(tool: Tool) -> None:
    requests = [pb.StreamingInputCallRequest(payload=pb.Payload(body=bytes(size))) for size in UPLOADS]
    total = pb.StreamingInputCallResponse(aggregated_payload_size=sum(UPLOADS))
    succeeds(tool.call("StreamingInputCall", *requests), total)


def ping_pong(tool: Tool) -> None:
    requests = [output_request(down, upload=up) for up, down in zip(UPLOADS, DOWNLOADS, strict=True)]
    succeeds(tool.call("FullDuplexCall", *requests), *[output(size) for size in DOWNLOADS])


def server_compressed_streaming(tool: Tool) -> None:
    parameters = [
        pb.ResponseParameters(size=31415, compressed=pb.BoolValue(value=True)),
        pb.ResponseParameters(size=92653, compressed=pb.BoolValue(value=False)),
    ]
    answer = tool.call("StreamingOutputCall", pb.StreamingOutputCallRequest(response_parameters=parameters))
    succeeds(answer, output(31415), output(92653))


def custom_metadata(tool: Tool) -> None:
    metadata = {"x-grpc-test-echo-initial": "test_initial_metadata_value", "x-grpc-test-echo-trailing-bin": "q6ur"}
    for name in ("UnaryCall", "FullDuplexCall"):
        request = large_request() if name == "UnaryCall" else output_request(10)
        answer = tool.call(name, request, metadata=metadata)
        check(answer.code == 0, "status", answer.code)
        # Headers that a program shows of the request do not count, where it shows those.
        for key, value in metadata.items():
            shown = re.findall(rf"(?im)^(?:buf: < \(#1\) |.*recv \(stream_id=\d+\) |){key}: (.*)$", answer.text)
            check(value in [one.strip() for one in shown], "echo of", key, "in", answer.text[-500:])


def fails(answer: Answer, code: StatusCode, *texts: str) -> None:
    check(answer.code == code, "status", answer.code, answer.text[-300:])
    check(not texts or any(text in answer.text for text in texts), "status message in", answer.text[-300:])


def status(tool: Tool, message: str, *forms: str) -> None:
    wanted = pb.EchoStatus(code=StatusCode.UNKNOWN, message=message)
    fails(tool.call("UnaryCall", pb.SimpleRequest(response_status=wanted)), StatusCode.UNKNOWN, message, *forms)
    request = pb.StreamingOutputCallRequest(response_status=wanted)
    fails(tool.call("FullDuplexCall", request), StatusCode.UNKNOWN, message, *forms)


def special_status_message(tool: Tool) -> None:
    percent = "".join(
        chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x25 else f"%{byte:02X}" for byte in SPECIAL.encode()
    )
    status(tool, SPECIAL, json.dumps(SPECIAL)[1:-1], json.dumps(SPECIAL, ensure_ascii=False)[1:-1], percent)


CASES: dict[str, Callable[[Any], None]] = {
    "empty_unary": lambda tool: succeeds(tool.call("EmptyCall", Empty()), Empty()),
    "large_unary": large_unary,
    "server_compressed_unary": lambda tool: check(
        tool.call("UnaryCall", pb.SimpleRequest(response_size=9, response_compressed=pb.BoolValue(value=True))).code
        == 0
    ),
    "client_streaming": client_streaming,
    "server_streaming": lambda tool: succeeds(
        tool.call("StreamingOutputCall", output_request(*DOWNLOADS)), *[output(size) for size in DOWNLOADS]
    ),
    "server_compressed_streaming": server_compressed_streaming,
    "ping_pong": ping_pong,
    "empty_stream": lambda tool: succeeds(tool.call("FullDuplexCall")),
    "custom_metadata": custom_metadata,
    "status_code_and_message": lambda tool: status(tool, "test status message"),
    "special_status_message": special_status_message,
    "unimplemented_method": lambda tool: fails(tool.call("UnimplementedCall", Empty()), StatusCode.UNIMPLEMENTED),
    "unimplemented_service": lambda tool: fails(
        tool.call("UnimplementedCall", Empty(), service="grpc.testing.UnimplementedService"), StatusCode.UNIMPLEMENTED
    ),
    "timeout_on_sleeping_server": lambda tool: fails(
        tool.call(
            "StreamingOutputCall",
            pb.StreamingOutputCallRequest(response_parameters=[pb.ResponseParameters(size=1, interval_us=10**7)]),
            # The tool's start and what it asks reflection for count, too.
            timeout=2,
        ),
        StatusCode.DEADLINE_EXCEEDED,
    ),
    "h2load_small": lambda tool: tool.load("EmptyCall", Empty(), *LOADS["h2load_small"]),
    "h2load_large": lambda tool: tool.load("UnaryCall", large_request(), *LOADS["h2load_large"]),
}
TOOLS: dict[str, type[Tool]] = {"buf": Buf, "grpcurl": Grpcurl, "nghttp": Nghttp, "h2load": H2load}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--program", choices=tuple(TOOLS), required=True)
    parser.add_argument("--path", help="where the program is; default: on the PATH")
    parser.add_argument("--server_host", default="localhost")
    parser.add_argument("--server_host_override")
    parser.add_argument("--server_port", type=int, required=True)
    parser.add_argument("--test_case", choices=tuple(CASES), required=True)
    parser.add_argument("--use_tls", type=boolean, nargs="?", const=True, default=False)
    parser.add_argument("--ca_file")
    arguments = parser.parse_args()
    arguments.path = arguments.path or arguments.program
    with tempfile.TemporaryDirectory() as folder:
        try:
            CASES[arguments.test_case](TOOLS[arguments.program](arguments, Path(folder)))
        except Exception as error:
            print(f"{arguments.test_case}: {type(error).__name__}: {error}", file=sys.stderr)
            sys.exit(1)
