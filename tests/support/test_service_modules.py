"""The generated modules of the standard services: they are current, and clash with nobody's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import service_modules
from tests.support.service_modules import ROOT


def test_what_is_committed_is_what_the_protos_say(tmp_path: Path) -> None:
    """But for what depends on the release of protoc: the lines that it writes around the descriptor."""

    def without_release(path: str, text: str) -> str:
        if not path.endswith("_pb2.py"):
            return text if path.endswith("_trio_grpc.py") else ""
        (descriptor,) = [line for line in text.splitlines() if "AddSerializedFile" in line]
        return descriptor

    for path, text in service_modules.generate(tmp_path).items():
        committed = (ROOT / path).read_text(encoding="utf-8")
        assert without_release(path, committed) == without_release(path, text), f"{path}: run `make protos`"
        if path.endswith("_pb2.py"):
            for shared, private in service_modules.PRIVATE.items():
                assert shared not in committed
                assert private in committed


_OURS = """
import trio_grpc.channelz, trio_grpc.health, trio_grpc.orca, trio_grpc.reflection
"""
_THEIRS = """
from grpc_channelz.v1 import channelz_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
"""
_BOTH_WORK = """
import grpc_health.v1.health_pb2 as theirs, trio_grpc.health as ours
data = ours.HealthCheckResponse(status=ours.ServingStatus.NOT_SERVING.name).SerializeToString()
assert theirs.HealthCheckResponse.FromString(data).status == theirs.HealthCheckResponse.NOT_SERVING
data = theirs.HealthCheckResponse(status=theirs.HealthCheckResponse.SERVING).SerializeToString()
assert ours.HealthCheckResponse.FromString(data).status == ours.ServingStatus.SERVING
assert ours.HealthCheckResponse is not theirs.HealthCheckResponse
import copy, pickle
reply = ours.HealthListResponse(statuses={"a": ours.HealthCheckResponse()})
assert reply == copy.deepcopy(reply) == pickle.loads(pickle.dumps(reply))
assert ours.HealthListResponse.StatusesEntry.__qualname__ == "HealthListResponse.StatusesEntry"
import datetime, trio_grpc.orca
request = trio_grpc.orca.OrcaLoadReportRequest(report_interval=datetime.timedelta(seconds=2.5))
request = trio_grpc.orca.OrcaLoadReportRequest.FromString(request.SerializeToString())
assert (request.report_interval.seconds, request.report_interval.nanos) == (2, 500_000_000)
assert request.report_interval.ToTimedelta() == datetime.timedelta(seconds=2.5)
report = trio_grpc.orca.OrcaLoadReport(cpu_utilization=0.5, named_metrics={"a": 1})
assert report == copy.deepcopy(report) == pickle.loads(pickle.dumps(report))
import grpc_channelz.v1.channelz_pb2 as theirs, trio_grpc.channelz as ours
info = ours.SocketOptionTcpInfo(tcpi_rtt=5)
option = ours.SocketOption(name="TCP_INFO")
option.additional.Pack(info)
again, unpacked = theirs.SocketOption.FromString(option.SerializeToString()), theirs.SocketOptionTcpInfo()
assert again.additional.Unpack(unpacked) and unpacked.tcpi_rtt == 5
data = ours.SocketData(last_message_sent_timestamp={"seconds": 5, "nanos": 6})
data.local_flow_control_window.value = 7
again = theirs.SocketData.FromString(data.SerializeToString())
assert (again.last_message_sent_timestamp.ToNanoseconds(), again.local_flow_control_window.value) == (5_000_000_006, 7)


def messages(module):
    # All but the name of the file and the options of other languages.
    from google.protobuf import descriptor_pb2
    file = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    return {message.name: message for message in file.message_type}, list(file.service)


import trio_grpc.channelz._v1.channelz_pb2 as module
assert messages(theirs) == messages(module)
"""


_IN_DEFAULT_POOL = """
from google.protobuf import descriptor_pool
for name in ("channelz/v1/channelz", "health/v1/health", "reflection/v1/reflection", "reflection/v1alpha/reflection"):
    try:
        descriptor_pool.Default().FindFileByName(f"grpc/{name}.proto")
    except KeyError:
        continue
    raise AssertionError(name)
"""


@pytest.mark.parametrize("implementation", ["upb", "python"])
def test_nothing_of_them_is_in_the_default_pool(implementation: str) -> None:
    _run(_OURS + _IN_DEFAULT_POOL, implementation)


@pytest.mark.parametrize("implementation", ["upb", "python"])
@pytest.mark.parametrize("order", [_OURS + _THEIRS, _THEIRS + _OURS], ids=["ours first", "theirs first"])
def test_they_live_beside_those_of_grpcio(order: str, implementation: str) -> None:
    _run(order + _BOTH_WORK, implementation)


def _run(program: str, implementation: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
