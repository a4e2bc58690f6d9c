from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class HelloRequest(_message.Message):
    __slots__ = ("name", "thinking_time")
    NAME_FIELD_NUMBER: _ClassVar[int]
    THINKING_TIME_FIELD_NUMBER: _ClassVar[int]
    name: str
    thinking_time: float
    def __init__(self, name: _Optional[str] = ..., thinking_time: _Optional[float] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: str
    def __init__(self, message: _Optional[str] = ...) -> None: ...
