from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class EchoRequest(_message.Message):
    __slots__ = ("payload", "count", "text")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    count: int
    text: str
    def __init__(self, payload: _Optional[bytes] = ..., count: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class EchoReply(_message.Message):
    __slots__ = ("payload", "count", "text")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    count: int
    text: str
    def __init__(self, payload: _Optional[bytes] = ..., count: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...
