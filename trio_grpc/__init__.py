"""gRPC for trio: a cancel scope is an RPC's cancellation, its deadline is the call's deadline on the wire.

Names are loaded when they are first used (PEP 562), each with the rooms that it needs: a program that only makes calls
loads no server, and one without a service config no policy that it does not use.
"""

from __future__ import annotations

import importlib
import typing

from trio_grpc._version import __version__ as __version__

# What type checkers and editors see; `_HOMES` says the same to Python.
if typing.TYPE_CHECKING:
    from trio_grpc._balancing.connectivity import ConnectivityState as ConnectivityState
    from trio_grpc._balancing.endpoint import Endpoint as Endpoint
    from trio_grpc._balancing.json_fields import ServiceConfigError as ServiceConfigError
    from trio_grpc._balancing.least_request import LeastRequest as LeastRequest
    from trio_grpc._balancing.outlier_detection import FailurePercentageEjection as FailurePercentageEjection
    from trio_grpc._balancing.outlier_detection import OutlierDetection as OutlierDetection
    from trio_grpc._balancing.outlier_detection import SuccessRateEjection as SuccessRateEjection
    from trio_grpc._balancing.pick_first import PickFirst as PickFirst
    from trio_grpc._balancing.policy import CallEnd as CallEnd
    from trio_grpc._balancing.policy import LoadBalancingPolicy as LoadBalancingPolicy
    from trio_grpc._balancing.policy import Pick as Pick
    from trio_grpc._balancing.policy import PickInfo as PickInfo
    from trio_grpc._balancing.policy import PolicyContext as PolicyContext
    from trio_grpc._balancing.resolver import Resolution as Resolution
    from trio_grpc._balancing.resolver import Resolver as Resolver
    from trio_grpc._balancing.ring_hash import RingHash as RingHash
    from trio_grpc._balancing.round_robin import RoundRobin as RoundRobin
    from trio_grpc._balancing.service_config import ConnectionScaling as ConnectionScaling
    from trio_grpc._balancing.service_config import HealthCheckConfig as HealthCheckConfig
    from trio_grpc._balancing.service_config import HedgingPolicy as HedgingPolicy
    from trio_grpc._balancing.service_config import MethodConfig as MethodConfig
    from trio_grpc._balancing.service_config import RetryPolicy as RetryPolicy
    from trio_grpc._balancing.service_config import RetryThrottling as RetryThrottling
    from trio_grpc._balancing.service_config import ServiceConfig as ServiceConfig
    from trio_grpc._balancing.service_config import ServiceConfigLike as ServiceConfigLike
    from trio_grpc._balancing.subchannel import Subchannel as Subchannel
    from trio_grpc._balancing.target import ResolverTarget as ResolverTarget
    from trio_grpc._balancing.weighted_round_robin import WeightedRoundRobin as WeightedRoundRobin
    from trio_grpc._bearer_token import BearerToken as BearerToken
    from trio_grpc._call import StreamStreamCall as StreamStreamCall
    from trio_grpc._call import StreamUnaryCall as StreamUnaryCall
    from trio_grpc._call import UnaryStreamCall as UnaryStreamCall
    from trio_grpc._call import UnaryUnaryCall as UnaryUnaryCall
    from trio_grpc._channel import Channel as Channel
    from trio_grpc._channel import ChannelStatistics as ChannelStatistics
    from trio_grpc._channel import LoadBalancing as LoadBalancing
    from trio_grpc._codec import Codec as Codec
    from trio_grpc._codec import ProtobufCodec as ProtobufCodec
    from trio_grpc._compression import Compression as Compression
    from trio_grpc._compression import CompressionError as CompressionError
    from trio_grpc._compression import Compressor as Compressor
    from trio_grpc._compression import DecompressedTooLarge as DecompressedTooLarge
    from trio_grpc._compression import register_compressor as register_compressor
    from trio_grpc._credentials import CallCredentials as CallCredentials
    from trio_grpc._credentials import CallCredentialsLike as CallCredentialsLike
    from trio_grpc._credentials import CallInfo as CallInfo
    from trio_grpc._generic_servicer import GenericHandler as GenericHandler
    from trio_grpc._generic_servicer import GenericServicer as GenericServicer
    from trio_grpc._generic_servicer import IncomingCall as IncomingCall
    from trio_grpc._interceptors import ClientInterceptor as ClientInterceptor
    from trio_grpc._interceptors import InterceptedCall as InterceptedCall
    from trio_grpc._interceptors import Proceed as Proceed
    from trio_grpc._json_codec import JsonCodec as JsonCodec
    from trio_grpc._metadata import Metadata as Metadata
    from trio_grpc._metadata import MetadataError as MetadataError
    from trio_grpc._metadata import MetadataLike as MetadataLike
    from trio_grpc._method import Cardinality as Cardinality
    from trio_grpc._method import Method as Method
    from trio_grpc._observing import Attempt as Attempt
    from trio_grpc._observing import AttemptKind as AttemptKind
    from trio_grpc._observing import CallObserver as CallObserver
    from trio_grpc._open_channel import open_channel as open_channel
    from trio_grpc._options import ConnectionLifetime as ConnectionLifetime
    from trio_grpc._options import Keepalive as Keepalive
    from trio_grpc._options import KeepaliveEnforcement as KeepaliveEnforcement
    from trio_grpc._options import Limits as Limits
    from trio_grpc._options import ServerKeepalive as ServerKeepalive
    from trio_grpc._plain_codecs import BytesCodec as BytesCodec
    from trio_grpc._plain_codecs import FunctionCodec as FunctionCodec
    from trio_grpc._run import run as run
    from trio_grpc._server import Server as Server
    from trio_grpc._server import ServerStatistics as ServerStatistics
    from trio_grpc._server import serve as serve
    from trio_grpc._servicer import RequestStream as RequestStream
    from trio_grpc._servicer import ServerInterceptor as ServerInterceptor
    from trio_grpc._servicer import Servicer as Servicer
    from trio_grpc._servicer import ServicerContext as ServicerContext
    from trio_grpc._signals import drain_on_signal as drain_on_signal
    from trio_grpc._status import RpcError as RpcError
    from trio_grpc._status import StatusCode as StatusCode
    from trio_grpc._stub import StreamStreamMethod as StreamStreamMethod
    from trio_grpc._stub import StreamUnaryMethod as StreamUnaryMethod
    from trio_grpc._stub import UnaryStreamMethod as UnaryStreamMethod
    from trio_grpc._stub import UnaryUnaryMethod as UnaryUnaryMethod
    from trio_grpc._tls_info import TlsInfo as TlsInfo

