"""Variants of trio_grpc without one of the ideas that it is built on, for measuring what the idea gains.

A variant is the product with a few lines put in front of one or two of its functions, in the benchmark's own processes
only: the function's source is compiled again with the lines in it.  So a variant costs no call of its own that the
product does not make, and the product needs no switch.  A variant whose place has gone is an error and never a figure.

Standard library only at import: the adapters of all libraries know the names.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import inspect
import textwrap
from dataclasses import dataclass
from types import FunctionType
from typing import Any


class VariantError(Exception):
    """The product no longer has what a variant changes; the text says which and what."""


@dataclass(frozen=True)
class Change:
    """Lines in front of one function.

    Attributes:
        place: The function, as `module:Class.method`.
        uses: Its parameters that the lines use.
        lines: The lines.
        once: Lines that run once, for names that the lines use.
    """

    place: str
    uses: tuple[str, ...]
    lines: str
    once: str = ""


@dataclass(frozen=True)
class Variant:
    """The product without one idea.

    Attributes:
        name: Its name on the command line.
        idea: What the product does.
        title: What the variant does instead.
        workloads: Where it should matter.
        changes: What makes it.
    """

    name: str
    idea: str
    title: str
    workloads: tuple[str, ...]
    changes: tuple[Change, ...]


_TRANSPORT = "trio_grpc._transport"

VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant(
            "frame_buffer",
            "copyless DATA reads",
            "each DATA payload is copied into a buffer of its own before it goes into its message",
            ("server_stream_100b", "unary_1mb", "stream_1mb"),
            (
                Change(
                    f"{_TRANSPORT}.reader:Reader.on_data",
                    ("data", "start", "stop"),
                    "data = bytes(memoryview(data)[start:stop]); start, stop = 0, stop - start",
                ),
            ),
        ),
        Variant(
            "one_write_per_frame",
            "batched control buffer",
            "the writer writes after each control frame that it takes",
            ("unary_100", "ping_pong_200", "server_stream_100b"),
            (Change(f"{_TRANSPORT}.loopy_writer:LoopyWriter._drain", (), "return"),),
        ),
        Variant(
            "frame_object",
            "no object per DATA frame",
            "an object is made for each DATA frame, and read again",
            ("unary_100", "ping_pong_200", "server_stream_100b", "stream_1mb"),
            (
                Change(
                    f"{_TRANSPORT}.reader:Reader.on_data",
                    ("stream_id", "data", "start", "stop", "flow_length", "end_stream"),
                    """
                    frame = DataFrame(stream_id, data, start, stop, flow_length, end_stream)
                    stream_id, data, start = frame.stream_id, frame.data, frame.start
                    stop, flow_length, end_stream = frame.stop, frame.flow_length, frame.end_stream
                    """,
                    once="from benchmarks.frames import DataFrame",
                ),
            ),
        ),
        Variant(
            "second_materialisation",
            "one materialisation of each message",
            "each message is copied once more between transport and codec, on either way",
            ("unary_100", "server_stream_100b", "unary_1mb", "stream_1mb"),
            (
                Change(
                    "trio_grpc._message_coding:MessageCoder.parse",
                    ("message",),
                    "message = type(message)(memoryview(message))",
                ),
                Change(f"{_TRANSPORT}.stream:Stream.queue_message", ("data",), "data = bytes(memoryview(data))"),
            ),
        ),
        Variant(
            "woken_writer",
            "an idle writer's step runs in the task that has something to write",
            "the writer is always woken, through the scheduler",
            ("unary_1", "unary_100", "ping_pong_200"),
            (Change(f"{_TRANSPORT}.stream:Stream.announce_alone", (), "return self.announce()"),),
        ),
        Variant(
            "no_throttle",
            "the reader waits while many replies are unwritten",
            "the reader never waits for the writer",
            ("unary_100", "ping_pong_200"),
            (Change(f"{_TRANSPORT}.control_buffer:ControlBuffer.throttle", (), "return"),),
        ),
        Variant(
            "forgetful_headers",
            "remembered header blocks",
            "every header block is encoded and decoded anew (its HPACK table stays)",
            ("unary_100",),
            (
                Change(
                    f"{_TRANSPORT}.header_codec:HeaderDecoder.decode",
                    (),
                    "self._records.clear(); self._heads.clear(); self._bases.clear()",
                ),
                Change(
                    f"{_TRANSPORT}.header_codec:HeaderEncoder.encode",
                    (),
                    "self._blocks.clear(); self._prefixes.clear()",
                ),
            ),
        ),
    )
}


def apply(name: str | None) -> None:
    """Turns the trio_grpc of this process into a variant, for good; None leaves it as it is.

    Raises:
        VariantError: trio_grpc no longer has what the variant changes.
    """
    if name is not None:
        for owner, function_name, function in functions(name):
            setattr(owner, function_name, function)


def functions(name: str) -> list[tuple[type, str, FunctionType]]:
    """Returns what makes a variant: classes, names of functions in them, and the functions to put there.

    Raises:
        VariantError: trio_grpc no longer has what the variant changes.
    """
    return [_function(name, change) for change in VARIANTS[name].changes]


def _function(name: str, change: Change) -> tuple[type, str, FunctionType]:
    module_name, _, path = change.place.partition(":")
    class_name, _, function_name = path.partition(".")
    owner = getattr(importlib.import_module(module_name), class_name, None)
    function = vars(owner).get(function_name) if isinstance(owner, type) else None
    if not isinstance(owner, type) or not isinstance(function, FunctionType):
        raise VariantError(f"variant {name}: there is no function {change.place} any more")
    if missing := [word for word in change.uses if word not in inspect.signature(function).parameters]:
        raise VariantError(f"variant {name}: {change.place} has no parameter {', '.join(missing)} any more")
    return owner, function_name, with_lines(function, change.lines, change.once)


def with_lines(function: FunctionType, lines: str, once: str = "") -> FunctionType:
    """Returns a function like `function` that runs `lines` first.

    Args:
        function: A function of a module, which uses neither `super()` without arguments nor names of another function.
        lines: The lines.
        once: Lines that run once, now, for names that `lines` use.
    """
    maker = ast.parse("def make():\n    return None")
    make = maker.body[0]
    assert isinstance(make, ast.FunctionDef)
    definition = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef))
    definition.body[:0] = ast.parse(textwrap.dedent(lines)).body
    result = ast.Return(ast.Name(definition.name, ast.Load()))
    make.body = [*ast.parse(textwrap.dedent(once)).body, definition, result]
    ast.fix_missing_locations(maker)
    flags = __future__.annotations.compiler_flag
    code = compile(maker, inspect.getfile(function), "exec", flags=flags, dont_inherit=True)
    namespace: dict[str, Any] = {}
    # The module's own globals: what a test or the program puts there is seen by the variant too.
    exec(code, function.__globals__, namespace)
    made: FunctionType = namespace["make"]()
    made.__qualname__ = function.__qualname__
    return made
