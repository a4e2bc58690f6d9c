"""Code that grpcio's generator makes of the echo service, in its form of today and in an older one."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

PROTOS = Path(__file__).parents[1] / "protos"


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text of echo_pb2_grpc.py."""
    folder = tmp_path_factory.mktemp("grpcio")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", f"--grpc_python_out={folder}", "echo.proto"]
    subprocess.run(command, check=True, cwd=PROTOS)
    return (folder / "echo_pb2_grpc.py").read_text()


@pytest.fixture(scope="session", params=["today", "before 1.65"])
def grpcio_echo(request: pytest.FixtureRequest, generated: str, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The module echo_pb2_grpc."""
    text = generated
    if request.param != "today":
        # Registered methods came with grpcio 1.65.
        text = re.sub(r",\s*_registered_method=True", ",", text)
        text, count = re.subn(r"\n *server\.add_registered_method_handlers\(.*\)", "", text)
        assert count == 1
        assert "registered" not in text.partition("class Echo(object)")[0]
    path = tmp_path_factory.mktemp("generated") / "echo_pb2_grpc.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("echo_pb2_grpc", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
