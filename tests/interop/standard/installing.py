"""How peers get onto the machine: each tool of each language's own registry, into one folder outside the repository.

Nothing here is fetched twice: a step that ended well leaves a note of what it made and is skipped from then on.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trio-grpc-interop"
_STEP_SECONDS = 600.0
#: Peers are installed side by side, and apt-get runs once at a time: a second one would give up at once.
_apt = threading.Lock()


class Unavailable(Exception):
    """A peer cannot be had on this machine; says why in a line."""


def run(
    *argv: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None, seconds: float = _STEP_SECONDS
) -> str:
    """Run one step of an installation and return what it printed.

    Raises:
        Unavailable: it failed.
    """
    command = [str(argument) for argument in argv]
    # Compilers take every core there is; whoever works beside us shall not notice.
    nice = ["nice", "-n", "19"] if shutil.which("nice") else []
    try:
        done = subprocess.run(
            [*nice, *command],
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{' '.join(command[:3])} ... took more than {seconds:g} s") from None
    except OSError as error:
        raise Unavailable(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Unavailable(f"{' '.join(command[:3])} ... failed: {' / '.join(lines[-3:])[-400:]}")
    return done.stdout


def need(*tools: str) -> None:
    """Look for programs that we do not install ourselves.

    Raises:
        Unavailable: one is missing.
    """
    for tool in tools:
        if shutil.which(tool) is None:
            raise Unavailable(f"{tool} is not installed")


def once(name: str, made_of: Sequence[object], make: Callable[[Path], None]) -> Path:
    """Make a folder in the cache, unless it has been made of the same things before."""
    folder = CACHE / name
    note = folder / ".made-of.json"
    wanted = json.dumps([str(one) for one in made_of])
    if note.is_file() and note.read_text() == wanted:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    started = time.monotonic()
    make(folder)
    note.write_text(wanted)
    sys.stderr.write(f"installed {name} in {time.monotonic() - started:.0f} s\n")
    return folder


def digest(*paths: Path) -> str:
    """What changes when one of the files does."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def debian(*packages: str) -> None:
    """Have Debian packages installed.

    Raises:
        Unavailable: there is no Debian here, or we may not install.
    """
    need("dpkg-query")
    if all(_is_installed(package) for package in packages):
        return
    with _apt:
        missing = [package for package in packages if not _is_installed(package)]
        if not missing:
            return
        if os.geteuid() != 0:
            raise Unavailable(f"Debian packages are missing and only root can install them: {' '.join(missing)}")
        # Others on this machine may be installing, too.
        command = ["apt-get", "-oDPkg::Lock::Timeout=300", "install", "--yes", "--no-install-recommends", *missing]
        # Nothing that is installed is to be started as a service: invoke-rc.d(8) does not in this run level.
        env = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        try:
            run(*command, env=env)
        except Unavailable:
            # The lists of packages may be missing or old.
            run("apt-get", "update")
            run(*command, env=env)


def _is_installed(package: str) -> bool:
    done = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${db:Status-Abbrev}", package],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.startswith("ii")


def debian_source(package: str, version: str, folder: Path) -> None:
    """Unpack a Debian source package into a folder."""
    need("apt-get", "tar", "xz")
    sources = Path("/etc/apt/sources.list.d/debian.sources")
    if not sources.is_file():
        raise Unavailable("this machine does not say where Debian's source packages are")
    lists = CACHE / "apt-lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    own = CACHE / "source.sources"
    own.write_text(sources.read_text().replace("Types: deb\n", "Types: deb-src\n"))
    options = (
        f"-oDir::Etc::SourceList={own}",
        "-oDir::Etc::SourceParts=/dev/null",
        f"-oDir::State::Lists={lists}",
        "-oAPT::Sandbox::User=root",
        "-oAPT::Get::List-Cleanup=0",
    )
    run("apt-get", *options, "update")
    run("apt-get", *options, "source", "--download-only", f"{package}={version}", cwd=folder)
    (original,) = folder.glob("*.orig.tar.*")
    run("tar", "--extract", "--file", original, "--strip-components=1", cwd=folder)
    original.unlink()


def go_programs(folder_name: str, programs: Mapping[str, str]) -> Path:
    """Build Go programs, ``{name: package@version}``, and return the folder they are in."""
    need("go")

    def make(folder: Path) -> None:
        for name, package in programs.items():
            # Programs are named after the last part of their path, which for some is just "client".
            own = folder / "building"
            run("go", "install", package, env={"GOBIN": str(own), "GOFLAGS": "-buildvcs=false"})
            (program,) = own.iterdir()
            program.rename(folder / name)
            own.rmdir()

    return once(folder_name, sorted(programs.items()), make)


def python_packages(folder_name: str, *requirements: str) -> Path:
    """Install Python packages into an environment of their own and return its folder of programs."""

    def make(folder: Path) -> None:
        run(sys.executable, "-m", "venv", folder / "venv")
        run(folder / "venv" / "bin" / "python", "-m", "pip", "install", "--quiet", *requirements)

    return once(folder_name, requirements, make) / "venv" / "bin"


def maven_classpath(folder_name: str, *artifacts: str) -> str:
    """Fetch Java libraries, ``group:artifact:version``, with what they need; return a class path."""
    need("java", "mvn")

    def make(folder: Path) -> None:
        dependencies = "".join(
            "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>".format(
                *artifact.split(":")
            )
            for artifact in artifacts
        )
        (folder / "pom.xml").write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>interop</groupId><artifactId>peers</artifactId><version>1</version>"
            f"<dependencies>{dependencies}</dependencies></project>"
        )
        plugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
        run("mvn", "--batch-mode", "--quiet", plugin, "-DoutputDirectory=lib", cwd=folder)

    return f"{once(folder_name, artifacts, make) / 'lib'}/*"


def node_modules(folder_name: str, package_json: Path) -> Path:
    """Install what a package.json asks for and return the folder of modules."""
    need("node", "npm")

    def make(folder: Path) -> None:
        shutil.copy(package_json, folder)
        run("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", cwd=folder)

    return once(folder_name, [digest(package_json)], make) / "node_modules"
