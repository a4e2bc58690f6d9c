"""The code generator: turns the services of .proto files into `x_trio_grpc.py` modules.

This is `protoc-gen-trio_grpc`, a plugin of protoc, and the engine of `python -m trio_grpc.protoc`. It reads descriptors
and writes text: no file, no process and nothing of the runtime may live here, so that generating needs protobuf only.

What the generated module promises:

- It is written for every .proto that protoc is asked for, also for one without services (then it is empty but for its
  docstring). Build rules can so name their outputs without parsing the .proto; grpc's own Python plugin does the
  same.
- It depends on nothing but the .proto and what that imports: the same input gives the same bytes.
- It imports `_pb2` modules as protoc's own Python code does: absolute, from the root of the output, or relative with
  the parameter `relative_imports`. A path that no import statement can spell (`c/in/d.proto`) goes through
  `importlib`, and its messages are `Any` to type checkers, which cannot follow it either.
- Attributes have the names of the .proto, or with the parameter `snake_case` the same words in lower case with
  underscores between them. Python keywords, names that start with two underscores and names that the generated classes
  need for themselves get underscores at the end, as few as make them usable, and so does the later one of two rpcs
  that would get the same name; the name on the wire never changes.
"""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs
from google.protobuf import descriptor_pb2
from google.protobuf.compiler import plugin_pb2

__all__ = [
    "generate",
    "is_importable",
    "is_relative",
    "main",
    "module_name",
    "module_path",
    "relative_name",
    "render_import",
]

# protoc refuses files of editions outside this range. The generated code depends on no feature of any edition, so the
# range is all that exist.
_MINIMUM_EDITION = descriptor_pb2.EDITION_PROTO2
_MAXIMUM_EDITION = descriptor_pb2.EDITION_2024

# Field numbers in descriptor.proto, which is how SourceCodeInfo spells a place in a file.
_FILE_PACKAGE = 2
_FILE_SERVICE = 6
_SERVICE_METHOD = 2


