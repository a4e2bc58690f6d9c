"""Status codes and RpcError."""

from __future__ import annotations

import copy
import pickle

import echo_pb2
import pytest

from trio_grpc._metadata import Metadata
from trio_grpc._status import RpcError, StatusCode


def test_status_codes_have_the_numbers_of_grpc() -> None:
    assert [code.name for code in StatusCode] == [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ]
    assert [int(code) for code in StatusCode] == list(range(17))


def test_a_status_code_prints_alike_on_every_python() -> None:
    assert str(StatusCode.NOT_FOUND) == "StatusCode.NOT_FOUND"
    assert f"{StatusCode.NOT_FOUND}" == "StatusCode.NOT_FOUND"
    assert f"{StatusCode.NOT_FOUND:d}" == "5"
    assert repr(StatusCode.NOT_FOUND) == "<StatusCode.NOT_FOUND: 5>"


def test_an_error_says_its_code_and_text() -> None:
    error = RpcError(StatusCode.UNAVAILABLE, "connection lost")
    assert str(error) == "UNAVAILABLE: connection lost"
    assert repr(error) == "RpcError(StatusCode.UNAVAILABLE, 'connection lost')"
    assert str(RpcError(StatusCode.ABORTED)) == "ABORTED"


def test_the_repr_of_an_error_with_details_is_one_line() -> None:
    error = RpcError(StatusCode.ABORTED, "x", details=[echo_pb2.EchoReply(text="a\nb")])
    assert repr(error) == "RpcError(StatusCode.ABORTED, 'x', details=[EchoReply])"


def test_what_is_not_given_is_empty() -> None:
    error = RpcError(StatusCode.ABORTED)
    assert error.code is StatusCode.ABORTED
    assert error.message == ""
    assert error.details == ()
    assert error.initial_metadata == Metadata()
    assert error.trailing_metadata == Metadata()
    assert error.initial_metadata is not error.trailing_metadata


def test_metadata_may_be_given_in_any_form() -> None:
    kept = Metadata({"a": "1"})
    error = RpcError(StatusCode.ABORTED, initial_metadata=kept, trailing_metadata={"B": "2"})
    assert error.initial_metadata is kept
    assert error.trailing_metadata == [("b", "2")]


def test_a_plain_number_becomes_its_code() -> None:
    assert RpcError(14).code is StatusCode.UNAVAILABLE  # type: ignore[arg-type]


def test_ok_is_no_error() -> None:
    with pytest.raises(ValueError, match=r"StatusCode\.OK"):
        RpcError(StatusCode.OK)


def test_an_unknown_code_is_refused() -> None:
    with pytest.raises(ValueError, match="99"):
        RpcError(99)  # type: ignore[arg-type]


def test_a_message_that_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match="message must be str, not bytes"):
        RpcError(StatusCode.ABORTED, b"no")  # type: ignore[arg-type]


def test_text_in_place_of_details_is_refused() -> None:
    with pytest.raises(TypeError, match="protobuf messages"):
        RpcError(StatusCode.ABORTED, details="the text")


def full_error() -> RpcError:
    return RpcError(
        StatusCode.FAILED_PRECONDITION,
        "text",
        details=[echo_pb2.EchoReply(text="d")],
        initial_metadata={"a": "1"},
        trailing_metadata={"b-bin": b"\x00"},
    )


@pytest.mark.parametrize(
    "duplicate",
    [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy],
    ids=["pickle", "copy", "deepcopy"],
)
def test_an_error_survives_being_copied(duplicate) -> None:  # type: ignore[no-untyped-def]
    error = full_error()
    again = duplicate(error)
    assert type(again) is RpcError
    assert str(again) == str(error)
    for name in ("code", "message", "details", "initial_metadata", "trailing_metadata", "args"):
        assert getattr(again, name) == getattr(error, name)


def test_notes_survive_pickling() -> None:
    error = full_error()
    if not hasattr(error, "add_note"):
        pytest.skip("exceptions have notes since Python 3.11")
    error.add_note("while doing x")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while doing x"]


class QuotaError(RpcError):
    """What an application may derive."""


def test_a_subclass_keeps_its_name_and_pickles() -> None:
    error = QuotaError(StatusCode.RESOURCE_EXHAUSTED, "full")
    assert repr(error) == "QuotaError(StatusCode.RESOURCE_EXHAUSTED, 'full')"
    assert type(pickle.loads(pickle.dumps(error))) is QuotaError
