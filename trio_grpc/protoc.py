"""`python -m trio_grpc.protoc`: all the modules of a .proto in one command, with the protoc of the `tools` extra.

It makes `x_pb2.py` and `x_pb2.pyi` (protoc's own) and `x_trio_grpc.py` (ours) of each .proto, all in this process: no
plugin has to be on the PATH. It only joins the two generators and moves files; what a module contains is decided in
`protoc_plugin` and in protoc. With `--relative-imports` it also repairs the imports of protoc's modules, which knows
absolute ones only.
"""

from __future__ import annotations

import argparse
import importlib.resources
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from google.protobuf import descriptor_pb2
from google.protobuf.compiler import plugin_pb2

from trio_grpc.protoc_plugin import (
    generate,
    is_importable,
    is_relative,
    module_name,
    module_path,
    relative_name,
    render_import,
)

__all__ = ["main"]

_Protoc = Callable[[Sequence[str]], int]


class _Failure(Exception):
    """Ends the command with one line of explanation."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: The arguments after the program's name. Default: those of the process.

    Returns:
        The exit status: 0 when all files were written; 1 when nothing was, after one line (or protoc's own lines) on
        standard error. Wrong usage raises SystemExit(2), as argparse does.
    """
    arguments = _parse_arguments(argv)
    try:
        return _run(arguments)
    except _Failure as failure:
        print(f"trio_grpc.protoc: {failure}", file=sys.stderr)
        return 1
    except OSError as error:
        name = f"{error.filename}: " if error.filename is not None else ""
        print(f"trio_grpc.protoc: {name}{error.strerror or error}", file=sys.stderr)
        return 1


def _parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m trio_grpc.protoc",
        description="Generate x_pb2.py, x_pb2.pyi and x_trio_grpc.py from each x.proto.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "-I",
        "--proto_path",
        "--proto-path",
        dest="proto_path",
        metavar="DIR",
        action="append",
        help="a directory in which imports are searched, in the order given (default: the current directory)",
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, required=True, help="the root of the output; it is made if it is missing"
    )
    parser.add_argument(
        "--relative-imports",
        "--relative_imports",
        dest="relative_imports",
        action="store_true",
        help="let the generated modules import each other relatively, for an output inside a package",
    )
    parser.add_argument(
        "--snake-case",
        "--snake_case",
        dest="snake_case",
        action="store_true",
        help="name the methods of stubs and servicers get_thing where the .proto has GetThing",
    )
    parser.add_argument("files", metavar="FILE.proto", nargs="+", help="the files to generate from")
    return parser.parse_args(argv)


def _run(arguments: argparse.Namespace) -> int:
    protoc, well_known_types = _load_protoc()
    proto_path: list[str] = arguments.proto_path or ["."]
    files = _find_files(arguments.files, proto_path)
    out: Path = arguments.out

    # Everything is made aside first: a failure leaves the output as it was.
    with tempfile.TemporaryDirectory(prefix="trio_grpc-protoc-") as scratch_name:
        scratch = Path(scratch_name)
        staging = scratch / "out"
        staging.mkdir()
        own, all_files = scratch / "own", scratch / "all"
        common = ["protoc", *(f"-I{directory}" for directory in proto_path), f"-I{well_known_types}"]
        # Two runs: a descriptor set either lists exactly the files that were asked for, by the names that imports give
        # them, or has what they import too.
        outputs = [f"--python_out={staging}", f"--pyi_out={staging}", f"--descriptor_set_out={own}"]
        status = protoc([*common, *outputs, *files])
        if status == 0:
            outputs = [f"--descriptor_set_out={all_files}", "--include_imports", "--include_source_info"]
            status = protoc([*common, *outputs, *files])
        if status != 0:
            return 1  # protoc has said why
        own_files = descriptor_pb2.FileDescriptorSet.FromString(own.read_bytes()).file
        request = plugin_pb2.CodeGeneratorRequest(
            file_to_generate=[file.name for file in own_files],
            parameter=",".join(option for option in ("relative_imports", "snake_case") if getattr(arguments, option)),
            proto_file=descriptor_pb2.FileDescriptorSet.FromString(all_files.read_bytes()).file,
        )
        response = generate(request)
        if response.error:
            raise _Failure(response.error)
        for generated in response.file:
            (staging / generated.name).write_bytes(generated.content.encode())
        if arguments.relative_imports:
            for file in own_files:
                _make_imports_relative(staging, file, frozenset(request.file_to_generate))
        _move(staging, out)
    return 0


