"""Servicers that were written for grpcio, on a server of ours. Needs grpcio, which their generated code imports.

Stubs that grpcio's generator has made need nothing from here: ``x_pb2_grpc.XStub(channel)`` takes a `Channel`.
"""

try:
    __import__("grpc")
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError("trio_grpc.grpcio needs grpcio: pip install grpcio", name=_error.name) from _error

from trio_grpc.grpcio._context import GrpcioContext as GrpcioContext
from trio_grpc.grpcio._servicers import GrpcioServicers as GrpcioServicers
from trio_grpc.grpcio._thread_context import GrpcioThreadContext as GrpcioThreadContext

__all__ = ["GrpcioContext", "GrpcioServicers", "GrpcioThreadContext"]