class _GeneratorError(Exception):
    """A request that cannot be generated from; the text is meant for the user."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a plugin of protoc: a CodeGeneratorRequest on standard input, a CodeGeneratorResponse on standard output.

    Args:
        argv: Arguments after the program's name; a plugin gets none from protoc. Default: those of the process.

    Returns:
        The exit status: 0 also when the response carries an error (protoc reports it), 1 when there was no request.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if arguments or sys.stdin.isatty():
        print(
            "protoc-gen-trio_grpc: a plugin that protoc runs (protoc --trio_grpc_out=DIR x.proto); "
            "to run it by hand, use: python -m trio_grpc.protoc -I. --out=DIR x.proto",
            file=sys.stderr,
        )
        return 1
    try:
        request = plugin_pb2.CodeGeneratorRequest.FromString(sys.stdin.buffer.read())
    except Exception as error:
        print(f"protoc-gen-trio_grpc: standard input is not a CodeGeneratorRequest: {error}", file=sys.stderr)
        return 1
    sys.stdout.buffer.write(generate(request).SerializeToString(deterministic=True))
    sys.stdout.buffer.flush()
    return 0


def generate(request: plugin_pb2.CodeGeneratorRequest) -> plugin_pb2.CodeGeneratorResponse:
    """Answer one request of protoc.

    Args:
        request: The files to generate for, all the files that they import, and the parameter.

    Returns:
        One generated file for each file to generate, or the error that protoc shall report.
    """
    response = plugin_pb2.CodeGeneratorResponse(
        supported_features=plugin_pb2.CodeGeneratorResponse.FEATURE_PROTO3_OPTIONAL
        | plugin_pb2.CodeGeneratorResponse.FEATURE_SUPPORTS_EDITIONS,
        minimum_edition=_MINIMUM_EDITION,
        maximum_edition=_MAXIMUM_EDITION,
    )
    try:
        options = _parse_parameter(request.parameter)
        files = {file.name: file for file in request.proto_file}
        types = _index_types(request.proto_file)
        for name in request.file_to_generate:
            if name not in files:
                raise _GeneratorError(f"{name}: the request does not contain this file")
            module = _Module(files[name], types, generated=frozenset(request.file_to_generate), options=options)
            response.file.add(name=module_path(name), content=module.render())
    except _GeneratorError as error:
        del response.file[:]
        response.error = str(error)
    return response


def module_name(proto_name: str, suffix: str) -> str:
    """The dotted name of a module that is generated for a .proto, by protoc's own rules.

    Args:
        proto_name: The file's name as imports spell it, such as `c/in/d-e.proto`.
        suffix: What the module's name ends with, such as `_pb2`.

    Returns:
        The name, such as `c.in.d_e_pb2`. It need not be one that an import statement can spell.
    """
    for ending in (".protodevel", ".proto"):
        if proto_name.endswith(ending):
            proto_name = proto_name[: -len(ending)]
            break
    return proto_name.replace("-", "_").replace("/", ".") + suffix


def module_path(proto_name: str, suffix: str = "_trio_grpc", extension: str = ".py") -> str:
    """The path of a generated module below the output directory, always with forward slashes.

    Args:
        proto_name: The file's name as imports spell it.
        suffix: What the module's name ends with.
        extension: What the file's name ends with.

    Returns:
        The path. Dots inside directory names separate packages too, as in protoc.
    """
    return module_name(proto_name, suffix).replace(".", "/") + extension


def is_importable(part: str) -> bool:
    """Whether one part of a dotted module name can stand in an import statement."""
    return part.isidentifier() and not keyword.iskeyword(part)


def is_relative(proto_name: str, generated: frozenset[str]) -> bool:
    """Whether the modules of this .proto lie beside the generated code, so that relative imports can reach them.

    Files under `google/` come from installed distributions (protobuf, googleapis-common-protos) unless they are
    generated in the same run; everything else is taken to live in the same output directory, also when another run
    generates it.

    Args:
        proto_name: The imported file's name.
        generated: The names of the files that are generated in this run.

    Returns:
        True for a relative, False for an installed file.
    """
    return proto_name in generated or not proto_name.startswith("google/")


def relative_name(module: str, package: str) -> str:
    """Spell a module relative to a package.

    Args:
        module: The absolute dotted name of the module.
        package: The dotted name of the package that imports it; empty for the root of the output.

    Returns:
        The name with its leading dots, such as `..in.d_e_pb2`.
    """
    here = package.split(".") if package else []
    there = module.split(".")
    common = 0
    while common < min(len(here), len(there) - 1) and here[common] == there[common]:
        common += 1
    return "." * (len(here) - common + 1) + ".".join(there[common:])


def render_import(name: str, alias: str) -> str:
    """The import statement for a module.

    Args:
        name: The module's dotted name, absolute or with leading dots.
        alias: What the importing module calls it.

    Returns:
        The statement, on one line.
    """
    package, dot, last_part = name.rpartition(".")
    if not dot:
        return f"import {name} as {alias}"
    if not package.strip("."):
        package += dot  # `.x` is x in the package `.`, while `..a.x` is x in `..a`
    return f"from {package} import {last_part} as {alias}"


@attrs.frozen
class _Options:
    """What the plugin's parameter asks for."""

    relative_imports: bool = False
    snake_case: bool = False


def _parse_parameter(parameter: str) -> _Options:
    """Read the plugin's parameter: names of options, between commas."""
    chosen: dict[str, bool] = {}
    known = [field.name for field in attrs.fields(_Options)]
    for option in filter(None, (option.strip() for option in parameter.split(","))):
        if option not in known:
            raise _GeneratorError(f"unknown option {option!r}; the options are: {', '.join(known)}")
        chosen[option] = True
    return _Options(**chosen)


@attrs.frozen
class _MessageType:
    """Where a message type lives."""

    file: str
    path: tuple[str, ...]  # names of the classes from the module inwards


def _index_types(files: Iterable[descriptor_pb2.FileDescriptorProto]) -> dict[str, _MessageType]:
    """All message types of the request by their full name with a leading dot, as rpcs refer to them."""
    types: dict[str, _MessageType] = {}

    def add(file: str, scope: str, path: tuple[str, ...], message: descriptor_pb2.DescriptorProto) -> None:
        path = (*path, message.name)
        full_name = f"{scope}.{message.name}"
        types[full_name] = _MessageType(file, path)
        for nested in message.nested_type:
            add(file, full_name, path, nested)

    for file in files:
        for message in file.message_type:
            add(file.name, f".{file.package}" if file.package else "", (), message)
    return types


