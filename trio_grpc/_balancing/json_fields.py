"""Checked access to the fields of a JSON object, as proto3 writes its messages; errors name the path of the field.

A field that is missing or null has the default that the caller gives, as in proto3. Unknown fields are nobody's
business. Readers of parts say paths relative to their part, and `within` puts what is around in front.
"""

from __future__ import annotations

import contextlib
import enum
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import NoReturn, TypeVar

DefaultT = TypeVar("DefaultT")
EnumT = TypeVar("EnumT", bound=enum.IntEnum)

#: Seconds and at most nine decimals (proto3's JSON form of google.protobuf.Duration), and its bound: 10,000 years.
_DURATION = re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,9})?s")
_LONGEST_DURATION = 315_576_000_000
_MAX_UINT32 = 2**32 - 1
#: Characters of what an error says: configs come from strangers, and messages go to logs.
_LONGEST_PROBLEM = 500


class ServiceConfigError(ValueError):
    """A service config that is wrong.

    Attributes:
        path: the field, like ``methodConfig[2].retryPolicy.maxAttempts``; empty for the config as a whole.
        problem: what is wrong with it.
    """

    def __init__(self, path: str, problem: str) -> None:
        # JSON may hold half of a surrogate pair, which nobody could print.
        problem = _cut(problem.encode("utf-8", "backslashreplace").decode(), _LONGEST_PROBLEM)
        super().__init__(path, problem)
        self.path: str = path
        self.problem: str = problem

    def __str__(self) -> str:
        return f"service config: {self.path}: {self.problem}" if self.path else f"service config: {self.problem}"


@contextlib.contextmanager
def within(path: str) -> Iterator[None]:
    """Put a path in front of those that errors name; other errors about values become errors of this path.

    Raises:
        ServiceConfigError: the block has raised one, or another ValueError.
    """
    try:
        yield
    except ServiceConfigError as error:
        dot = "." if error.path and not error.path.startswith("[") else ""
        raise ServiceConfigError(f"{path}{dot}{error.path}", error.problem) from error.__cause__
    except ValueError as error:
        raise ServiceConfigError(path, str(error)) from error


