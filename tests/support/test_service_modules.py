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
import trio_grpc.health, trio_grpc.orca, trio_grpc.reflection
"""
_THEIRS = """
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
"""


@pytest.mark.parametrize("implementation", ["upb", "python"])
@pytest.mark.parametrize("order", [_OURS + _THEIRS, _THEIRS + _OURS], ids=["ours first", "theirs first"])
def test_they_live_beside_those_of_grpcio(order: str, implementation: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", order + _BOTH_WORK],
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
