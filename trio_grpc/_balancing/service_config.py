"""The service config: what the owner of a service asks of its clients (gRFC A2, A6, A17, A21, A105)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import ROUND_DOWN, Context, Decimal
from math import inf
from sys import float_info
from typing import Any, TypeVar, cast

import attrs

from trio_grpc._balancing.json_fields import (
    ServiceConfigError,
    boolean,
    duration,
    enum_values,
    is_text,
    mapping,
    mappings,
    number,
    read_object,
    require,
    text,
    uint32,
    within,
)
from trio_grpc._balancing.policies import parse_load_balancing, policy_by_name
from trio_grpc._balancing.policy import PolicyFactory, check_factory
from trio_grpc._status import StatusCode

#: More attempts than this are taken for this (gRFC A6).
MAX_ATTEMPTS = 5
#: The largest ``maxTokens`` (gRFC A6).
_MAX_TOKENS = 1000
#: More connections than this are taken for this (gRFC A105, the default of the client's own limit).
_MAX_CONNECTIONS = 10
#: Message sizes are unsigned 32-bit numbers (service_config.proto).
_MAX_SIZE = 2**32 - 1
#: Not the user's own decimal context; with digits enough for any float.
_THREE_DECIMALS = Context(prec=400, rounding=ROUND_DOWN)


class FieldError(ValueError):
    """A field of a record has a value that it may not have.

    Attributes:
        name: the field.
        problem: what its value must be, and what it is.
    """

    def __init__(self, owner: object, name: str, problem: str) -> None:
        super().__init__(f"{type(owner).__name__}.{name} {problem}")
        self.name = name
        self.problem = problem


Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def _check_type(
    owner: object, attribute: attrs.Attribute[Any], value: object, kind: type | tuple[type, ...], words: str
) -> None:
    """Raise TypeError for a value of another kind; a bool is no number."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{type(owner).__name__}.{attribute.name} must be {words}, not {type(value).__name__}")


def _instance(kind: type, words: str) -> Validator:
    def check(owner: object, attribute: attrs.Attribute[Any], value: object) -> None:
        _check_type(owner, attribute, value, kind, words)

    return check


def _integer(least: int, most: float = inf) -> Validator:
    allowed = f"{least} or more" if most == inf else f"between {least} and {most}"

    def check(owner: object, attribute: attrs.Attribute[Any], value: int) -> None:
        _check_type(owner, attribute, value, int, "int")
        if not least <= value <= most:
            raise FieldError(owner, attribute.name, f"must be {allowed}, got {value}")

    return check


def _number(words: str = "a number", *, or_zero: bool = False, most: float = inf) -> Validator:
    """A validator of finite numbers above 0, or from 0 on."""
    allowed = "0 or more" if or_zero else "more than 0"
    if most < inf:
        allowed += f" and at most {most:g}"

    def check(owner: object, attribute: attrs.Attribute[Any], value: float) -> None:
        _check_type(owner, attribute, value, (int, float), words)
        # Written so that it is not true of NaN.
        if not ((value > 0 or (or_zero and value == 0)) and value <= min(most, float_info.max)):
            shown = f"{value:g}" if abs(value) <= float_info.max else value
            raise FieldError(owner, attribute.name, f"must be {allowed}, got {shown}")

    return check


def _seconds(*, or_zero: bool = False) -> Validator:
    return _number("a number of seconds", or_zero=or_zero)


def _optional(validator: Validator) -> Any:
    return attrs.validators.optional(validator)


def _check_codes(owner: object, attribute: attrs.Attribute[Any], value: frozenset[StatusCode]) -> None:
    _check_type(owner, attribute, value, frozenset, "a collection of status codes")
    for code in value:
        _check_type(owner, attribute, code, StatusCode, "a collection of StatusCode")


def _is_collection(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes))


# Converters: what type checkers let a user give. What is none of that is left to the validators, which know its name.


def _to_codes(value: Iterable[StatusCode]) -> frozenset[StatusCode]:
    return frozenset(value) if _is_collection(value) else cast("frozenset[StatusCode]", value)


def _to_names(value: Iterable[str]) -> tuple[str, ...]:
    return tuple(value) if _is_collection(value) else cast("tuple[str, ...]", value)


