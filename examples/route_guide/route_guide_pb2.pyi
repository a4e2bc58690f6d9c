from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Point(_message.Message):
    __slots__ = ("east", "north")
    EAST_FIELD_NUMBER: _ClassVar[int]
    NORTH_FIELD_NUMBER: _ClassVar[int]
    east: int
    north: int
    def __init__(self, east: _Optional[int] = ..., north: _Optional[int] = ...) -> None: ...

class Rectangle(_message.Message):
    __slots__ = ("south_west", "north_east")
    SOUTH_WEST_FIELD_NUMBER: _ClassVar[int]
    NORTH_EAST_FIELD_NUMBER: _ClassVar[int]
    south_west: Point
    north_east: Point
    def __init__(self, south_west: _Optional[_Union[Point, _Mapping]] = ..., north_east: _Optional[_Union[Point, _Mapping]] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("name", "at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    at: Point
    def __init__(self, name: _Optional[str] = ..., at: _Optional[_Union[Point, _Mapping]] = ...) -> None: ...

class WalkSummary(_message.Message):
    __slots__ = ("points", "places", "metres")
    POINTS_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    METRES_FIELD_NUMBER: _ClassVar[int]
    points: int
    places: int
    metres: float
    def __init__(self, points: _Optional[int] = ..., places: _Optional[int] = ..., metres: _Optional[float] = ...) -> None: ...

class Note(_message.Message):
    __slots__ = ("at", "text")
    AT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    at: Point
    text: str
    def __init__(self, at: _Optional[_Union[Point, _Mapping]] = ..., text: _Optional[str] = ...) -> None: ...
