"""Groups of options: gRPC's defaults, and wrong values refused at once."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest

from trio_grpc import ConnectionLifetime, Keepalive, KeepaliveEnforcement, Limits, ServerKeepalive
from trio_grpc._options import option_or_default

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
    "retry_buffer_size": (0, 2**31 - 1),
    "total_retry_buffer_size": (0, 2**31 - 1),
}


def test_the_defaults() -> None:
    limits = Limits()
    assert limits.max_receive_message_length == 4 * MB
    assert limits.max_send_message_length is None
    assert limits.initial_window_size == 65_535
    assert limits.max_frame_size == 262_144
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


# -- keepalive and lifetimes


def test_the_defaults_of_keepalive() -> None:
    """gRFC A8 and A9."""
    assert Keepalive(time=60) == Keepalive(time=60.0, timeout=20, permit_without_calls=False)
    assert ServerKeepalive() == ServerKeepalive(time=2 * 60 * 60, timeout=20)
    assert KeepaliveEnforcement() == KeepaliveEnforcement(min_time=5 * 60, permit_without_calls=False)
    assert ConnectionLifetime() == ConnectionLifetime(max_idle=math.inf, max_age=math.inf, max_age_grace=math.inf)
    with pytest.raises(TypeError, match="time"):
        Keepalive()  # type: ignore[call-arg]


SECONDS = {
    Keepalive: {"time": False, "timeout": False},
    ServerKeepalive: {"time": False, "timeout": False},
    KeepaliveEnforcement: {"min_time": True},
    ConnectionLifetime: {"max_idle": False, "max_age": False, "max_age_grace": True},
}
DURATIONS = [(kind, name, zero) for kind, names in SECONDS.items() for name, zero in names.items()]


def with_value(kind: Any, name: str, value: Any) -> Any:
    return kind(**{**({"time": 60} if kind is Keepalive else {}), name: value})


def test_every_duration_is_in_this_test() -> None:
    for kind, names in SECONDS.items():
        fields: Any = attrs.fields(kind)
        assert {field.name for field in fields} - {"permit_without_calls"} == set(names)


@pytest.mark.parametrize(("kind", "name", "zero"), DURATIONS)
def test_durations(kind: Any, name: str, zero: bool) -> None:
    for value in (10, 10.5, 1e9, math.inf, *((0,) if zero else ())):
        assert getattr(with_value(kind, name, value), name) == value
    for value in (-1, -0.1, -math.inf, math.nan, *(() if zero else (0, 0.0))):
        with pytest.raises(ValueError, match=rf"{kind.__name__}\.{name} must be .* seconds, got {value}"):
            with_value(kind, name, value)
    for wrong in ("10", None, True, b"1", [1]):
        with pytest.raises(TypeError, match=rf"{kind.__name__}\.{name} must be a number of seconds"):
            with_value(kind, name, wrong)


@pytest.mark.parametrize("kind", [Keepalive, KeepaliveEnforcement])
def test_permission_is_a_bool(kind: Any) -> None:
    with pytest.raises(TypeError, match=rf"{kind.__name__}\.permit_without_calls must be bool, not int"):
        with_value(kind, "permit_without_calls", 1)


@pytest.mark.parametrize(("kind", "least"), [(Keepalive, 10), (ServerKeepalive, 1)])
def test_times_below_the_floor_are_raised_and_told(kind: Any, least: float, caplog: pytest.LogCaptureFixture) -> None:
    assert kind(time=least).time == least
    assert not caplog.records
    assert kind(time=least / 2).time == least
    [record] = caplog.records
    assert record.getMessage() == f"{kind.__name__}.time={least / 2:g} is raised to {least} s"


@pytest.mark.parametrize("kind", SECONDS)
def test_groups_are_frozen_and_given_by_name(kind: Any) -> None:
    option = with_value(kind, next(iter(SECONDS[kind])), 20)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(option, next(iter(SECONDS[kind])), 1)
    with pytest.raises(TypeError):
        kind(20)


def test_an_option_or_its_default() -> None:
    assert option_or_default("limits", None, Limits) == Limits()
    given = Limits(max_frame_size=20_000)
    assert option_or_default("limits", given, Limits) is given
    with pytest.raises(TypeError, match="limits must be Limits or None, not int"):
        option_or_default("limits", 5, Limits)  # type: ignore[type-var]
