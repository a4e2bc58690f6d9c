"""The laws of the house (docs/design.md), read off the syntax tree of `trio_grpc/`.

Nothing here runs the package but the few tests at the end.  When one of these fails, the code is to be moved and not
the law, unless the law itself turned out to be wrong: then docs/design.md changes with it.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

import trio_grpc

ROOT = Path(__file__).parent.parent / "trio_grpc"

# ---------------------------------------------------------------------------------------------------------------------
# The house, as data.  Names are relative to `trio_grpc`; "" is the face, and a package's name is its __init__.py.


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: From the ground up.  A room imports only from floors below its own; rooms on one floor do not know each other.
FLOORS: tuple[frozenset[str], ...] = tuple(
    words(floor) or frozenset({""})
    for floor in (
        # words that everything uses
        """
        _metadata _transport.frames _transport.side _transport.allocator _transport.waking _transport.timers
        _deadline _version _private_pool _compressors _lone_exception _cancellation _tls_info _call_counts _event_log
        _registry
        """,
        "_status _zstd",
        "_codec _compression",
        "_method _options",
        "_plain_codecs _json_codec",
        # the protocol, and the one seam to the operating system
        """
        _transport.messages _transport.headers _transport.header_codec _transport.flow_control
        _transport.byte_stream _transport.tls _transport.service_nursery _transport.stream_table _transport.budget
        _transport.lifetime
        """,
        "_transport.control_buffer",
        "_transport.framer",
        "_transport.stream",
        "_transport.reader _transport.loopy_writer _transport.keepalive",
        "_transport.connection",
        "_transport",
        # what calls are made of, and one message as bytes, for either side of an RPC
        "_observing",
        "_message_coding",
        # around one RPC, on either side
        "_interceptors",
        "_credentials",
        # which connection a call goes to
        "_balancing",
        "_balancing.json_fields _balancing.target _balancing.backoff _balancing.connectivity _balancing.idleness",
        "_bearer_token",
        "_balancing.service_config_choice _balancing.http_proxy _balancing.name_server _balancing.wire_fields",
        "_balancing.dialer _balancing.endpoint _balancing.load_report _balancing.turns _balancing.dns_service_config",
        "_balancing.subchannel_call _balancing.happy_eyeballs",
        "_balancing.load_watch",
        "_balancing.subchannel",
        "_balancing.policy",
        "_balancing.health_watch",
        "_balancing.graceful_switch _balancing.pick_first _balancing.connect_to_all _balancing.ring_hash",
        "_balancing.round_robin _balancing.weighted_round_robin _balancing.least_request",
        "_balancing.outlier_detection",
        "_balancing.policies",
        "_balancing.service_config",
        "_balancing.resolver _balancing.config_in_force _retry",
        "_balancing.dns _balancing.resolving",
        "_balancing.naming",
        "_balancing.balancer",
        "_channel",
        # one RPC, from either side: a client's calls know their channel, a server knows its handlers
        "_attempt",
        "_attempts",
        "_hedging",
        "_call",
        "_intercepted_call _awaited",
        "_stub _handler_pool",
        "_open_channel",
        "_servicer",
        "_generic_servicer _intercepted_handler",
        "_generic_handlers",
        "_server",
        # what interceptors tell of calls
        "opentelemetry._propagation",
        "call_log._call_log opentelemetry._metrics opentelemetry._tracing prometheus._metrics",
        "call_log opentelemetry prometheus",
        # servicers written for grpcio
        "grpcio._facts",
        "grpcio._context grpcio._thread_context",
        "grpcio._adapters",
        "grpcio._servicers",
        "grpcio",
        # the standard services
        "channelz._v1",
        "channelz._sockets",
        "channelz._views",
        "channelz._servicer",
        "channelz",
        "health._v1 health._servicer reflection._v1 reflection._v1alpha reflection._catalogue orca._v3",
        "health reflection._servicers reflection._client orca._metrics",
        "orca._reporter orca._servicer",
        "orca",
        "reflection",
        # what ends a server from outside, and a program around one
        "_signals _shared_addresses",
        "_workers",
        "_run",
        # contexts of TLS, for users to make
        "tls._validity",
        "tls._pem_files",
        "tls._reloading",
        "tls._contexts",
        "tls",
        # the code generator, and how it is started
        "protoc_plugin",
        "protoc",
        # the command line
        "cli._failure cli._running cli._proto_text cli._seconds cli._histogram cli._tap cli._frames",
        "cli._output",
        "cli._messages cli._call_options cli._connection cli._schema cli._completion",
        "cli._requests",
        "cli._conversation cli._load cli._trace_lines",
        "cli._list cli._describe cli._call cli._health cli._serve cli._bench cli._trace",
        "cli._main",
        "cli",
        "__main__",
        # what a user sees
        "",
        "testing._manual_resolver testing._faulty_link testing._scripted_peer testing._fake_servicer testing._leaks",
        "testing._faults",
        "testing._memory_listener",
        "testing._channel_pair",
        "testing",
    )
)

#: Made by protoc and by our code generator, which write for a user's project: they may name the face.
GENERATED = re.compile(r"_pb2$|_trio_grpc$")

#: Everything we may import that the standard library does not bring: the four declared dependencies, h2's two halves,
#: and outcome, which is what `trio.lowlevel.reschedule` takes.
DEPENDENCIES = words("attr attrs google h2 hpack hyperframe outcome trio trio_grpc")

#: Who may import what, where that is not everybody.  Patterns over room names.
RESERVED: Mapping[str, str] = {
    "click": r"cli(\..+)?",
    "rich": r"cli(\..+)?",
    "opentelemetry": r"opentelemetry(\..+)?",
    "prometheus_client": r"prometheus(\..+)?",
    "grpc": r"grpcio(\..+)?",
    "h2": r"_transport\.(framer|header_codec)",
    "hpack": r"_transport\.(framer|header_codec)",
    "hyperframe": r"_transport\.(framer|header_codec)",
    "google": r"_codec|_json_codec|cli\._(schema|messages|proto_text|requests|conversation|call|trace_lines)"
    r"|_private_pool|protoc|protoc_plugin|(health|reflection|channelz|orca)(\..+)?|.*_pb2|.*_trio_grpc",
    "grpc_tools": r"protoc|cli\._schema",
    "compression": r"_zstd",
    "backports": r"_zstd",
    "zstandard": r"_zstd",
    "dns": r"_balancing\.name_server",
}

#: Rooms that do no I/O and are given the time.
PURE = words(
    """
    _status _metadata _method _codec
    _transport.frames _transport.headers _transport.messages _transport.framer _transport.header_codec
    _transport.budget
    """
)
IO_MODULES = words("asyncio outcome select selectors signal socket sniffio ssl threading time trio")

#: Arrows that must not exist, through however many rooms.
STRANGERS: tuple[tuple[str, str, str], ...] = (
    (r"_transport\.stream", r"_transport\.connection", "a stream holds a control buffer, never a connection"),
    (
        r"_transport(\..+)?",
        r"_servicer|_server|_stub|_call|_channel|_interceptors|_codec|_method|_balancing(\..+)?",
        "the transport knows no stub, no servicer and no protobuf",
    ),
)

#: Who may call what on a byte stream or socket.  Names that only such objects have are judged wherever they are called;
#: plain ones only on an object that is called a byte stream or a socket. Tunnels and TLS come before the connection,
#: and a tap hands on what others read and write.
WRITERS = frozenset(
    {"_transport.loopy_writer", "_transport.byte_stream", "_transport.tls", "_balancing.http_proxy", "cli._tap"}
)
READERS = frozenset(
    {"_transport.reader", "_transport.byte_stream", "_transport.tls", "_balancing.http_proxy", "cli._tap"}
)
WRITING = frozenset({"send_all", "sendall", "sendmsg", "sendto", "sendfile"})
READING = frozenset({"receive_some", "recv", "recv_into", "recvmsg", "recvmsg_into"})
PLAIN_WRITING = frozenset({"send", "write"})
PLAIN_READING = frozenset({"receive", "read"})
BYTE_STREAM_NAME = re.compile(r"^_*((byte|socket|ssl|tls|tcp)_?stream|stream_socket|socket|sock)$")

#: What opens a nursery or a cancel scope, trio's and ours.
SCOPES = words(
    """
    open_nursery open_service_nursery ServiceNursery CancelScope
    move_on_after move_on_at fail_after fail_at open_channel open_channel_pair
    """
)
SCOPE_NAME = re.compile(r"(scope|nursery)$", re.IGNORECASE)

#: A room longer than this holds more than one idea.
LONGEST_ROOM = 1000


# ---------------------------------------------------------------------------------------------------------------------
# Reading the code


@functools.cache
def rooms() -> Mapping[str, ast.Module]:
    """Every module of the package by its name relative to `trio_grpc`."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return found


