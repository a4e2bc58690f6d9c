"""Descriptors as text: protoc makes the same descriptors of what is printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from trio_grpc.cli._proto_text import proto_text
from trio_grpc.cli._schema import FileSchema, SchemaOptions

SOURCE = """\
syntax = "proto3";
package p;
message M {
  double a = 1;
  repeated sfixed64 b = 2;
  map<string, p.M.Inner> c = 3;
  optional bytes d = 4;
  oneof choice {
    string e = 5;
    p.Colour f = 6;
  }
  uint32 g = 7;
  message Inner {
    p.M back = 1;
  }
}
enum Colour {
  option allow_alias = true;
  RED = 0;
  ROT = 0;
}
"""


def schema(folder: Path, text: str) -> FileSchema:
    (folder / "x.proto").write_text(text)
    made = SchemaOptions((str(folder / "x.proto"),), (), ()).open(None, 1.0)
    assert isinstance(made, FileSchema)
    return made


@pytest.mark.parametrize("name", ["p.M", "p.Colour"])
def test_the_text_means_what_was_described(tmp_path: Path, name: str) -> None:
    def described(made: FileSchema) -> descriptor_pb2.FileDescriptorProto:
        proto = descriptor_pb2.FileDescriptorProto()
        made.pool.FindFileContainingSymbol(name).CopyToProto(proto)
        return proto

    first = schema(tmp_path, SOURCE)
    texts = [
        proto_text(first.pool.FindMessageTypeByName("p.M")),
        proto_text(first.pool.FindEnumTypeByName("p.Colour")),
    ]
    again = schema(tmp_path, 'syntax = "proto3";\npackage p;\n' + "\n".join(texts))
    assert described(again) == described(first)