def _lower(owner: object, name: str, most: int) -> None:
    if getattr(owner, name) > most:
        object.__setattr__(owner, name, most)


def _three_decimals(value: float) -> float:
    """What gRFC A6 keeps of a ``tokenRatio``."""
    if isinstance(cast("object", value), float) and 0 < value < inf:
        # By way of the shortest text of the number: 0.57 * 1000 is less than 570.
        return float(Decimal(repr(value)).quantize(Decimal("0.001"), context=_THREE_DECIMALS))
    return value


@attrs.frozen(kw_only=True)
class RetryPolicy:
    """Which failed calls are tried again, how often and when (gRFC A6).

    Attributes:
        max_attempts: attempts of a call, the first one included; at least 2. More than 5 are taken for 5.
        initial_backoff: seconds before the second attempt, at most: the wait is random, 20 % more or less.
        max_backoff: seconds that no wait exceeds, before that randomness.
        backoff_multiplier: how much longer each wait is than the one before.
        retryable_status_codes: failures after which a call is tried again; at least one.

    Raises:
        TypeError: a value is of the wrong type.
        ValueError: a value is out of its range; the message names it.
    """

    max_attempts: int = attrs.field(validator=_integer(2))
    initial_backoff: float = attrs.field(validator=_seconds())
    max_backoff: float = attrs.field(validator=_seconds())
    backoff_multiplier: float = attrs.field(validator=_number())
    retryable_status_codes: frozenset[StatusCode] = attrs.field(converter=_to_codes, validator=_check_codes)

    def __attrs_post_init__(self) -> None:
        _lower(self, "max_attempts", MAX_ATTEMPTS)
        if not self.retryable_status_codes:
            raise FieldError(self, "retryable_status_codes", "must name at least one status code")


@attrs.frozen(kw_only=True)
class HedgingPolicy:
    """Of which calls several attempts are made at once, so that the quickest one counts (gRFC A6).

    Attributes:
        max_attempts: attempts of a call, the first one included; at least 2. More than 5 are taken for 5.
        hedging_delay: seconds between two attempts; 0 for all at once.
        non_fatal_status_codes: failures of an attempt after which the others go on; any other ends the call.

    Raises:
        TypeError: a value is of the wrong type.
        ValueError: a value is out of its range; the message names it.
    """

    max_attempts: int = attrs.field(validator=_integer(2))
    hedging_delay: float = attrs.field(default=0.0, validator=_seconds(or_zero=True))
    non_fatal_status_codes: frozenset[StatusCode] = attrs.field(
        default=frozenset(), converter=_to_codes, validator=_check_codes
    )

    def __attrs_post_init__(self) -> None:
        _lower(self, "max_attempts", MAX_ATTEMPTS)


@attrs.frozen(kw_only=True)
class RetryThrottling:
    """When a channel stops trying failed calls again, lest it overload servers that fail (gRFC A6).

    A channel has tokens. A failed attempt takes one, a call that succeeds puts a part of one back; while half of them
    or fewer are left, no call is tried again and none is hedged.

    Attributes:
        max_tokens: tokens that the channel starts with; up to 1000.
        token_ratio: the part that a call that succeeds puts back; three decimals count.

    Raises:
        TypeError: a value is of the wrong type.
        ValueError: a value is out of its range; the message names it.
    """

    max_tokens: float = attrs.field(validator=_number(most=_MAX_TOKENS))
    token_ratio: float = attrs.field(converter=_three_decimals, validator=_number())


def _check_service_name(owner: HealthCheckConfig, attribute: attrs.Attribute[Any], value: str) -> None:
    _check_type(owner, attribute, value, str, "str")
    if not is_text(value):
        raise FieldError(owner, attribute.name, f"must be without halves of surrogate pairs, got {value!r}")


@attrs.frozen(kw_only=True)
class HealthCheckConfig:
    """Has the channel ask each backend whether it is well, and send it no calls while it is not (gRFC A17).

    Attributes:
        service_name: what the health service is asked about; empty for the server as a whole.

    Raises:
        TypeError: the name is no str.
        ValueError: it has halves of surrogate pairs, which cannot be sent.
    """

    service_name: str = attrs.field(validator=_check_service_name)


