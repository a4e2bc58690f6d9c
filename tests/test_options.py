"""Limits: gRPC's defaults, and wrong values refused at once."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest

from trio_grpc import Limits

MB = 2**20

RANGES = {
    "max_receive_message_length": (0, 2**32 - 1),
    "max_send_message_length": (0, 2**32 - 1),
    "max_concurrent_streams": (1, 2**31 - 1),
    "max_header_list_size": (1, 2**31 - 1),
    "initial_window_size": (1, 2**31 - 1),
    "initial_connection_window_size": (65_535, 2**31 - 1),
    "max_frame_size": (16_384, 2**24 - 1),
    "max_premature_resets": (0, 2**31 - 1),
    "max_overhead_frames": (0, 2**31 - 1),
}


def test_the_defaults() -> None:
    limits = Limits()
    assert limits.max_receive_message_length == 4 * MB
    assert limits.max_send_message_length is None
    assert limits.initial_window_size == 65_535
    assert limits.max_frame_size == 65_536
    assert limits.adaptive_window


def test_none_means_what_the_wire_can_carry() -> None:
    limits = Limits(max_receive_message_length=None, max_send_message_length=None)
    assert (limits.receive_limit, limits.send_limit) == (2**32 - 1, 2**32 - 1)
    limits = Limits(max_receive_message_length=5, max_send_message_length=0)
    assert (limits.receive_limit, limits.send_limit) == (5, 0)


def test_every_number_has_its_range_in_this_test() -> None:
    assert {field.name for field in attrs.fields(Limits)} == {*RANGES, "adaptive_window"}


@pytest.mark.parametrize("name", RANGES)
def test_the_ends_of_the_range(name: str) -> None:
    low, high = RANGES[name]
    for value in (low, high):
        assert getattr(Limits(**{name: value}), name) == value  # type: ignore[arg-type]
    for value in (low - 1, high + 1, -1):
        with pytest.raises(ValueError, match=f"Limits.{name} .* got {value}"):
            Limits(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("value", ["65536", 65536.0, math.inf, True, b"1", [1]], ids=repr)
def test_wrong_types(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"Limits.{name} must be int"):
        Limits(**{name: value})


#: Limits that flow control, or the number of streams, does not depend on.
DISPENSABLE = ["max_receive_message_length", "max_send_message_length", "max_premature_resets", "max_overhead_frames"]


@pytest.mark.parametrize("name", DISPENSABLE)
def test_some_may_be_unlimited(name: str) -> None:
    assert getattr(Limits(**{name: None}), name) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name in RANGES if name not in DISPENSABLE])
def test_others_may_not(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        Limits(**{name: None})  # type: ignore[arg-type]


def test_a_switch_is_a_bool() -> None:
    with pytest.raises(TypeError, match="adaptive_window"):
        Limits(adaptive_window=1)  # type: ignore[arg-type]


def test_limits_are_frozen_and_given_by_name() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Limits().max_frame_size = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        Limits(5)  # type: ignore[misc]
    assert Limits() == Limits()