__all__ = (
    "Attempt",
    "AttemptKind",
    "BearerToken",
    "BytesCodec",
    "CallCredentials",
    "CallCredentialsLike",
    "CallEnd",
    "CallInfo",
    "CallObserver",
    "Cardinality",
    "Channel",
    "ChannelStatistics",
    "ClientInterceptor",
    "Codec",
    "Compression",
    "CompressionError",
    "Compressor",
    "ConnectionLifetime",
    "ConnectionScaling",
    "ConnectivityState",
    "DecompressedTooLarge",
    "Endpoint",
    "FailurePercentageEjection",
    "FunctionCodec",
    "GenericHandler",
    "GenericServicer",
    "HealthCheckConfig",
    "HedgingPolicy",
    "IncomingCall",
    "InterceptedCall",
    "JsonCodec",
    "Keepalive",
    "KeepaliveEnforcement",
    "LeastRequest",
    "Limits",
    "LoadBalancing",
    "LoadBalancingPolicy",
    "Metadata",
    "MetadataError",
    "MetadataLike",
    "Method",
    "MethodConfig",
    "OutlierDetection",
    "Pick",
    "PickFirst",
    "PickInfo",
    "PolicyContext",
    "Proceed",
    "ProtobufCodec",
    "RequestStream",
    "Resolution",
    "Resolver",
    "ResolverTarget",
    "RetryPolicy",
    "RetryThrottling",
    "RingHash",
    "RoundRobin",
    "RpcError",
    "Server",
    "ServerInterceptor",
    "ServerKeepalive",
    "ServerStatistics",
    "ServiceConfig",
    "ServiceConfigError",
    "ServiceConfigLike",
    "Servicer",
    "ServicerContext",
    "StatusCode",
    "StreamStreamCall",
    "StreamStreamMethod",
    "StreamUnaryCall",
    "StreamUnaryMethod",
    "Subchannel",
    "SuccessRateEjection",
    "TlsInfo",
    "UnaryStreamCall",
    "UnaryStreamMethod",
    "UnaryUnaryCall",
    "UnaryUnaryMethod",
    "WeightedRoundRobin",
    "__version__",
    "drain_on_signal",
    "open_channel",
    "register_compressor",
    "run",
    "serve",
)