@attrs.frozen(kw_only=True)
class ConnectionScaling:
    """Has the channel open further connections to a backend whose limit of concurrent calls is reached (gRFC A105).

    Attributes:
        max_connections_per_subchannel: connections to each address; at least 1. More than 10 are taken for 10.

    Raises:
        TypeError: the value is no int.
        ValueError: the value is out of its range; the message names it.
    """

    max_connections_per_subchannel: int = attrs.field(validator=_integer(1))

    def __attrs_post_init__(self) -> None:
        _lower(self, "max_connections_per_subchannel", _MAX_CONNECTIONS)


def _is_name(name: str) -> bool:
    service, slash, method = name.partition("/")
    return "/" not in method and (not slash or bool(service and method))


def _check_names(owner: MethodConfig, attribute: attrs.Attribute[Any], names: tuple[str, ...]) -> None:
    _check_type(owner, attribute, names, tuple, "a sequence of names")
    for name in names:
        _check_type(owner, attribute, name, str, "a sequence of str")
        if not _is_name(name):
            raise FieldError(owner, attribute.name, f"must be like 'package.Service/Method' or '', got {name!r}")
    if not names:
        raise FieldError(owner, attribute.name, "must not be empty: '' is the name of all methods")


@attrs.frozen(kw_only=True)
class MethodConfig:
    """What holds for the calls of some methods. None leaves a thing to the call and the channel.

    Attributes:
        names: of the methods: ``"package.Service/Method"``, ``"package.Service"`` for all methods of a service, or
            ``""`` for all methods. For each method, only the config with the most exact name counts.
        wait_for_ready: whether calls that do not say so themselves wait for a connection through failures.
        timeout: seconds that a call may take; the call's own holds where it is shorter.
        max_request_message_bytes: bytes of the largest message sent; the channel's own limit holds where it is lower.
        max_response_message_bytes: bytes of the largest message received; the same.
        retry_policy: which failed calls are tried again; not together with a hedging policy.
        hedging_policy: of which calls several attempts are made.

    Raises:
        TypeError: a value is of the wrong type.
        ValueError: a value is out of its range, or there are both policies; the message names it.
    """

    names: tuple[str, ...] = attrs.field(default=("",), converter=_to_names, validator=_check_names)
    wait_for_ready: bool | None = attrs.field(default=None, validator=_optional(_instance(bool, "bool or None")))
    timeout: float | None = attrs.field(default=None, validator=_optional(_seconds(or_zero=True)))
    max_request_message_bytes: int | None = attrs.field(default=None, validator=_optional(_integer(0, _MAX_SIZE)))
    max_response_message_bytes: int | None = attrs.field(default=None, validator=_optional(_integer(0, _MAX_SIZE)))
    retry_policy: RetryPolicy | None = attrs.field(
        default=None, validator=_optional(_instance(RetryPolicy, "RetryPolicy or None"))
    )
    hedging_policy: HedgingPolicy | None = attrs.field(
        default=None, validator=_optional(_instance(HedgingPolicy, "HedgingPolicy or None"))
    )

    def __attrs_post_init__(self) -> None:
        if self.retry_policy is not None and self.hedging_policy is not None:
            raise FieldError(self, "hedging_policy", "cannot stand together with a retry policy (gRFC A6)")


#: For methods of which nothing is said.
_NO_METHOD_CONFIG = MethodConfig()


