"""What a backend says of its load: the ORCA message of gRFC A51, as policies read it."""

from __future__ import annotations

import struct

import attrs

from trio_grpc._balancing.wire_fields import FIXED64, wire_fields

#: Where a backend puts its report of one call, in the trailing metadata (gRFC A51).
LOAD_METADATA = "endpoint-load-metrics-bin"

#: Fields of ``xds.data.orca.v3.OrcaLoadReport``.
_FIELDS = {1: "cpu_utilization", 2: "memory_utilization", 6: "qps", 7: "eps", 9: "application_utilization"}
_DOUBLE = struct.Struct("<d")


@attrs.frozen(kw_only=True)
class LoadReport:
    """What a backend has reported of its load (ORCA); 0 for what it does not say.

    Attributes:
        cpu_utilization: of its processors, 1.0 for all that they can do; may be more.
        memory_utilization: of its memory, from 0 to 1.
        application_utilization: as the application itself measures it, in the place of the processors'; may be over 1.
        qps: queries per second that it serves.
        eps: how many of these fail, per second.
    """

    cpu_utilization: float = 0.0
    memory_utilization: float = 0.0
    application_utilization: float = 0.0
    qps: float = 0.0
    eps: float = 0.0


def read_load_report(data: bytes | bytearray) -> LoadReport:
    """Return what a serialized ``OrcaLoadReport`` says, but for its tables of application-specific numbers.

    Raises:
        ValueError: that is no such message.
    """
    numbers: dict[str, float] = {}
    for number, wire_type, value in wire_fields(data):
        if wire_type == FIXED64 and number in _FIELDS:
            assert isinstance(value, bytes)
            (numbers[_FIELDS[number]],) = _DOUBLE.unpack(value)
    return LoadReport(**numbers)


__all__ = ["LoadReport"]