#: Which room has which name.
_HOMES = {
    "CallObserver": "_observing",
    "AttemptKind": "_observing",
    "Attempt": "_observing",
    "IncomingCall": "_generic_servicer",
    "GenericHandler": "_generic_servicer",
    "GenericServicer": "_generic_servicer",
    "JsonCodec": "_json_codec",
    "FunctionCodec": "_plain_codecs",
    "BytesCodec": "_plain_codecs",
    "ConnectivityState": "_balancing.connectivity",
    "Endpoint": "_balancing.endpoint",
    "ServiceConfigError": "_balancing.json_fields",
    "LeastRequest": "_balancing.least_request",
    "FailurePercentageEjection": "_balancing.outlier_detection",
    "OutlierDetection": "_balancing.outlier_detection",
    "SuccessRateEjection": "_balancing.outlier_detection",
    "PickFirst": "_balancing.pick_first",
    "CallEnd": "_balancing.policy",
    "LoadBalancingPolicy": "_balancing.policy",
    "Pick": "_balancing.policy",
    "PickInfo": "_balancing.policy",
    "PolicyContext": "_balancing.policy",
    "Resolution": "_balancing.resolver",
    "Resolver": "_balancing.resolver",
    "RingHash": "_balancing.ring_hash",
    "RoundRobin": "_balancing.round_robin",
    "ConnectionScaling": "_balancing.service_config",
    "HealthCheckConfig": "_balancing.service_config",
    "HedgingPolicy": "_balancing.service_config",
    "MethodConfig": "_balancing.service_config",
    "RetryPolicy": "_balancing.service_config",
    "RetryThrottling": "_balancing.service_config",
    "ServiceConfig": "_balancing.service_config",
    "ServiceConfigLike": "_balancing.service_config",
    "Subchannel": "_balancing.subchannel",
    "ResolverTarget": "_balancing.target",
    "WeightedRoundRobin": "_balancing.weighted_round_robin",
    "BearerToken": "_bearer_token",
    "StreamStreamCall": "_call",
    "StreamUnaryCall": "_call",
    "UnaryStreamCall": "_call",
    "UnaryUnaryCall": "_call",
    "Channel": "_channel",
    "ChannelStatistics": "_channel",
    "LoadBalancing": "_channel",
    "open_channel": "_open_channel",
    "Codec": "_codec",
    "ProtobufCodec": "_codec",
    "Compression": "_compression",
    "CompressionError": "_compression",
    "Compressor": "_compression",
    "DecompressedTooLarge": "_compression",
    "register_compressor": "_compression",
    "CallCredentials": "_credentials",
    "CallCredentialsLike": "_credentials",
    "CallInfo": "_credentials",
    "ClientInterceptor": "_interceptors",
    "InterceptedCall": "_interceptors",
    "Proceed": "_interceptors",
    "Metadata": "_metadata",
    "MetadataError": "_metadata",
    "MetadataLike": "_metadata",
    "Cardinality": "_method",
    "Method": "_method",
    "ConnectionLifetime": "_options",
    "Keepalive": "_options",
    "KeepaliveEnforcement": "_options",
    "Limits": "_options",
    "ServerKeepalive": "_options",
    "run": "_run",
    "Server": "_server",
    "ServerStatistics": "_server",
    "serve": "_server",
    "RequestStream": "_servicer",
    "ServerInterceptor": "_servicer",
    "Servicer": "_servicer",
    "ServicerContext": "_servicer",
    "drain_on_signal": "_signals",
    "RpcError": "_status",
    "StatusCode": "_status",
    "StreamStreamMethod": "_stub",
    "StreamUnaryMethod": "_stub",
    "UnaryStreamMethod": "_stub",
    "UnaryUnaryMethod": "_stub",
    "TlsInfo": "_tls_info",
}


def __getattr__(name: str) -> typing.Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
