"""Structured logging of calls: an interceptor for channels and servers."""

from trio_grpc.call_log._call_log import CallLog as CallLog
from trio_grpc.call_log._call_log import default_level as default_level

__all__ = ["CallLog", "default_level"]
