"""What public docstrings owe: each argument is described, in Google's style.

What has one argument may do with one sentence. Of classes whose objects the library makes, which docs/api.md marks with
``()``, the constructor is nobody's business.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MODULES = (
    "trio_grpc",
    "trio_grpc.call_log",
    "trio_grpc.channelz",
    "trio_grpc.grpcio",
    "trio_grpc.health",
    "trio_grpc.opentelemetry",
    "trio_grpc.orca",
    "trio_grpc.prometheus",
    "trio_grpc.reflection",
    "trio_grpc.testing",
    "trio_grpc.tls",
)
IMPLIED = {"self", "cls", "task_status"}
API = (Path(__file__).parent.parent / "docs" / "api.md").read_text(encoding="utf-8")


def described(owner: Any) -> set[str]:
    """Return the names that the sections of a docstring, or of those of a class's bases, describe."""
    owners = owner.__mro__ if inspect.isclass(owner) else [owner]
    texts = [inspect.cleandoc(text) for one in owners if (text := one.__doc__)]
    found = (re.findall(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)*): ", text, re.MULTILINE) for text in texts)
    return {name.lstrip("*") for groups in found for group in groups for name in group.split(", ")}


def documented(owner: type[Any], method: str) -> bool:
    """Whether docs/api.md tells of this method: not what is exempt, or generated."""
    entry = re.search(
        rf":: {re.escape(owner.__module__.partition('._')[0])}\S*\.{owner.__name__}\b.*\n((?:   :.*\n)*)", API
    )
    if entry is None or ":members:" not in entry[1]:
        return False
    listed = re.search(r":members: (.+)", entry[1])
    exempt = re.search(r":exclude-members: (.+)", entry[1])
    if exempt is not None and method in exempt[1].split(", "):
        return False
    return listed is None or method in listed[1].split(", ")


def callables() -> Iterator[tuple[str, Any, Any]]:
    """Every public function, class and method of ours: name, what is called, who describes it."""
    for module in MODULES:
        face = importlib.import_module(module)
        for name in face.__all__:
            value = getattr(face, name)
            if inspect.isfunction(value):
                yield f"{module}.{name}", value, value
            if not inspect.isclass(value) or not value.__module__.startswith("trio_grpc"):
                continue
            if f":: {module}.{name}()" not in API:
                yield f"{module}.{name}", value.__init__, value
            for method, function in vars(value).items():
                function = getattr(function, "__func__", function)
                if inspect.isfunction(function) and not method.startswith("_") and documented(value, method):
                    yield f"{module}.{name}.{method}", function, function


CALLABLES = {name: (function, owner) for name, function, owner in callables()}


@pytest.mark.parametrize("name", CALLABLES)
def test_it_has_a_docstring(name: str) -> None:
    _, owner = CALLABLES[name]
    assert inspect.getdoc(owner), name


@pytest.mark.parametrize("name", CALLABLES)
def test_every_argument_is_described(name: str) -> None:
    function, owner = CALLABLES[name]
    if not inspect.isfunction(function):
        return
    parameters = {parameter for parameter in inspect.signature(function).parameters if not parameter.startswith("_")}
    parameters -= IMPLIED
    if len(parameters) == 1 and function.__doc__:
        return
    assert parameters - described(owner) - described(function) == set()
