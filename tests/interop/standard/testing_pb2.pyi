from tests.interop.standard import empty_pb2 as _empty_pb2
from tests.interop.standard import messages_pb2 as _messages_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
