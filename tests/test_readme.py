"""The README's quick start, done as it says: its files, its commands, its output."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import trio_grpc.protoc

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "127.0.0.1:50051"


def quick_start_files() -> dict[str, str]:
    """The code blocks of the quick start, by the file that the paragraph before each of them names."""
    files = {}
    quick_start = README.partition("\n## Quick start\n")[2].partition("\n## More\n")[0]
    for text, code in re.findall(r"(.*?)^```(?:python|protobuf)\n(.*?)^```$", quick_start, re.DOTALL | re.MULTILINE):
        paragraph = text.rstrip().rpartition("\n\n")[2]
        name = re.search(r"(?:with|in) `([\w.]+)`", paragraph)
        assert name is not None, paragraph
        files[name[1]] = code
    return files


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all files of the quick start, those that are generated included."""
    monkeypatch.chdir(tmp_path)
    files = quick_start_files()
    assert list(files) == ["greeter.proto", "server.py", "client.py", "test_greeter.py"]
    assert ADDRESS in files["server.py"]
    assert ADDRESS in files["client.py"]
    for name, text in files.items():
        # The only thing that differs from what a reader does: a port may be taken, a path in our own folder is not.
        (tmp_path / name).write_text(text.replace(ADDRESS, "unix:socket"), encoding="utf-8")
    command = re.search(r"^    python -m trio_grpc\.protoc (.+)$", README, re.MULTILINE)
    assert command is not None
    assert trio_grpc.protoc.main(shlex.split(command[1])) == 0
    return tmp_path


def run(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell in the background may have told its children to ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 -- no threads here
    )


def wait_listening(path: Path) -> None:
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except OSError:
                time.sleep(0.01)
            else:
                return


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs unix sockets")
def test_server_and_client_print_what_the_readme_says(project: Path) -> None:
    promised = re.search(r"`python client.py` prints\n\n```text\n(.*?)```", README, re.DOTALL)
    assert promised is not None
    with run("server.py") as server:
        try:
            wait_listening(project / "socket")
            with run("client.py") as client:
                output, errors = client.communicate(timeout=30)
            assert (output, errors, client.returncode) == (promised[1], "", 0)
        finally:
            server.send_signal(signal.SIGINT)
            output, errors = server.communicate(timeout=30)
    # Ctrl-C ends it as it ends any Python program, and takes the socket along.
    assert output == ""
    assert errors.endswith("\nKeyboardInterrupt\n")
    assert "Group" not in errors
    assert server.returncode == -signal.SIGINT
    assert not (project / "socket").exists()


@pytest.mark.slow
def test_the_readers_own_test_passes_without_waiting(project: Path) -> None:
    with run("-m", "pytest", "-q", "--durations=1", "-p", "no:cacheprovider", "-W", "error") as tests:
        output, _ = tests.communicate(timeout=30)
    assert tests.returncode == 0, output
    assert "1 passed" in output


@pytest.mark.slow
def test_the_first_example_runs() -> None:
    code = re.search(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert code is not None
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code[1]],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "examples" / "helloworld")))},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("Hello, trio!\n", "", 0)


def test_links_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"), *EXAMPLE_PAGES]
    # Measurements are published with a release, and their pictures with them.
    later = {ROOT / "docs" / "performance.md", *((ROOT / "docs" / "performance" / name) for name in PICTURES)}
    missing = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists() and page.parent / target not in later
    ]
    assert missing == []


EXAMPLE_PAGES = (ROOT / "examples").rglob("*.md")
PICTURES = ("unary-concurrency.svg", "unary-latency.svg", "unary-size.svg", "flame-server.svg", "flame-client.svg")


@pytest.mark.parametrize("command", sorted(set(re.findall(r"\bmake ([a-z-]+)", README))))
def test_commands_exist(command: str) -> None:
    assert re.search(rf"^{command}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
