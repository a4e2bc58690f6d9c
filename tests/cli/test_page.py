"""docs/command_line.md: each command and option is there, and what it shows is true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cli.conftest import CommandLine
from trio_grpc.cli._failure import ExitCode
from trio_grpc.cli._health import UNHEALTHY
from trio_grpc.cli._main import COMMANDS, commands

PAGE = (Path(__file__).parents[2] / "docs" / "command_line.md").read_text(encoding="utf-8")


def section(name: str) -> str:
    head, end = rf"^\([a-z-]+\)=\n## [a-z ]*\b{name}\b[a-z ]*\n", r"(?=^\([a-z-]+\)=$|\Z)"
    found = re.search(rf"{head}(.*?){end}", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, name
    return found[1]


COMMON = PAGE.partition("## What all commands have in common")[2].partition("(list-and-describe)=")[0]


def command_named(name: str) -> click.Command:
    found = commands.get_command(click.Context(commands), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_is_on_the_page(name: str) -> None:
    text = section(name) + COMMON
    options = {
        word
        for parameter in command_named(name).params
        if isinstance(parameter, click.Option)
        for word in (*parameter.opts, *parameter.secondary_opts)
    } - {"--help", "-h"}
    assert options
    assert {option for option in options if not re.search(rf"`{option}\b", text)} == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_is_only_on_the_page(name: str) -> None:
    known = {word for parameter in command_named(name).params for word in (*parameter.opts, *parameter.secondary_opts)}
    if name != "describe":
        assert set(re.findall(r"`(--?[a-zA-Z][a-z-]*)", section(name))) <= known


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_json(name: str) -> None:
    assert any("--json" in parameter.opts for parameter in command_named(name).params)


def test_the_exit_codes_are_the_ones_there_are() -> None:
    documented = {int(number) for number in re.findall(r"^\| (\d+)(?: and more)? \|", PAGE, re.MULTILINE)}
    assert documented == {*map(int, ExitCode), UNHEALTHY}


@pytest.mark.parametrize(
    ("name", "arguments", "key"),
    [
        ("bench", ("--calls", "3", "--warm-up", "0"), None),
        ("trace", (), "summary"),
    ],
)
def test_the_documents_have_the_fields_that_the_page_names(
    name: str, arguments: tuple[str, ...], key: str | None, command: CommandLine, target: str
) -> None:
    documents: list[Any] = command(name, target, "echo.Echo/Unary", *arguments, "--json").documents
    text = section(name)
    fields = {field for one in documents for field in one} | ({"summary"} if key else set())
    assert {field for field in fields if f"`{field}`" not in text} == set()
