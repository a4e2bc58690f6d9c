"""Fixtures of the behaviour tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def quiet_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No fault of a peer may look like a fault of ours: nothing is logged as an error, and no traceback."""
    caplog.set_level(logging.INFO, "trio_grpc")
    yield
    loud = [
        record
        for record in caplog.get_records("call")
        if record.levelno >= logging.ERROR or record.exc_info is not None
    ]
    assert not loud, [record.getMessage() for record in loud]
