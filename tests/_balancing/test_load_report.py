"""What is read of the load reports of backends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_grpc._balancing.load_report import LoadReport, read_load_report
from trio_grpc.orca import OrcaLoadReport

numbers = st.floats(allow_nan=False)
tables = st.dictionaries(st.text(max_size=3), numbers, max_size=2)


@given(
    st.builds(
        OrcaLoadReport,
        cpu_utilization=numbers,
        mem_utilization=numbers,
        rps=st.integers(0, 2**64 - 1),
        request_cost=tables,
        utilization=tables,
        rps_fractional=numbers,
        eps=numbers,
        named_metrics=tables,
        application_utilization=numbers,
    )
)
def test_it_reads_what_protobuf_writes(message: OrcaLoadReport) -> None:
    assert read_load_report(message.SerializeToString()) == LoadReport(
        cpu_utilization=message.cpu_utilization,
        memory_utilization=message.mem_utilization,
        application_utilization=message.application_utilization,
        qps=message.rps_fractional,
        eps=message.eps,
    )


def test_the_last_of_several_counts() -> None:
    data = OrcaLoadReport(eps=1).SerializeToString() + OrcaLoadReport(eps=2).SerializeToString()
    assert read_load_report(data) == LoadReport(eps=2)


def test_nothing_is_reported() -> None:
    assert read_load_report(b"") == LoadReport()


@pytest.mark.parametrize("data", [b"\x09", b"\x09\x00\x00", b"\x0b", b"\xff"])
def test_what_is_no_report(data: bytes) -> None:
    with pytest.raises(ValueError):
        read_load_report(data)


def test_numbers_of_another_kind_are_not_ours() -> None:
    # Field 1 as a varint, and as bytes.
    assert read_load_report(b"\x08\x05\x0a\x01\x00") == LoadReport()