@attrs.frozen
class _Kind:
    """How one of the four kinds of rpc is spelt."""

    cardinality: str
    method_class: str
    requests_are_streamed: bool
    replies_are_streamed: bool


_KINDS = {
    (kind.requests_are_streamed, kind.replies_are_streamed): kind
    for kind in (
        _Kind("UNARY_UNARY", "UnaryUnaryMethod", False, False),
        _Kind("UNARY_STREAM", "UnaryStreamMethod", False, True),
        _Kind("STREAM_UNARY", "StreamUnaryMethod", True, False),
        _Kind("STREAM_STREAM", "StreamStreamMethod", True, True),
    )
}


@attrs.frozen
class _Spelling:
    """How a message type is spelt in the generated module: as a value, and as a type."""

    value: str
    annotation: str


@attrs.frozen
class _Rpc:
    """One rpc, ready to be written."""

    attribute: str  # its Python name
    constant: str  # the module's name for its Method
    name: str  # its name on the wire
    kind: _Kind
    request: _Spelling
    reply: _Spelling
    idempotent: bool
    doc: str


@attrs.frozen
class _Service:
    """One service, ready to be written."""

    name: str
    full_name: str
    rpcs: tuple[_Rpc, ...]
    doc: str


class _Names:
    """The names of one scope: gives each wish a name that is still free."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def take(self, wish: str) -> str:
        """Take the wish, or the wish with as few underscores at the end as make it free."""
        while wish in self._taken:
            wish += "_"
        self._taken.add(wish)
        return wish


class _Module:
    """The generated module of one .proto."""

    def __init__(
        self,
        file: descriptor_pb2.FileDescriptorProto,
        types: Mapping[str, _MessageType],
        *,
        generated: frozenset[str],
        options: _Options,
    ) -> None:
        self._file = file
        self._types = types
        self._generated = generated
        self._relative_imports = options.relative_imports
        self._comments = _read_comments(file)
        self._private_names = False
        attributes = [
            _attribute_names([method.name for method in service.method], snake_case=options.snake_case)
            for service in file.service
        ]

        # A name that the module imports must not be the name of an attribute too: inside the class it would mean the
        # attribute, to Python and to type checkers.
        self._names = _Names(
            [name for names in attributes for name in names]
            + [f"{service.name}{suffix}" for service in file.service for suffix in ("Stub", "Servicer")]
        )
        self._runtime = self._names.take("trio_grpc")
        self._any = self._names.take("Any")
        self._async_iterator = self._names.take("AsyncIterator")
        self._awaitable = self._names.take("Awaitable")
        self._importlib = self._names.take("importlib")
        self._aliases = self._choose_aliases()
        self._services = tuple(
            self._read_service(index, service, names)
            for index, (service, names) in enumerate(zip(file.service, attributes, strict=True))
        )

    def _message(self, type_name: str) -> _MessageType:
        try:
            return self._types[type_name]
        except KeyError:
            raise _GeneratorError(f"{self._file.name}: the request does not define the message {type_name}") from None

    def _choose_aliases(self) -> dict[str, str]:
        """The module's names for the `_pb2` modules that it needs, by the name of their .proto.

        The last part of the module's name where that is unmistakable, else all of it. The file's own is among them even
        if all messages are from elsewhere: it describes the services, to reflection.
        """
        needed = sorted(
            {
                self._message(type_name).file
                for service in self._file.service
                for method in service.method
                for type_name in (method.input_type, method.output_type)
            }.union({self._file.name} if self._file.service else ()),
            key=lambda name: module_name(name, "_pb2"),
        )
        last_parts = [module_name(name, "_pb2").rpartition(".")[2] for name in needed]
        aliases: dict[str, str] = {}
        for name, last_part in zip(needed, last_parts, strict=True):
            wish = last_part
            if last_parts.count(last_part) > 1:
                # protoc's own way to make one identifier of a dotted name.
                wish = module_name(name, "_pb2").replace("_", "__").replace(".", "_dot_")
            # Exactly one leading underscore: two would be mangled inside a class.
            wish = "_" + re.sub(r"\W", "_", wish).lstrip("_")
            aliases[name] = self._names.take(wish)
        return aliases

    def _read_service(
        self, index: int, service: descriptor_pb2.ServiceDescriptorProto, attributes: Sequence[str]
    ) -> _Service:
        place = (_FILE_SERVICE, index)
        package = f"{self._file.package}." if self._file.package else ""
        deprecated = service.options.deprecated or self._file.options.deprecated
        return _Service(
            name=service.name,
            full_name=package + service.name,
            rpcs=tuple(
                self._read_rpc((*place, _SERVICE_METHOD, number), service.name, method, attribute)
                for number, (method, attribute) in enumerate(zip(service.method, attributes, strict=True))
            ),
            doc=_join_paragraphs(
                self._comments.get(place, ""), "Deprecated: the .proto says so of this service." if deprecated else ""
            ),
        )

    def _read_rpc(
        self, place: tuple[int, ...], service: str, method: descriptor_pb2.MethodDescriptorProto, attribute: str
    ) -> _Rpc:
        options = method.options
        return _Rpc(
            attribute=attribute,
            constant=self._names.take(f"_method_{service}_{method.name}"),
            name=method.name,
            kind=_KINDS[method.client_streaming, method.server_streaming],
            request=self._spell(method.input_type),
            reply=self._spell(method.output_type),
            # descriptor.proto: IDEMPOTENT may have side effects, but running it again adds none; NO_SIDE_EFFECTS
            # implies it.
            idempotent=options.idempotency_level
            in (descriptor_pb2.MethodOptions.IDEMPOTENT, descriptor_pb2.MethodOptions.NO_SIDE_EFFECTS),
            doc=_join_paragraphs(
                self._comments.get(place, ""),
                "Deprecated: the .proto says so of this rpc." if options.deprecated else "",
            ),
        )

    def _spell(self, type_name: str) -> _Spelling:
        message = self._message(type_name)
        value = self._aliases[message.file]
        followable = self._import_is_followable(message.file)
        for part in message.path:
            if keyword.iskeyword(part):
                value = f"getattr({value}, {_quote(part)})"
                followable = False
            else:
                value = f"{value}.{part}"
            if part.startswith("__"):
                followable = False  # inside a class body this would be mangled
            elif part.startswith("_"):
                self._private_names = True
        return _Spelling(value, value if followable else self._any)

    def _module_to_import(self, proto_name: str) -> str:
        """The name of a `_pb2` module as this module imports it: absolute, or with leading dots."""
        name = module_name(proto_name, "_pb2")
        if self._relative_imports and is_relative(proto_name, self._generated):
            own_package = module_name(self._file.name, "").rpartition(".")[0]
            return relative_name(name, own_package)
        return name

    def _import_is_followable(self, proto_name: str) -> bool:
        return all(is_importable(part) for part in self._module_to_import(proto_name).lstrip(".").split("."))

    def _render_import(self, proto_name: str) -> str:
        name, alias = self._module_to_import(proto_name), self._aliases[proto_name]
        if self._import_is_followable(proto_name):
            return render_import(name, alias)
        anchor = ", __package__" if name.startswith(".") else ""
        return f"{alias} = {self._importlib}.import_module({_quote(name)}{anchor})"

    def render(self) -> str:
        """The text of the module."""
        return "\n".join(self._render()) + "\n"

    def _render(self) -> Iterator[str]:
        rpcs = [rpc for service in self._services for rpc in service.rpcs]
        yield f"# Generated by protoc-gen-trio_grpc from {_escape_line(self._file.name)}. Do not edit."
        yield "# isort: skip_file"
        yield "# fmt: off"
        if self._private_names:
            # The .proto uses names that start with an underscore, which Python takes for private.
            yield "# pyright: reportPrivateUsage=false"
        title = f"The services of `{self._file.name}`."
        if not self._services:
            title = f"`{self._file.name}` has no services."
        yield from _render_docstring(_join_paragraphs(title, self._comments.get((_FILE_PACKAGE,), "")), "")
        yield ""
        yield "from __future__ import annotations"
        if not self._services:
            yield ""
            yield "__all__: list[str] = []"
            return
        yield ""
        standard: list[str] = []
        unfollowable = [name for name in self._aliases if not self._import_is_followable(name)]
        if unfollowable:
            standard.append(_import_as("importlib", self._importlib))
        if any(rpc.kind.replies_are_streamed for rpc in rpcs):
            names = ", ".join(
                _name_as(name, alias)
                for name, alias in (("AsyncIterator", self._async_iterator), ("Awaitable", self._awaitable))
            )
            standard.append(f"from collections.abc import {names}")
        if any(self._any in (rpc.request.annotation, rpc.reply.annotation) for rpc in rpcs):
            standard.append(f"from typing import {_name_as('Any', self._any)}")
        if standard:
            yield from standard
            yield ""
        yield _import_as("trio_grpc", self._runtime)
        followable = [name for name in self._aliases if name not in unfollowable]
        if followable:
            yield ""
            yield from (self._render_import(name) for name in followable)
        if unfollowable:
            yield ""
            yield "# No import statement can spell these modules; to a type checker their messages are Any."
            yield from (self._render_import(name) for name in unfollowable)
        yield ""
        yield "__all__ = ("
        for name in sorted(f"{service.name}{suffix}" for service in self._services for suffix in ("Servicer", "Stub")):
            yield f"    {_quote(name)},"
        yield ")"
        for service in self._services:
            if service.rpcs:
                yield ""
            for rpc in service.rpcs:
                yield from self._render_method(service, rpc)
            yield ""
            yield ""
            yield from self._render_stub(service)
            yield ""
            yield ""
            yield from self._render_servicer(service)
            if service is not self._services[-1]:
                yield ""

    def _render_method(self, service: _Service, rpc: _Rpc) -> Iterator[str]:
        yield f"{rpc.constant}: {self._runtime}.Method["
        yield f"    {rpc.request.annotation},"
        yield f"    {rpc.reply.annotation},"
        yield f"] = {self._runtime}.Method("
        yield f"    service={_quote(service.full_name)},"
        yield f"    name={_quote(rpc.name)},"
        yield f"    cardinality={self._runtime}.Cardinality.{rpc.kind.cardinality},"
        yield f"    request_type={rpc.request.value},"
        yield f"    response_type={rpc.reply.value},"
        if rpc.idempotent:
            yield "    idempotent=True,"
        yield ")"

    def _render_stub(self, service: _Service) -> Iterator[str]:
        yield f"class {service.name}Stub:"
        yield from _render_docstring(service.doc or f"Calls the service `{service.full_name}`.", "    ")
        yield ""
        yield f"    def __init__(self, channel: {self._runtime}.Channel) -> None:"
        yield from _render_docstring("Makes a stub; its calls go through the channel.", "        ")
        for rpc in service.rpcs:
            method_class = f"{self._runtime}.{rpc.kind.method_class}"
            yield f"        self.{rpc.attribute}: {method_class}["
            yield f"            {rpc.request.annotation},"
            yield f"            {rpc.reply.annotation},"
            yield f"        ] = {method_class}(channel, {rpc.constant})"
            if rpc.doc:
                yield from _render_docstring(rpc.doc, "        ")

    def _render_servicer(self, service: _Service) -> Iterator[str]:
        yield f"class {service.name}Servicer({self._runtime}.Servicer):"
        yield from _render_docstring(service.doc or f"Serves `{service.full_name}`; override its rpcs.", "    ")
        yield ""
        # Their types are declared by the base class.
        yield f"    __trio_grpc_pb2__ = {self._aliases[self._file.name]}"
        # Keys are attributes: the runtime looks handlers up by them.
        if service.rpcs:
            yield "    __trio_grpc_methods__ = {"
            for rpc in service.rpcs:
                yield f"        {_quote(rpc.attribute)}: {rpc.constant},"
            yield "    }"
        else:
            yield "    __trio_grpc_methods__ = {}"
        for rpc in service.rpcs:
            yield ""
            yield from self._render_handler(service, rpc)

    def _render_handler(self, service: _Service, rpc: _Rpc) -> Iterator[str]:
        request = f"request: {rpc.request.annotation}"
        if rpc.kind.requests_are_streamed:
            request = f"requests: {self._runtime}.RequestStream[{rpc.request.annotation}]"
        # Not `async def` for streamed replies: an override may be an async generator or a coroutine function.
        define, returns = "async def", rpc.reply.annotation
        if rpc.kind.replies_are_streamed:
            define, returns = "def", f"{self._async_iterator}[{rpc.reply.annotation}] | {self._awaitable}[None]"
        yield f"    {define} {rpc.attribute}("
        yield "        self,"
        yield f"        {request},"
        yield f"        context: {self._runtime}.ServicerContext[{rpc.reply.annotation}],"
        # Positional only, so that an override may name its parameters as it likes.
        yield "        /,"
        yield f"    ) -> {returns}:"
        if rpc.doc:
            yield from _render_docstring(rpc.doc, "        ")
        yield f"        raise {self._runtime}.RpcError("
        yield f"            {self._runtime}.StatusCode.UNIMPLEMENTED,"
        yield f"            {_quote(f'{service.full_name}/{rpc.name} is not implemented')},"
        yield "        )"


def _attribute_names(names: Sequence[str], *, snake_case: bool) -> list[str]:
    """The Python names of rpcs, in order."""
    wishes = [_snake_case(name) for name in names] if snake_case else list(names)
    # A name that need not change is not taken away by one that would become the same.
    unchanged = [name == wish and _is_usable_attribute(name) for name, wish in zip(names, wishes, strict=True)]
    scope = _Names(name for name, as_it_is in zip(names, unchanged, strict=True) if as_it_is)
    result: list[str] = []
    for wish, as_it_is in zip(wishes, unchanged, strict=True):
        if as_it_is:
            result.append(wish)
            continue
        if not _is_usable_attribute(wish):
            wish += "_"
            # Two underscores in front are mangled inside a class unless there are two behind as well.
            if wish.startswith("__") and not wish.endswith("__"):
                wish += "_"
        result.append(scope.take(wish))
    return result


def _snake_case(name: str) -> str:
    """`GetHTTPStatus` as `get_http_status`: a word begins where capitals begin, or end before small letters."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _is_usable_attribute(name: str) -> bool:
    # All that the generated classes and their bases have for themselves starts with two underscores.
    return not keyword.iskeyword(name) and not name.startswith("__")


