"""`python -m trio_grpc.protoc`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trio_grpc.protoc import main

ROOT = Path(__file__).parent.parent
SAMPLES = Path(__file__).parent / "protos" / "samples"

PROTO = """\
syntax = "proto3";
package x;
message Thing {}
// Does things.
service Things {
  rpc Do(Thing) returns (Thing);
}
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one .proto, and the current directory."""
    (tmp_path / "x.proto").write_text(PROTO)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files_in(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}


def failure_of(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line with which a command fails."""
    assert main(arguments) == 1
    output, error = capfd.readouterr()
    assert output == ""
    assert error.startswith("trio_grpc.protoc: ")
    assert error.count("\n") == 1
    return error.removeprefix("trio_grpc.protoc: ").removesuffix("\n")


def test_makes_the_three_modules_of_a_file(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-I.", "--out=.", "x.proto"]) == 0
    assert files_in(project) == {"x.proto", "x_pb2.py", "x_pb2.pyi", "x_trio_grpc.py"}
    assert capfd.readouterr() == ("", "")


def test_runs_as_a_module(project: Path) -> None:
    command = [sys.executable, "-m", "trio_grpc.protoc", "-I.", "--out=.", "x.proto"]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert "x_trio_grpc.py" in files_in(project)


def test_imports_are_searched_in_the_current_directory_by_default(project: Path) -> None:
    assert main(["--out=.", "x.proto"]) == 0
    assert "x_trio_grpc.py" in files_in(project)


def test_an_output_directory_that_is_missing_is_made(project: Path) -> None:
    assert main(["--out=some/new place", "x.proto"]) == 0
    assert files_in(project / "some" / "new place") == {"x_pb2.py", "x_pb2.pyi", "x_trio_grpc.py"}


def test_files_are_found_by_path_and_by_the_name_that_imports_use(project: Path) -> None:
    (project / "protos" / "sub-dir").mkdir(parents=True)
    (project / "other").mkdir()
    (project / "protos" / "sub-dir" / "y.proto").write_text(
        'syntax = "proto3"; import "z.proto"; message Y { Z z = 1; }'
    )
    (project / "other" / "z.proto").write_text('syntax = "proto3"; message Z {}')
    path = ["-I", "protos", "--proto_path=other"]
    assert main([*path, "--out=1", "protos/sub-dir/y.proto"]) == 0
    assert main([*path, "--out=2", "sub-dir/y.proto"]) == 0
    assert main([*path, "--out=3", str(project / "protos" / "sub-dir" / "y.proto"), "z.proto"]) == 0
    made = {"sub_dir/y_pb2.py", "sub_dir/y_pb2.pyi", "sub_dir/y_trio_grpc.py"}
    assert files_in(project / "1") == made
    assert files_in(project / "2") == made
    assert files_in(project / "3") == made | {"z_pb2.py", "z_pb2.pyi", "z_trio_grpc.py"}


def test_only_what_was_asked_for_is_generated_also_if_imports_have_similar_names(project: Path) -> None:
    (project / "a-b.proto").write_text('syntax = "proto3"; package one; message M {}')
    (project / "a_b.proto").write_text(
        'syntax = "proto3"; import "a-b.proto"; service S { rpc X(one.M) returns (one.M); }'
    )
    assert main(["--out=out", "a_b.proto"]) == 0
    assert "class SStub" in (project / "out" / "a_b_trio_grpc.py").read_text()


def test_other_files_of_the_output_stay(project: Path) -> None:
    (project / "out").mkdir()
    (project / "out" / "mine.py").write_text("mine")
    (project / "out" / "x_pb2.py").write_text("old")
    assert main(["--out=out", "x.proto"]) == 0
    assert (project / "out" / "mine.py").read_text() == "mine"
    assert (project / "out" / "x_pb2.py").read_text() != "old"


def test_comments_are_taken_along(project: Path) -> None:
    assert main(["--out=.", "x.proto"]) == 0
    assert '"""Does things."""' in (project / "x_trio_grpc.py").read_text()


def test_comments_that_are_not_utf8_do_no_harm(project: Path) -> None:
    (project / "x.proto").write_bytes(PROTO.encode().replace(b"things.", b"caf\xe9."))
    assert main(["--out=.", "x.proto"]) == 0
    compile((project / "x_trio_grpc.py").read_bytes(), "x_trio_grpc.py", "exec")


def test_relative_imports_reach_protocs_modules_too(project: Path) -> None:
    files = [str(path) for path in sorted(SAMPLES.rglob("*.proto"))]
    assert main([f"-I{SAMPLES}", "--out=out", "--relative-imports", *files]) == 0
    imports = {
        name: [
            line
            for line in (project / "out" / name).read_text().splitlines()
            if ("import" in line and "_pb2" in line and not line.startswith(("#", "DESCRIPTOR")))
        ]
        for name in ("a/b_pb2.py", "a/b_pb2.pyi", "public_imported_pb2.py", "public_imported_pb2.pyi")
    }
    assert imports["a/b_pb2.py"] == [
        "from ..c_x import plain_pb2 as c__x_dot_plain__pb2",
        "c_dot_in_dot_d__e__pb2 = importlib.import_module('..c.in.d_e_pb2', __package__)",
        "from ..deep.er.still import types_pb2 as deep_dot_er_dot_still_dot_types__pb2",
        "from ..dotted import name_with_hyphens_pb2 as dotted_dot_name__with__hyphens__pb2",
        "from google.protobuf import empty_pb2 as google_dot_protobuf_dot_empty__pb2",
        "from .. import no_package_pb2 as no__package__pb2",
    ]
    assert imports["a/b_pb2.pyi"] == [
        "from ..c_x import plain_pb2 as _plain_pb2",
        "_d_e_pb2 = importlib.import_module('..c.in.d_e_pb2', __package__)",
        "from ..deep.er.still import types_pb2 as _types_pb2",
        "from ..dotted import name_with_hyphens_pb2 as _name_with_hyphens_pb2",
        "from google.protobuf import empty_pb2 as _empty_pb2",
        "from .. import no_package_pb2 as _no_package_pb2",
    ]
    assert imports["public_imported_pb2.py"][-1] == "from .left.types_pb2 import *"
    assert imports["public_imported_pb2.pyi"][-1] == "from .left.types_pb2 import Thing as Thing"


def test_a_missing_file_is_named(capfd: pytest.CaptureFixture[str], project: Path) -> None:
    message = failure_of(capfd, "-I.", "--out=out", "x.proto", "nowhere/y.proto")
    assert message == "nowhere/y.proto: no such file, neither here nor below ."
    assert files_in(project) == {"x.proto"}


def test_a_missing_directory_of_imports_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert failure_of(capfd, "-Inowhere", "--out=.", "x.proto") == "nowhere: no such directory (given by -I)"


def test_an_output_that_cannot_be_written_is_named(capfd: pytest.CaptureFixture[str], project: Path) -> None:
    (project / "out").write_text("a file")
    assert failure_of(capfd, "--out=out", "x.proto") == "out: File exists"


def test_without_grpcio_tools_it_says_what_to_install(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "grpc_tools", None)
    message = failure_of(capfd, "--out=.", "x.proto")
    assert "grpcio-tools" in message
    assert message.endswith("install it with: pip install 'trio-grpc[tools]'")


def test_protocs_own_errors_are_shown_and_nothing_is_written(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (project / "bad.proto").write_text('syntax = "proto3"; message {')
    assert main(["--out=out", "x.proto", "bad.proto"]) == 1
    assert capfd.readouterr().err.startswith("bad.proto:1:28: ")
    assert files_in(project) == {"x.proto", "bad.proto"}


def test_a_file_outside_the_searched_directories_is_named(capfd: pytest.CaptureFixture[str], project: Path) -> None:
    (project / "one").mkdir()
    (project / "two").mkdir()
    message = failure_of(capfd, "-Ione", "-I", "two", "--out=out", "x.proto")
    assert message == "x.proto: does not lie below one or two"
    assert files_in(project) == {"x.proto"}


@pytest.mark.parametrize("arguments", [[], ["x.proto"], ["--out=."], ["--out=.", "--fast", "x.proto"]])
def test_wrong_usage_is_status_2(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: python -m trio_grpc.protoc" in capfd.readouterr().err


def test_help_is_status_0(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    assert "--relative-imports" in capfd.readouterr().out