@functools.cache
def packages() -> frozenset[str]:
    return frozenset(
        ".".join(path.parent.relative_to(ROOT).parts) for path in ROOT.rglob("*.py") if "__pycache__" not in path.parts
    )


def imported(room: str, tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Absolute names of all modules (or names in modules) that a room imports, wherever in it, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                home = ["trio_grpc", *room.split(".")] if room else ["trio_grpc"]
                if room not in packages():
                    home.pop()
                home = home[: len(home) - (node.level - 1)]
                base = ".".join([*home, base] if base else home)
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and called_name(node) in {"import_module", "__import__"} and node.args:
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.value, node.lineno


def target_room(name: str) -> str | None:
    """Which of our rooms an imported name leads to; None when it is not ours."""
    if name != "trio_grpc" and not name.startswith("trio_grpc."):
        return None
    room = name.removeprefix("trio_grpc").removeprefix(".")
    while room and room not in rooms():
        room = room.rpartition(".")[0]
    return room


@functools.cache
def arrows() -> Mapping[str, Mapping[str, int]]:
    """For each room, the rooms it imports and the line where it does."""
    return {
        room: {
            target: line
            for name, line in imported(room, tree)
            if (target := target_room(name)) is not None and target != room
        }
        for room, tree in rooms().items()
    }


@functools.cache
def floor_of() -> Mapping[str, int]:
    return {room: number for number, floor in enumerate(FLOORS) for room in floor}


def called_name(node: ast.AST) -> str:
    """`f` of `f(...)`, `a.b.f(...)` and of the same without the call."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def own_nodes(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """All nodes of a body, without those of functions and classes defined in it."""
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            pending.extend(ast.iter_child_nodes(node))


def assert_none(faults: list[str], law: str) -> None:
    assert not faults, f"{law}:\n  " + "\n  ".join(faults)


def hand_written() -> Iterator[tuple[str, ast.Module]]:
    return ((room, tree) for room, tree in rooms().items() if not GENERATED.search(room))


# ---------------------------------------------------------------------------------------------------------------------
# Law 1: import arrows point down, and there is no circle


def test_every_room_has_a_floor() -> None:
    homeless = [room for room, _ in hand_written() if room not in floor_of()]
    assert_none(
        homeless, "these rooms have no floor: place each in FLOORS in tests/test_architecture.py, as low as it can be"
    )


def test_every_listed_room_exists() -> None:
    gone = [room for room in floor_of() if room not in rooms()]
    assert_none(gone, "these rooms have a floor and are not there any more")


def test_the_design_page_names_every_room_and_no_other() -> None:
    page = (ROOT.parent / "docs" / "design.md").read_text(encoding="utf-8")
    plan = page[page.index("## Rooms and floors") : page.index("## Laws")]
    cells = re.findall(r"^\| [a-z ]+ \| (.*?) \|", plan, re.MULTILINE)
    named = {name.rpartition(".")[2] for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}
    there = {room.rpartition(".")[2] or "trio_grpc" for room in floor_of()}
    assert_none(sorted(there - named), "docs/design.md does not name these rooms")
    assert_none(sorted(named - there), "docs/design.md names these rooms, which are not there")


def test_no_room_is_listed_twice() -> None:
    listed = [room for floor in FLOORS for room in floor]
    assert len(listed) == len(set(listed))


def test_import_arrows_point_down() -> None:
    floors = floor_of()
    faults = [
        f"{source or 'the face'}:{line} imports {target or 'the face'}, which is not below it"
        for source, targets in arrows().items()
        for target, line in targets.items()
        if source in floors and target in floors and floors[target] >= floors[source]
    ]
    assert_none(faults, "import arrows point down")


def test_no_import_circle() -> None:
    """Counts imports inside functions and under TYPE_CHECKING, and generated modules too."""
    done: set[str] = set()
    circles: list[str] = []

    def visit(room: str, path: tuple[str, ...]) -> None:
        if room in path:
            circles.append(" -> ".join((*path[path.index(room) :], room)))
        elif room not in done:
            for target in arrows().get(room, {}):
                visit(target, (*path, room))
            done.add(room)

    for room in rooms():
        visit(room, ())
    assert_none(circles, "imports form a circle")


# ---------------------------------------------------------------------------------------------------------------------
# Law 2: no room imports a face from inside


def face_imports(room: str, tree: ast.AST) -> list[str]:
    """Imports that name a package of ours, or something its __init__ re-exports, instead of a room."""
    faults = []
    for name, line in imported(room, tree):
        target = target_room(name)
        if target is not None and target in packages() and target != room:
            faults.append(
                f"{room or 'the face'}:{line} imports {name} through the face of trio_grpc{'.' * bool(target)}{target}"
            )
    return faults


def test_no_room_imports_a_face() -> None:
    faults = [fault for room, tree in hand_written() for fault in face_imports(room, tree)]
    assert_none(faults, "rooms import rooms, never a face")


# ---------------------------------------------------------------------------------------------------------------------
# Law 3: who may import what from outside


def test_only_declared_dependencies_are_imported() -> None:
    faults = [
        f"{room}:{line} imports {name}"
        for room, tree in rooms().items()
        for name, line in imported(room, tree)
        if (top := name.partition(".")[0]) not in DEPENDENCIES
        and top not in sys.stdlib_module_names
        and not re.fullmatch(RESERVED.get(top, r"(?!)"), room)
    ]
    assert_none(faults, "four dependencies, and no more")


def test_reserved_libraries_stay_in_their_rooms() -> None:
    faults = [
        f"{room or 'the face'}:{line} imports {name}"
        for room, tree in rooms().items()
        for name, line in imported(room, tree)
        if (pattern := RESERVED.get(name.partition(".")[0])) is not None and not re.fullmatch(pattern, room)
    ]
    assert_none(faults, "each library has its rooms (RESERVED)")


def test_the_protocol_does_no_io() -> None:
    faults = [
        f"{room}:{line} imports {name}"
        for room, tree in rooms().items()
        if room in PURE
        for name, line in imported(room, tree)
        if name.partition(".")[0] in IO_MODULES
    ]
    assert_none(faults, "pure rooms do no I/O and are given the time")


# ---------------------------------------------------------------------------------------------------------------------
# Law 4: who may know whom


def reachable(room: str) -> frozenset[str]:
    seen: set[str] = set()
    pending = [room]
    while pending:
        for target in arrows().get(pending.pop(), {}):
            if target not in seen:
                seen.add(target)
                pending.append(target)
    return frozenset(seen)


@pytest.mark.parametrize(("source", "target", "law"), STRANGERS, ids=[law for _, _, law in STRANGERS])
def test_strangers_never_meet(source: str, target: str, law: str) -> None:
    faults = [
        f"{room} reaches {other}"
        for room in rooms()
        if re.fullmatch(source, room)
        for other in sorted(reachable(room))
        if re.fullmatch(target, other)
    ]
    assert_none(faults, law)


# ---------------------------------------------------------------------------------------------------------------------
# Law 5: one writer, one reader


def byte_stream_calls(room: str, tree: ast.AST) -> list[str]:
    """Calls that write to or read from a byte stream in a room that may not."""
    faults = []
    for node in ast.walk(tree):
        # Also a bound method that is put aside, `write = byte_stream.send_all`.
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        on_byte_stream = bool(BYTE_STREAM_NAME.match(called_name(node.value)))
        writes = node.attr in WRITING or (on_byte_stream and node.attr in PLAIN_WRITING)
        reads = node.attr in READING or (on_byte_stream and node.attr in PLAIN_READING)
        if (writes and room not in WRITERS) or (reads and room not in READERS):
            faults.append(f"{room}:{node.lineno} uses {ast.unparse(node)}")
    return faults


def test_one_task_writes_and_one_reads() -> None:
    faults = [
        fault
        for room, tree in hand_written()
        if room != "testing" and not room.startswith("testing.")
        for fault in byte_stream_calls(room, tree)
    ]
    assert_none(faults, "only the loopy writer writes to a byte stream, only the reader reads from it")


# ---------------------------------------------------------------------------------------------------------------------
# Law 7: cancellation is never swallowed


def exception_names(node: ast.expr | None) -> list[str]:
    if isinstance(node, ast.Tuple):
        return [name for element in node.elts for name in exception_names(element)]
    return [called_name(node)] if node is not None else []


CATCHES_CANCELLED = frozenset({"BaseException", "BaseExceptionGroup", "Cancelled"})


def swallowed_exceptions(room: str, tree: ast.AST) -> list[str]:
    """Handlers, suppressions and `finally` blocks that could eat a Cancelled."""
    faults = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                faults.append(f"{room}:{node.lineno} has a bare except")
            elif CATCHES_CANCELLED.intersection(exception_names(node.type)):
                bare_raise = any(isinstance(inner, ast.Raise) and inner.exc is None for inner in own_nodes(node.body))
                # Thrown into a handler's generator it goes on too: it comes out of `athrow` unless the user eats it.
                thrown_on = any(
                    isinstance(inner, ast.Call)
                    and called_name(inner.func) == "athrow"
                    and [ast.unparse(argument) for argument in inner.args] == [node.name]
                    for inner in own_nodes(node.body)
                )
                if not bare_raise and not thrown_on:
                    faults.append(f"{room}:{node.lineno} catches {ast.unparse(node.type)} without a bare raise")
        elif isinstance(node, ast.Call) and called_name(node) == "suppress":
            if any(CATCHES_CANCELLED.intersection(exception_names(argument)) for argument in node.args):
                faults.append(f"{room}:{node.lineno} suppresses Cancelled")
        elif isinstance(node, ast.Try):
            # A jump out of `finally` drops the exception in flight.  One that stays in a loop of its own does not.
            jumps: list[ast.stmt] = [inner for inner in own_nodes(node.finalbody) if isinstance(inner, ast.Return)]
            jumps += [inner for inner in node.finalbody if isinstance(inner, ast.Break | ast.Continue)]
            faults += [f"{room}:{inner.lineno} jumps out of a finally" for inner in jumps]
    return faults


def test_cancellation_is_never_swallowed() -> None:
    faults = [fault for room, tree in rooms().items() for fault in swallowed_exceptions(room, tree)]
    assert_none(faults, "`except Exception` at most, and Cancelled always goes on")


# ---------------------------------------------------------------------------------------------------------------------
# Law 9: no async generator yields inside a nursery or cancel scope


def scoped_yields(room: str, tree: ast.AST) -> list[str]:
    """Yields of async generators that stand inside a nursery or cancel scope."""
    return [
        f"{room}:{inner.lineno} yields inside `{ast.unparse(item.context_expr)}`"
        for function in ast.walk(tree)
        if isinstance(function, ast.AsyncFunctionDef)
        for block in own_nodes(function.body)
        if isinstance(block, ast.With | ast.AsyncWith)
        for item in block.items
        if called_name(item.context_expr) in SCOPES or SCOPE_NAME.search(called_name(item.context_expr))
        for inner in own_nodes(block.body)
        if isinstance(inner, ast.Yield)
    ]


def test_no_async_generator_yields_inside_a_scope() -> None:
    faults = [fault for room, tree in rooms().items() for fault in scoped_yields(room, tree)]
    assert_none(faults, "an async generator must not yield inside a nursery or cancel scope")


# ---------------------------------------------------------------------------------------------------------------------
# Law 10: one room, one idea


def test_every_room_says_what_it_is() -> None:
    silent = [room for room, tree in hand_written() if not ast.get_docstring(tree)]
    assert_none(silent, "a room opens with a paragraph that says what it is")


def test_no_room_is_too_long() -> None:
    long = [
        f"{room}: {length} lines"
        for room, tree in hand_written()
        if tree.body and (length := tree.body[-1].end_lineno or 0) > LONGEST_ROOM
    ]
    assert_none(long, f"a room of more than {LONGEST_ROOM} lines holds more than one idea: split it")


def test_both_sides_share_the_transport() -> None:
    copies = [room for room in rooms() if re.search(r"^_transport\.(.*_)?(client|server)(_|$)", room)]
    assert_none(copies, "client and server are two values of Side, not two copies of a room")


# ---------------------------------------------------------------------------------------------------------------------
# The face


def test_types_are_shipped() -> None:
    assert (ROOT / "py.typed").is_file()


def public_members(module: types.ModuleType) -> Iterator[tuple[str, object]]:
    """What a user may touch: the names of the face, and the public methods and properties of its classes."""
    for name in module.__all__:
        thing = getattr(module, name)
        yield name, thing
        if inspect.isclass(thing):
            for attribute, value in vars(thing).items():
                if not attribute.startswith("_") and (inspect.isroutine(value) or isinstance(value, property)):
                    yield f"{name}.{attribute}", getattr(thing, attribute)


def is_plain_value(thing: object) -> bool:
    """Type variables, type aliases and constants cannot carry a docstring of their own."""
    return not (inspect.isclass(thing) or inspect.isroutine(thing) or isinstance(thing, property)) or isinstance(
        thing, types.GenericAlias
    )


def test_every_public_name_is_documented() -> None:
    silent = []
    for name, thing in public_members(trio_grpc):
        # A class must speak for itself; a method may inherit what its base says.
        text = thing.__doc__ if inspect.isclass(thing) else inspect.getdoc(thing)
        if not is_plain_value(thing) and not (text or "").strip():
            silent.append(name)
    assert_none(silent, "public names without a docstring")


def test_the_face_loads_what_type_checkers_see() -> None:
    """One table is for Python and one for type checkers; both say where each name of the face lives."""
    block = next(node for node in rooms()[""].body if isinstance(node, ast.If))
    seen = {
        alias.name: (node.module or "").removeprefix("trio_grpc.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == trio_grpc._HOMES
    assert set(seen) | {"__version__"} == set(trio_grpc.__all__)
    assert set(trio_grpc.__all__) <= set(dir(trio_grpc))


def test_the_face_knows_no_other_names() -> None:
    with pytest.raises(AttributeError, match="module 'trio_grpc' has no attribute 'open_chanel'"):
        trio_grpc.open_chanel  # type: ignore[attr-defined]  # noqa: B018


def test_each_name_brings_only_what_it_needs() -> None:
    """A client loads no server, and neither loads workers, or policies and service configs that nobody asked for."""
    script = (
        "import json, sys\n"
        "import trio_grpc\n"
        "start = [name for name in sys.modules if name.startswith('trio_grpc.')]\n"
        "trio_grpc.open_channel, trio_grpc.UnaryUnaryMethod\n"
        "client = set(sys.modules)\n"
        "trio_grpc.serve, trio_grpc.Servicer\n"
        "print(json.dumps([start, sorted(client), sorted(sys.modules)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    start, client, both = json.loads(done.stdout)
    assert start == ["trio_grpc._version"]
    assert not [name for name in client if re.fullmatch(r"trio_grpc\.(_server|_servicer|_handler_pool|_run)", name)]
    assert not [name for name in both if re.fullmatch(r"trio_grpc\.(_run|_workers|_shared_addresses)", name)]


def test_the_face_lists_its_names() -> None:
    """`__all__` is the truth: what stands in the face without being listed is there by accident."""
    assert list(trio_grpc.__all__) == list(dict.fromkeys(trio_grpc.__all__))
    unlisted = [
        name
        for name, thing in vars(trio_grpc).items()
        if not name.startswith("_")
        and not isinstance(thing, types.ModuleType)
        and name not in trio_grpc.__all__
        and name != "annotations"
    ]
    assert_none(unlisted, "public names of the face that __all__ does not list")


def test_run_takes_what_serve_takes() -> None:
    """Options that are new on `serve` go to `run` as well, with the same types and defaults."""
    ours, theirs = (dict(inspect.signature(function).parameters) for function in (trio_grpc.run, trio_grpc.serve))
    del ours["grace"], ours["workers"], theirs["task_status"]
    assert ours == theirs


def test_import_is_light() -> None:
    """No optional library, no second event loop, no thread, and no public wing comes along with any public name."""
    script = (
        "import json, sys, threading\n"
        "import trio\n"
        "before = set(sys.modules)\n"
        "from trio_grpc import *\n"
        "print(json.dumps([sorted(set(sys.modules) - before), threading.active_count()]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded, threads = json.loads(done.stdout)
    unwanted = re.compile(
        r"(asyncio|grpc|grpc_tools|grpclib|uvloop|sniffio|pytest|hypothesis|unittest|multiprocessing|concurrent|zstandard|backports|dns"
        r"|click|rich|opentelemetry|prometheus_client"
        r"|trio\.testing|trio_grpc\.(testing|protoc|protoc_plugin|health|reflection|channelz|orca|cli|call_log|opentelemetry"
        r"|prometheus|grpcio|__main__))(\.|$)"
    )
    assert_none([name for name in loaded if unwanted.match(name)], "import trio_grpc brings these along")
    assert threads == 1


# ---------------------------------------------------------------------------------------------------------------------
# The checkers themselves: what they must catch, and what they must let pass

CAUGHT: tuple[tuple[Callable[[str, ast.AST], list[str]], str], ...] = (
    (face_imports, "import trio_grpc"),
    (face_imports, "from trio_grpc import RpcError"),
    (face_imports, "def f():\n    from trio_grpc._transport import Connection"),
    (face_imports, "from ._transport import Connection"),
    (face_imports, "import importlib\nimportlib.import_module('trio_grpc')"),
    (byte_stream_calls, "async def f(self): await self._byte_stream.send(b'')"),
    (byte_stream_calls, "async def f(s): await s.send_all(b'')"),
    (byte_stream_calls, "write = stream.send_all"),
    (byte_stream_calls, "async def f(byte_stream): await byte_stream.receive()"),
    (byte_stream_calls, "def f(sock): sock.recv_into(b'')"),
    (swallowed_exceptions, "try: f()\nexcept: raise"),
    (swallowed_exceptions, "try: f()\nexcept BaseException: pass"),
    (swallowed_exceptions, "try: f()\nexcept (OSError, trio.Cancelled) as e: raise ValueError from e"),
    (swallowed_exceptions, "try: f()\nexcept BaseException:\n    def g(): raise"),
    (swallowed_exceptions, "with contextlib.suppress(trio.Cancelled): f()"),
    (swallowed_exceptions, "def f():\n    try: g()\n    finally: return 1"),
    (scoped_yields, "async def f():\n    async with trio.open_nursery() as n: yield n"),
    (scoped_yields, "@asynccontextmanager\nasync def f():\n    with trio.fail_after(1), g():\n        if x: yield"),
    (scoped_yields, "async def f(self):\n    with self._cancel_scope:\n        x = yield 1"),
)
LET_PASS: tuple[tuple[Callable[[str, ast.AST], list[str]], str], ...] = (
    (face_imports, "from trio_grpc._status import StatusCode"),
    (face_imports, "import trio\nfrom trio.lowlevel import checkpoint"),
    (byte_stream_calls, "async def f(call): await call.send(message); await call.receive()"),
    (byte_stream_calls, "async def f(self): await self._send_frames.send(frame)"),
    (swallowed_exceptions, "try: f()\nexcept Exception: pass"),
    (swallowed_exceptions, "try: f()\nexcept BaseException:\n    g()\n    raise"),
    (swallowed_exceptions, "try: f()\nfinally:\n    def g(): return 1"),
    (scoped_yields, "async def f():\n    async with trio.open_nursery() as n:\n        async def g(): yield 1"),
    (scoped_yields, "async def f():\n    with trio.fail_after(1): await g()\n    yield 1"),
    (scoped_yields, "@contextmanager\ndef f():\n    with trio.CancelScope() as scope: yield scope"),
)


@pytest.mark.parametrize(("checker", "source"), CAUGHT)
def test_checker_catches(checker: Callable[[str, ast.AST], list[str]], source: str) -> None:
    assert checker("_some_room", ast.parse(source))


@pytest.mark.parametrize(("checker", "source"), LET_PASS)
def test_checker_lets_pass(checker: Callable[[str, ast.AST], list[str]], source: str) -> None:
    assert checker("_some_room", ast.parse(source)) == []