def read_object(config: object) -> Mapping[str, object]:
    """Return a JSON object, parsed if it is text.

    Raises:
        ServiceConfigError: the text is no JSON, or JSON but no object.
        TypeError: it is neither text nor a mapping.
    """
    if isinstance(config, Mapping):
        return config
    if not isinstance(config, (str, bytes)):
        kind = type(config).__name__
        raise TypeError(f"service_config must be a ServiceConfig, JSON text or a mapping, not {kind}")
    try:
        parsed = json.loads(config, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except ServiceConfigError:
        raise
    except RecursionError:
        raise ServiceConfigError("", "is nested too deeply") from None
    except ValueError as error:
        raise ServiceConfigError("", f"is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ServiceConfigError("", f"must be an object, got {_shown(parsed)}")
    return parsed


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ServiceConfigError("", f"an object has the field {twice!r} twice")
    return made


def require(config: Mapping[str, object], *names: str) -> None:
    """Check that these fields are there.

    Raises:
        ServiceConfigError: one is not.
    """
    for name in names:
        if config.get(name) is None:
            raise ServiceConfigError(name, "is missing")


def boolean(config: Mapping[str, object], name: str, default: DefaultT) -> bool | DefaultT:
    """Return a field that is true or false.

    Raises:
        ServiceConfigError: it is something else.
    """
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _wrong(name, "true or false", value)
    return value


def text(config: Mapping[str, object], name: str, default: DefaultT) -> str | DefaultT:
    """Return a field that is a string, of characters that UTF-8 can have.

    Raises:
        ServiceConfigError: it is something else.
    """
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise _wrong(name, "a string", value)
    if not is_text(value):
        raise _wrong(name, "a string without halves of surrogate pairs", value)
    return value


def is_text(value: str) -> bool:
    """Whether a string can be sent: JSON, and Python, may have half a surrogate pair in it."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def number(config: Mapping[str, object], name: str, default: DefaultT) -> float | DefaultT:
    """Return a field that is a finite number, or the text of one as proto3 allows.

    Raises:
        ServiceConfigError: it is something else.
    """
    value = config.get(name)
    if value is None:
        return default
    found = _number(value)
    if found is None:
        raise _wrong(name, "a number", value)
    return found


def uint32(config: Mapping[str, object], name: str, default: DefaultT) -> int | DefaultT:
    """Return a field that is a whole number from 0 to 2^32 - 1, or the text of one.

    Raises:
        ServiceConfigError: it is something else.
    """
    value = config.get(name)
    if value is None:
        return default
    found = _number(value)
    if found is None or found != int(found) or not 0 <= found <= _MAX_UINT32:
        raise _wrong(name, f"a whole number from 0 to {_MAX_UINT32}", value)
    return int(found)


def _number(value: object) -> float | None:
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?", value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return value if isfinite(value) else None
    except OverflowError:
        return None


def duration(config: Mapping[str, object], name: str, default: DefaultT) -> float | DefaultT:
    """Return the seconds of a field like ``"1.5s"``.

    Raises:
        ServiceConfigError: it is something else.
    """
    value = config.get(name)
    if value is None:
        return default
    if isinstance(value, str) and _DURATION.fullmatch(value):
        seconds = float(value[:-1])
        if abs(seconds) <= _LONGEST_DURATION:
            return seconds
    raise _wrong(name, 'a duration like "1.5s"', value)


def enum_values(config: Mapping[str, object], name: str, kind: type[EnumT]) -> frozenset[EnumT]:
    """Return a field that is a list of values of an enumeration: names, in capitals or not, or numbers.

    Raises:
        ServiceConfigError: it is something else.
    """
    return frozenset(_member(f"{name}[{index}]", value, kind) for index, value in enumerate(array(config, name)))


def _member(path: str, value: object, kind: type[EnumT]) -> EnumT:
    if isinstance(value, str) and value.upper() in kind.__members__:
        return kind[value.upper()]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value in {member.value for member in kind}:
        return kind(int(value))
    raise _wrong(path, f"the name or the number of a {kind.__name__}", value)


def array(config: Mapping[str, object], name: str) -> Sequence[object]:
    """Return a field that is a list; none is an empty one.

    Raises:
        ServiceConfigError: it is something else.
    """
    value = config.get(name)
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise _wrong(name, "a list", value)
    return value


def mapping(config: Mapping[str, object], name: str) -> Mapping[str, object] | None:
    """Return a field that is an object, None where there is none.

    Raises:
        ServiceConfigError: it is something else.
    """
    value = config.get(name)
    return None if value is None else as_mapping(name, value)


def mappings(config: Mapping[str, object], name: str) -> Sequence[Mapping[str, object]]:
    """Return a field that is a list of objects; none is an empty one.

    Raises:
        ServiceConfigError: it is something else.
    """
    return [as_mapping(f"{name}[{index}]", value) for index, value in enumerate(array(config, name))]


def as_mapping(path: str, value: object) -> Mapping[str, object]:
    """Return a value that is an object.

    Raises:
        ServiceConfigError: it is something else; the path says where.
    """
    if not isinstance(value, Mapping):
        raise _wrong(path, "an object", value)
    return value


def _wrong(path: str, words: str, value: object) -> ServiceConfigError:
    return ServiceConfigError(path, f"must be {words}, got {_shown(value)}")


def _shown(value: object) -> str:
    """A value as it stands in JSON, but not a long one."""
    # What is not from JSON text may be anything, and its numbers and depth are not bounded.
    for show in (partial(json.dumps, ensure_ascii=False), repr):
        try:
            return _cut(show(value), 60)
        except (TypeError, ValueError, RecursionError):
            pass
    return f"a huge {type(value).__name__}"


def _cut(words: str, most: int) -> str:
    return words if len(words) <= most else f"{words[: most - 3]}..."


__all__ = ["ServiceConfigError"]