def _load_protoc() -> tuple[_Protoc, str]:
    """The protoc of grpcio-tools, and the directory of the .proto files that come with it."""
    try:
        from grpc_tools import protoc  # noqa: PLC0415 (an extra, and only this command needs it)
    except ImportError as error:
        raise _Failure(f"needs grpcio-tools ({error}); install it with: pip install 'trio-grpc[tools]'") from error
    return protoc.main, str(importlib.resources.files("grpc_tools") / "_proto")


def _find_files(files: Iterable[str], proto_path: Sequence[str]) -> list[str]:
    """Spell files so that protoc finds them below a directory of imports, or say in one line why it cannot.

    protoc compares paths as they are written: it does not see that `/home/me/protos/x.proto` lies below `protos`.
    """
    for directory in proto_path:
        if not Path(directory).is_dir():
            raise _Failure(f"{directory}: no such directory (given by -I)")
    return [_find_file(file, proto_path) for file in files]


def _find_file(file: str, proto_path: Sequence[str]) -> str:
    # Not Path.resolve: symbolic links stay what they are, as in protoc.
    path = Path(os.path.abspath(file))  # noqa: PTH100
    if path.is_file():
        for directory in proto_path:
            absolute = os.path.abspath(directory)  # noqa: PTH100
            if path.is_relative_to(absolute):
                return str(Path(directory, path.relative_to(absolute)))
    if any(Path(directory, file).is_file() for directory in proto_path):
        return file  # the name that imports give it
    problem = "does not lie" if path.is_file() else "no such file, neither here nor"
    raise _Failure(f"{file}: {problem} below {' or '.join(proto_path)}")


def _make_imports_relative(root: Path, file: descriptor_pb2.FileDescriptorProto, generated: frozenset[str]) -> None:
    """Rewrite the imports of the two modules that protoc made of a file.

    protoc writes one import per line, in few forms and at the start of the line; nothing else in its output looks like
    one.
    """
    own_name = module_name(file.name, "_pb2")
    package = own_name.rpartition(".")[0]
    relatives = {
        name: relative_name(name, package)
        for name in (
            module_name(dependency, "_pb2") for dependency in file.dependency if is_relative(dependency, generated)
        )
    }

    def from_import(match: re.Match[str]) -> str:
        origin, names = match.groups()
        if origin in relatives:  # an `import public`: the names of a module
            return f"from {relatives[origin]} import {names}"
        last_part, _, alias = names.partition(" as ")
        name = f"{origin}.{last_part}"
        return render_import(relatives[name], alias) if name in relatives else match[0]

    def plain_import(match: re.Match[str]) -> str:
        name, alias = match.groups()
        return render_import(relatives[name], alias) if name in relatives else match[0]

    def dynamic_import(match: re.Match[str]) -> str:
        alias, name = match.groups()
        if name not in relatives:
            return match[0]
        relative = relatives[name]
        if all(is_importable(part) for part in relative.lstrip(".").split(".")):
            return render_import(relative, alias)
        return f"{alias} = importlib.import_module('{relative}', __package__)"

    for extension in (".py", ".pyi"):
        path = root / module_path(file.name, "_pb2", extension)
        text = path.read_text(encoding="utf-8")
        text = re.sub(r"^from (\S+) import (.+)$", from_import, text, flags=re.MULTILINE)
        text = re.sub(r"^import (\S+) as (\S+)$", plain_import, text, flags=re.MULTILINE)
        text = re.sub(r"^(\S+) = importlib\.import_module\('(.+)'\)$", dynamic_import, text, flags=re.MULTILINE)
        # The classes' `__module__`, by which pickle finds them again.
        text = text.replace(f"(DESCRIPTOR, '{own_name}', _globals)", "(DESCRIPTOR, __name__, _globals)")
        path.write_bytes(text.encode())


def _move(source: Path, target: Path) -> None:
    """Copy a tree over another one; the files in `target` that are not in `source` stay."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.rglob("*")):
        destination = target / path.relative_to(source)
        if path.is_dir():
            destination.mkdir(exist_ok=True)
        else:
            destination.write_bytes(path.read_bytes())


if __name__ == "__main__":
    sys.exit(main())
