"""The description of a method."""

from __future__ import annotations

from typing import Any

import attrs
import echo_pb2
import pytest

from trio_grpc._method import Cardinality, Method


def make(**changes: Any) -> Method[Any, Any]:
    arguments: dict[str, Any] = {
        "service": "pkg.Greeter",
        "name": "SayHello",
        "cardinality": Cardinality.UNARY_STREAM,
        "request_type": echo_pb2.EchoRequest,
        "response_type": echo_pb2.EchoReply,
    }
    return Method(**{**arguments, **changes})


def test_names() -> None:
    method = make()
    assert method.path == "/pkg.Greeter/SayHello"
    assert method.full_name == "pkg.Greeter.SayHello"
    assert not method.idempotent
    assert repr(method) == "<Method /pkg.Greeter/SayHello UNARY_STREAM EchoRequest -> EchoReply>"


@pytest.mark.parametrize(
    ("cardinality", "client", "server"),
    [
        (Cardinality.UNARY_UNARY, False, False),
        (Cardinality.UNARY_STREAM, False, True),
        (Cardinality.STREAM_UNARY, True, False),
        (Cardinality.STREAM_STREAM, True, True),
    ],
)
def test_cardinalities(cardinality: Cardinality, client: bool, server: bool) -> None:
    assert cardinality.client_streaming is client
    assert cardinality.server_streaming is server
    assert cardinality.value == (client, server)


def test_there_are_four_cardinalities() -> None:
    assert len(Cardinality) == 4


def test_a_method_is_equal_only_to_itself_and_a_key() -> None:
    method = make()
    assert method == method  # noqa: PLR0124
    assert method != make()
    assert {method: 1}[method] == 1


def test_a_method_cannot_change() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        make().name = "Other"  # type: ignore[misc]


def test_a_method_can_be_made_with_its_types_written_out() -> None:
    method = Method[echo_pb2.EchoRequest, echo_pb2.EchoReply](
        "pkg.Greeter", "SayHello", Cardinality.UNARY_UNARY, echo_pb2.EchoRequest, echo_pb2.EchoReply, True
    )
    assert method.idempotent


@pytest.mark.parametrize("field", ["service", "name"])
@pytest.mark.parametrize("value", ["", "/", "a/b", "a b", "ä", "a\n", "\x00"])
def test_names_that_make_no_path_are_refused(field: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"method {field}"):
        make(**{field: value})


@pytest.mark.parametrize("field", ["service", "name"])
def test_names_that_are_no_text_are_refused(field: str) -> None:
    with pytest.raises(TypeError, match=f"method {field} must be str, not bytes"):
        make(**{field: b"x"})


def test_a_cardinality_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match="cardinality"):
        make(cardinality="unary")