def _check_load_balancing(owner: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None:
        check_factory(f"{type(owner).__name__}.{attribute.name}", value, "a load balancing policy or None")


def _to_methods(value: Iterable[MethodConfig]) -> tuple[MethodConfig, ...]:
    return tuple(value) if _is_collection(value) else cast("tuple[MethodConfig, ...]", value)


def _check_methods(owner: object, attribute: attrs.Attribute[Any], value: tuple[MethodConfig, ...]) -> None:
    _check_type(owner, attribute, value, tuple, "a sequence of MethodConfig")
    for method in value:
        _check_type(owner, attribute, method, MethodConfig, "a sequence of MethodConfig")
    for name, count in Counter(name for method in value for name in method.names).items():
        if count > 1:
            raise FieldError(owner, attribute.name, f"must not name {name!r} more than once")


@attrs.frozen(kw_only=True)
class ServiceConfig:
    """What the owner of a service asks of its clients: for ``service_config=`` of `open_channel`, and for resolvers.

    Attributes:
        load_balancing: the policy, such as ``RoundRobin()``; ``load_balancing=`` of `open_channel` goes before it.
        methods: what holds for calls, by names of methods; no name may be there twice.
        retry_throttling: when retries stop because too many calls fail.
        health_check: asks backends whether they are well.
        connection_scaling: opens further connections to a backend.

    Raises:
        TypeError: a value is of the wrong type.
        ValueError: a name of a method is there twice.
    """

    load_balancing: PolicyFactory | None = attrs.field(default=None, validator=_check_load_balancing)
    methods: tuple[MethodConfig, ...] = attrs.field(default=(), converter=_to_methods, validator=_check_methods)
    retry_throttling: RetryThrottling | None = attrs.field(
        default=None, validator=_optional(_instance(RetryThrottling, "RetryThrottling or None"))
    )
    health_check: HealthCheckConfig | None = attrs.field(
        default=None, validator=_optional(_instance(HealthCheckConfig, "HealthCheckConfig or None"))
    )
    connection_scaling: ConnectionScaling | None = attrs.field(
        default=None, validator=_optional(_instance(ConnectionScaling, "ConnectionScaling or None"))
    )
    #: Each path that was asked for, with its config.
    _found: dict[str, MethodConfig] = attrs.field(init=False, factory=dict, eq=False, repr=False)

    @classmethod
    def from_json(cls, config: str | bytes | Mapping[str, Any]) -> ServiceConfig:
        """Return the config that JSON describes, as gRPC's service_config.proto has it.

        Fields that are unknown are ignored. One that is known and wrong makes the whole config wrong (gRFC A21).

        Args:
            config: JSON text, or what was parsed from it.

        Raises:
            ServiceConfigError: the text is no JSON, or a field is wrong; the message names it.
            TypeError: it is neither text nor a mapping.
        """
        fields = read_object(config)
        return cls(
            load_balancing=_read_load_balancing(fields),
            methods=_read_methods(mappings(fields, "methodConfig")),
            retry_throttling=_read(fields, "retryThrottling", _read_retry_throttling),
            health_check=_read(fields, "healthCheckConfig", _read_health_check),
            connection_scaling=_read(fields, "connectionScaling", _read_connection_scaling),
        )

    def method_config(self, path: str) -> MethodConfig:
        """Return what holds for a method: the config with its most exact name, or one that says nothing.

        Args:
            path: ``"/package.Service/Method"``.
        """
        found = self._found.get(path)
        if found is None:
            found = self._found[path] = self._find(path.removeprefix("/"))
        return found

    def _find(self, method: str) -> MethodConfig:
        by_name = {name: config for config in self.methods for name in config.names}
        for name in (method, method.partition("/")[0], ""):
            if name in by_name:
                return by_name[name]
        return _NO_METHOD_CONFIG


#: What ``service_config=`` takes: a config, or its JSON as text or parsed.
ServiceConfigLike = ServiceConfig | str | bytes | Mapping[str, Any]

#: In the place of a channel's service config until its resolver has said, for the first time, what holds for calls.
UNRESOLVED = ServiceConfig()


def to_service_config(config: ServiceConfigLike) -> ServiceConfig:
    """Return the service config that a user means.

    Raises:
        ServiceConfigError: it is JSON, and wrong.
        TypeError: it is something else.
    """
    return config if isinstance(config, ServiceConfig) else ServiceConfig.from_json(config)


# -- from JSON

RecordT = TypeVar("RecordT")


def _read(config: Mapping[str, object], name: str, reader: Callable[[Mapping[str, object]], RecordT]) -> RecordT | None:
    """Read a field that is an object, where there is one."""
    found = mapping(config, name)
    if found is None:
        return None
    with within(name):
        return reader(found)


def _make(kind: Callable[..., RecordT], **values: object) -> RecordT:
    """Make a record; its errors name the field as it is called in JSON."""
    try:
        return kind(**values)
    except FieldError as error:
        first, *others = error.name.split("_")
        raise ServiceConfigError(first + "".join(map(str.capitalize, others)), error.problem) from error


def _read_load_balancing(config: Mapping[str, object]) -> PolicyFactory | None:
    # The older field, a mere name, counts where there is no newer one (service_config.proto).
    name = text(config, "loadBalancingPolicy", None)
    if config.get("loadBalancingConfig") is not None:
        return parse_load_balancing(config["loadBalancingConfig"], "loadBalancingConfig")
    if name is None:
        return None
    with within("loadBalancingPolicy"):
        # In that file names are in capitals, in configs mostly not.
        return policy_by_name(name.lower())


def _read_methods(configs: Sequence[Mapping[str, object]]) -> list[MethodConfig]:
    methods = []
    seen: set[str] = set()
    for index, config in enumerate(configs):
        with within(f"methodConfig[{index}]"):
            names = _read_names(mappings(config, "name"), seen)
            method = _read_method(config, names or [""])
        if names:
            # Without a name it holds for nothing.
            methods.append(method)
    return methods


def _read_names(configs: Sequence[Mapping[str, object]], seen: set[str]) -> list[str]:
    names = []
    for index, config in enumerate(configs):
        with within(f"name[{index}]"):
            service, method = text(config, "service", ""), text(config, "method", "")
            if method and not service:
                raise ServiceConfigError("service", "is missing, though there is a method")
            name = f"{service}/{method}" if method else service
            if "/" in service or not _is_name(name):
                raise ServiceConfigError("", f"must be the names of a service and a method, got {name!r}")
            if name in seen:
                raise ServiceConfigError("", f"names {name!r}, which is there already")
        seen.add(name)
        names.append(name)
    return names


def _read_method(config: Mapping[str, object], names: Sequence[str]) -> MethodConfig:
    return _make(
        MethodConfig,
        names=names,
        wait_for_ready=boolean(config, "waitForReady", None),
        timeout=duration(config, "timeout", None),
        max_request_message_bytes=uint32(config, "maxRequestMessageBytes", None),
        max_response_message_bytes=uint32(config, "maxResponseMessageBytes", None),
        retry_policy=_read(config, "retryPolicy", _read_retry_policy),
        hedging_policy=_read(config, "hedgingPolicy", _read_hedging_policy),
    )


def _read_retry_policy(config: Mapping[str, object]) -> RetryPolicy:
    require(config, "maxAttempts", "initialBackoff", "maxBackoff", "backoffMultiplier", "retryableStatusCodes")
    return _make(
        RetryPolicy,
        max_attempts=uint32(config, "maxAttempts", None),
        initial_backoff=duration(config, "initialBackoff", None),
        max_backoff=duration(config, "maxBackoff", None),
        backoff_multiplier=number(config, "backoffMultiplier", None),
        retryable_status_codes=enum_values(config, "retryableStatusCodes", StatusCode),
    )


def _read_hedging_policy(config: Mapping[str, object]) -> HedgingPolicy:
    require(config, "maxAttempts")
    return _make(
        HedgingPolicy,
        max_attempts=uint32(config, "maxAttempts", None),
        hedging_delay=duration(config, "hedgingDelay", 0.0),
        non_fatal_status_codes=enum_values(config, "nonFatalStatusCodes", StatusCode),
    )


def _read_retry_throttling(config: Mapping[str, object]) -> RetryThrottling:
    require(config, "maxTokens", "tokenRatio")
    return _make(
        RetryThrottling,
        max_tokens=number(config, "maxTokens", None),
        token_ratio=number(config, "tokenRatio", None),
    )


def _read_health_check(config: Mapping[str, object]) -> HealthCheckConfig | None:
    # Without a name there are no health checks; an empty name is one (gRFC A17).
    service_name = text(config, "serviceName", None)
    return None if service_name is None else HealthCheckConfig(service_name=service_name)


def _read_connection_scaling(config: Mapping[str, object]) -> ConnectionScaling | None:
    # 0 is what an unset number is in proto3.
    count = uint32(config, "maxConnectionsPerSubchannel", 0)
    return ConnectionScaling(max_connections_per_subchannel=count) if count else None


__all__ = [
    "ConnectionScaling",
    "HealthCheckConfig",
    "HedgingPolicy",
    "MethodConfig",
    "RetryPolicy",
    "RetryThrottling",
    "ServiceConfig",
    "ServiceConfigLike",
]