def _name_as(name: str, alias: str) -> str:
    return name if name == alias else f"{name} as {alias}"


def _import_as(name: str, alias: str) -> str:
    return f"import {_name_as(name, alias)}"


def _read_comments(file: descriptor_pb2.FileDescriptorProto) -> dict[tuple[int, ...], str]:
    """The comments of a file by the place that they belong to."""
    comments: dict[tuple[int, ...], str] = {}
    for location in file.source_code_info.location:
        text = _join_paragraphs(_clean_comment(location.leading_comments), _clean_comment(location.trailing_comments))
        if text:
            comments[tuple(location.path)] = text
    return comments


def _clean_comment(comment: str | bytes) -> str:
    """A comment without the margin that its markers leave, without blank lines around it."""
    if isinstance(comment, bytes):
        # What protobuf gives for text that is not UTF-8; protoc does not care about the encoding of comments.
        comment = comment.decode("utf-8", "replace")
    lines = [line.rstrip() for line in re.split(r"\r\n|\r|\n", comment)]
    lines[0] = lines[0].lstrip("*")  # what is left of `/**`
    margin = min((len(line) - len(line.lstrip(" ")) for line in lines if line), default=0)
    return "\n".join(line[margin:] for line in lines).strip("\n")


def _join_paragraphs(*paragraphs: str) -> str:
    return "\n\n".join(filter(None, paragraphs))


# Characters that would end or disguise a line of source: controls except tab and newline, line and paragraph
# separators, marks that change the direction of text, the byte order mark.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def _escape_unsafe(text: str) -> str:
    def escape(match: re.Match[str]) -> str:
        code = ord(match[0])
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

    return _UNSAFE.sub(escape, text)


def _escape_line(text: str) -> str:
    return _escape_unsafe(text.replace("\n", "\\n"))


def _quote(text: str) -> str:
    """A Python string literal with double quotes."""
    return '"' + _escape_line(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _render_docstring(text: str, indent: str) -> Iterator[str]:
    """The lines of a docstring that evaluates to the text (with its indentation, as docstrings have it)."""
    # No two quotes in a row, none at the end.
    text = re.sub(r'"(?=")|"\Z', r'\\"', _escape_unsafe(text.replace("\\", "\\\\")))
    first, *rest = text.split("\n")
    if not rest:
        yield f'{indent}"""{first}"""'
        return
    yield f'{indent}"""{first}'
    for line in rest:
        yield f"{indent}{line}" if line else ""
    yield f'{indent}"""'


if __name__ == "__main__":
    sys.exit(main())
