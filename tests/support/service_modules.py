"""Makes the generated modules of the standard services: `python -m tests.support.service_modules` (`make protos`).

The name of a .proto is part of its contract (``grpc/health/v1/health.proto``; reflection shows it), and protoc makes
modules below folders of that name. Ours live in `trio_grpc`, so this moves them there. It also keeps the `_pb2`
modules out of protobuf's default pool (`trio_grpc._private_pool`).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import trio_grpc.protoc

ROOT = Path(__file__).parents[2]
#: Our .proto files by the names that the contract gives them.
PROTOS = {
    "grpc/channelz/v1/channelz.proto": "trio_grpc/channelz/_v1/channelz.proto",
    "grpc/health/v1/health.proto": "trio_grpc/health/_v1/health.proto",
    "grpc/reflection/v1/reflection.proto": "trio_grpc/reflection/_v1/reflection.proto",
    "grpc/reflection/v1alpha/reflection.proto": "trio_grpc/reflection/_v1alpha/reflection.proto",
    "xds/data/orca/v3/orca_load_report.proto": "trio_grpc/orca/_v3/orca_load_report.proto",
    "xds/service/orca/v3/orca.proto": "trio_grpc/orca/_v3/orca.proto",
}
#: What the `_pb2` modules import, and import instead.
PRIVATE = {
    "from google.protobuf import descriptor_pool as _descriptor_pool": (
        "from trio_grpc import _private_pool as _descriptor_pool"
    ),
    "from google.protobuf.internal import builder as _builder": "from trio_grpc import _private_pool as _builder",
}
#: What they import of each other by the places of the contract, and by our own: these lie beside each other.
BESIDE = {"from ....data.orca.v3 import": "from . import"}
#: Declares no service.
MESSAGES_ONLY = "xds/data/orca/v3/orca_load_report.proto"


def generate(folder: Path) -> dict[str, str]:
    """Return the texts of all modules by their paths in the repository; work in an empty folder."""
    for name, path in PROTOS.items():
        (folder / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / path, folder / name)
    if trio_grpc.protoc.main([f"-I{folder}", f"--out={folder}", "--relative-imports", *PROTOS]):
        raise SystemExit(1)
    texts = {}
    for name, path in PROTOS.items():
        for ending in ("_pb2.py", "_pb2.pyi", "_trio_grpc.py"):
            if name == MESSAGES_ONLY and ending == "_trio_grpc.py":
                continue
            text = (folder / name.replace(".proto", ending)).read_text(encoding="utf-8")
            for theirs, ours in BESIDE.items():
                text = text.replace(theirs, ours)
            if ending == "_pb2.py":
                for shared, private in PRIVATE.items():
                    assert text.count(f"{shared}\n") == 1
                    text = text.replace(shared, private)
            elif ending == "_pb2.pyi":
                # What protoc leaves open, strict type checkers call unknown; these types are public.
                text = text.replace("import ClassVar as", "import Any as _Any, ClassVar as")
                text = text.replace("_Mapping]", "_Mapping[str, _Any]]")
            texts[path.replace(".proto", ending)] = text
    return texts


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for path, text in generate(Path(folder)).items():
            (ROOT / path).write_text(text, encoding="utf-8")
            sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
