"""JSON values as proto3 writes them, and the errors of those that are not so."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest

from trio_grpc import ServiceConfigError
from trio_grpc._balancing.json_fields import (
    array,
    boolean,
    duration,
    enum_values,
    mapping,
    mappings,
    number,
    read_object,
    require,
    text,
    uint32,
    within,
)


class Fruit(enum.IntEnum):
    APPLE = 0
    PEAR = 3


def fruit(config: Any, name: str, default: Any) -> Any:
    return enum_values(config, name, Fruit) or default


def without_default(reader: Callable[[Any, str], Any]) -> Callable[[Any, str, Any], Any]:
    return lambda config, name, default: reader(config, name) or default


READERS: dict[str, Callable[[Any, str, Any], Any]] = {
    "boolean": boolean,
    "text": text,
    "number": number,
    "uint32": uint32,
    "duration": duration,
    "enum": fruit,
    "array": without_default(array),
    "mapping": without_default(mapping),
    "mappings": without_default(mappings),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_field_that_is_missing_or_null_has_its_default(reader: str) -> None:
    default = object()
    assert READERS[reader]({"other": 1}, "it", default) is default
    assert READERS[reader]({"it": None}, "it", default) is default


@pytest.mark.parametrize(
    ("reader", "value", "read"),
    [
        ("boolean", True, True),
        ("boolean", False, False),
        ("text", "", ""),
        ("text", "ä", "ä"),
        ("number", 1.5, 1.5),
        ("number", -2, -2),
        ("number", "1.5", 1.5),
        ("number", "-1e3", -1000),
        ("uint32", 0, 0),
        ("uint32", 2**32 - 1, 2**32 - 1),
        ("uint32", 3.0, 3),
        ("uint32", "12", 12),
        ("duration", "0s", 0),
        ("duration", "1.5s", 1.5),
        ("duration", "0.000000001s", 1e-9),
        ("duration", "-3s", -3),
        ("duration", "315576000000s", 315_576_000_000),
        ("enum", ["pear", "APPLE", "Pear"], {Fruit.PEAR, Fruit.APPLE}),
        ("enum", [3, 0.0], {Fruit.PEAR, Fruit.APPLE}),
        ("array", [1, "2"], [1, "2"]),
        ("array", (1,), (1,)),
        ("mapping", {"a": 1}, {"a": 1}),
        ("mappings", [{"a": 1}, {}], [{"a": 1}, {}]),
    ],
)
def test_what_is_read(reader: str, value: object, read: object) -> None:
    found = READERS[reader]({"it": value}, "it", None)
    assert found == read
    assert type(found) is type(read) or reader in ("number", "duration", "enum")


WHOLE = "a whole number from 0 to 4294967295"
DURATION = 'a duration like "1.5s"'
FRUIT = "the name or the number of a Fruit"


@pytest.mark.parametrize(
    ("reader", "value", "problem"),
    [
        ("boolean", 1, "it: must be true or false, got 1"),
        ("boolean", "true", 'it: must be true or false, got "true"'),
        ("text", 1, "it: must be a string, got 1"),
        ("number", True, "it: must be a number, got true"),
        ("number", "one", 'it: must be a number, got "one"'),
        ("number", "0x10", 'it: must be a number, got "0x10"'),
        ("number", "Infinity", 'it: must be a number, got "Infinity"'),
        ("number", "1e999", 'it: must be a number, got "1e999"'),
        ("number", float("nan"), "it: must be a number, got NaN"),
        ("number", 10**400, f"it: must be a number, got 1{'0' * 56}..."),
        ("number", [1], "it: must be a number, got [1]"),
        ("uint32", -1, f"it: must be {WHOLE}, got -1"),
        ("uint32", 2**32, f"it: must be {WHOLE}, got 4294967296"),
        ("uint32", 1.5, f"it: must be {WHOLE}, got 1.5"),
        ("uint32", True, f"it: must be {WHOLE}, got true"),
        ("uint32", "1.5", f'it: must be {WHOLE}, got "1.5"'),
        ("uint32", {}, f"it: must be {WHOLE}, got {{}}"),
        ("duration", 1.5, f"it: must be {DURATION}, got 1.5"),
        ("duration", "1.5", f'it: must be {DURATION}, got "1.5"'),
        ("duration", "1.s", f'it: must be {DURATION}, got "1.s"'),
        ("duration", ".5s", f'it: must be {DURATION}, got ".5s"'),
        ("duration", "1e3s", f'it: must be {DURATION}, got "1e3s"'),
        ("duration", "1.0000000001s", f'it: must be {DURATION}, got "1.0000000001s"'),
        ("duration", "315576000001s", f'it: must be {DURATION}, got "315576000001s"'),
        ("duration", "1s\n", f'it: must be {DURATION}, got "1s\\n"'),
        ("duration", "\u0661s", f'it: must be {DURATION}, got "\u0661s"'),
        ("enum", "PEAR", 'it: must be a list, got "PEAR"'),
        ("enum", ["PEAR", "FIG"], f'it[1]: must be {FRUIT}, got "FIG"'),
        ("enum", [1], f"it[0]: must be {FRUIT}, got 1"),
        ("enum", [False], f"it[0]: must be {FRUIT}, got false"),
        ("enum", [None], f"it[0]: must be {FRUIT}, got null"),
        ("array", {}, "it: must be a list, got {}"),
        ("mapping", [], "it: must be an object, got []"),
        ("mapping", object, "it: must be an object, got <class 'object'>"),
        ("mappings", {"a": {}}, 'it: must be a list, got {"a": {}}'),
        ("mappings", [{}, 1], "it[1]: must be an object, got 1"),
    ],
)
def test_what_is_refused(reader: str, value: object, problem: str) -> None:
    with pytest.raises(ServiceConfigError) as caught:
        READERS[reader]({"it": value}, "it", None)
    assert str(caught.value) == f"service config: {problem}"


def test_required_fields() -> None:
    require({"a": 0, "b": ""}, "a", "b")
    for config in ({"a": 0}, {"a": 0, "b": None}):
        with pytest.raises(ServiceConfigError, match="service config: b: is missing"):
            require(config, "a", "b")


def test_paths_grow_from_the_inside() -> None:
    with (
        pytest.raises(ServiceConfigError) as caught,
        within("methodConfig[2]"),
        within("retryPolicy"),
        within("[0]"),
    ):
        uint32({"maxAttempts": "x"}, "maxAttempts", None)
    assert caught.value.path == "methodConfig[2].retryPolicy[0].maxAttempts"
    assert str(caught.value).startswith("service config: methodConfig[2].retryPolicy[0].maxAttempts: must be a whole")


def test_other_errors_about_values_become_errors_of_the_path() -> None:
    mistake = ValueError("RingHash.min_ring_size must not be more than the other")
    with pytest.raises(ServiceConfigError) as caught, within("a"), within("b"):
        raise mistake
    assert (caught.value.path, caught.value.problem) == ("a.b", str(mistake))
    assert caught.value.__cause__ is mistake
    with pytest.raises(TypeError), within("a"):
        raise TypeError


def test_objects_come_parsed_or_as_text() -> None:
    parsed = {"a": 1}
    assert read_object(parsed) is parsed
    assert read_object('{"a": 1}') == parsed
    assert read_object(b'{"a": 1}') == parsed


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("", "is not JSON: Expecting value"),
        ("{", "is not JSON: "),
        (b"\xff\xff", "is not JSON: "),
        ('{"a": NaN}', "is not JSON: NaN is no number"),
        ("[1]", "must be an object, got [1]"),
        ("null", "must be an object, got null"),
        ('{"a": {"b": 1, "c": 2, "b": 1}}', "an object has the field 'b' twice"),
        ("[" * 100_000, "is nested too deeply"),
    ],
)
def test_text_that_is_no_object(given: str | bytes, problem: str) -> None:
    with pytest.raises(ServiceConfigError) as caught:
        read_object(given)
    assert caught.value.path == ""
    assert str(caught.value).startswith(f"service config: {problem}")


def test_what_is_neither_text_nor_a_mapping() -> None:
    with pytest.raises(TypeError, match="service_config must be a ServiceConfig, JSON text or a mapping, not int"):
        read_object(1)


def test_a_field_that_is_twice_among_very_many_is_found_at_once() -> None:
    # In time that grows with the square of them this took hours.
    fields = ",".join(f'"{number}":1' for number in range(200_000))
    with pytest.raises(ServiceConfigError, match="an object has the field '199999' twice"):
        read_object(f'{{{fields},"199999":2}}')


@pytest.mark.parametrize("given", ["\ud800", {"\udfff": 1}])
def test_errors_can_be_printed_whatever_the_text_holds(given: Any) -> None:
    with pytest.raises(ServiceConfigError) as caught:
        uint32({"a": given}, "a", None)
    assert str(caught.value).isascii()
    assert "\\ud" in str(caught.value)


def test_errors_are_short_whatever_the_text_holds() -> None:
    name = "a" * 1_000_000
    with pytest.raises(ServiceConfigError) as caught, within("b"):
        read_object(f'{{"{name}": 1, "{name}": 2}}')
    assert len(str(caught.value)) < 600


def test_what_is_too_deep_or_too_long_to_be_shown() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value, shown in ((deep, "list"), (10**5000, "int")):
        with pytest.raises(ServiceConfigError, match=f"a: must be a string, got a huge {shown}$"):
            text({"a": value}, "a", None)
