"""The servicers of the reflection service, of its two versions: questions in, answers out.

Both say the same in messages of the same form (grpc's reflection protocol). Most clients ask v1 first; older ones know
v1alpha only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from types import ModuleType
from typing import Any, ClassVar

from google.protobuf.descriptor_pool import DescriptorPool

from trio_grpc._method import Method
from trio_grpc._servicer import RequestStream, Servicer, ServicerContext
from trio_grpc._status import StatusCode
from trio_grpc.reflection._catalogue import Catalogue
from trio_grpc.reflection._v1 import reflection_pb2 as v1
from trio_grpc.reflection._v1 import reflection_trio_grpc as generated_v1
from trio_grpc.reflection._v1alpha import reflection_pb2 as v1alpha
from trio_grpc.reflection._v1alpha import reflection_trio_grpc as generated_v1alpha


class _Reflection(Servicer):
    """Either version."""

    _response_type: ClassVar[type[Any]]

    def __init__(self, servicers: Iterable[Servicer], *, pool: DescriptorPool | None = None) -> None:
        if pool is not None and not hasattr(pool, "FindFileContainingSymbol"):
            raise TypeError(f"pool must be a DescriptorPool, not {type(pool).__name__}")
        self._catalogue = Catalogue(pool)
        self._add([*servicers, self])

    def _add(self, servicers: Iterable[Servicer]) -> None:
        for servicer in servicers:
            methods = getattr(servicer, "__trio_grpc_methods__", None)
            if methods is None or isinstance(servicer, type):
                raise TypeError(f"servicer must be an instance of a generated ...Servicer class, got {servicer!r}")
            self._catalogue.add(methods, getattr(servicer, "__trio_grpc_pb2__", None))

    async def ServerReflectionInfo(
        self, requests: RequestStream[Any], context: ServicerContext[Any], /
    ) -> AsyncIterator[Any]:
        async for request in requests:
            yield self._answer(request)

    def _answer(self, request: Any) -> Any:
        response = self._response_type(valid_host=request.host, original_request=request)
        catalogue = self._catalogue
        question = request.WhichOneof("message_request")
        try:
            if question == "list_services":
                services = response.list_services_response.service
                for name in catalogue.services():
                    services.add(name=name)
            elif question == "file_by_filename":
                response.file_descriptor_response.file_descriptor_proto.extend(catalogue.file(request.file_by_filename))
            elif question == "file_containing_symbol":
                response.file_descriptor_response.file_descriptor_proto.extend(
                    catalogue.file_of_symbol(request.file_containing_symbol)
                )
            elif question == "file_containing_extension":
                extension = request.file_containing_extension
                response.file_descriptor_response.file_descriptor_proto.extend(
                    catalogue.file_of_extension(extension.containing_type, extension.extension_number)
                )
            elif question == "all_extension_numbers_of_type":
                name = request.all_extension_numbers_of_type
                numbers = catalogue.extension_numbers(name)
                response.all_extension_numbers_response.base_type_name = name
                response.all_extension_numbers_response.extension_number.extend(numbers)
            else:
                # Nothing, or something newer than this.
                _refuse(response, StatusCode.INVALID_ARGUMENT, "unknown kind of question")
        except KeyError as error:
            _refuse(response, StatusCode.NOT_FOUND, f"not found: {error.args[0]}")
        return response


def _refuse(response: Any, code: StatusCode, message: str) -> None:
    """Answer with an error. The stream goes on: the next question may be a better one."""
    response.error_response.error_code = code.value
    response.error_response.error_message = message


class ReflectionServicer(_Reflection):
    """Serves ``grpc.reflection.v1.ServerReflection``; `with_reflection` makes it together with v1alpha.

    Args:
        servicers: whose services it tells of; its own is added.
        pool: where descriptors are looked up first.

    Raises:
        TypeError: an object is no servicer, or no pool.
    """

    __trio_grpc_methods__: ClassVar[Mapping[str, Method[Any, Any]]] = (
        generated_v1.ServerReflectionServicer.__trio_grpc_methods__
    )
    __trio_grpc_pb2__: ModuleType | None = v1
    _response_type = v1.ServerReflectionResponse


class ReflectionV1AlphaServicer(_Reflection):
    """Serves ``grpc.reflection.v1alpha.ServerReflection``, which is all that older clients ask for.

    Args:
        servicers: whose services it tells of; its own is added.
        pool: where descriptors are looked up first.

    Raises:
        TypeError: an object is no servicer, or no pool.
    """

    __trio_grpc_methods__: ClassVar[Mapping[str, Method[Any, Any]]] = (
        generated_v1alpha.ServerReflectionServicer.__trio_grpc_methods__
    )
    __trio_grpc_pb2__: ModuleType | None = v1alpha
    _response_type = v1alpha.ServerReflectionResponse


def with_reflection(servicers: Iterable[Servicer], *, pool: DescriptorPool | None = None) -> tuple[Servicer, ...]:
    """Add the reflection service, v1 and v1alpha, to what `trio_grpc.serve` is to serve.

    Args:
        servicers: what is served.
        pool: where descriptors are looked up first, before the files of the services and all else in the pools that
            those are in: for a program with descriptors that no generated module holds.

    Returns:
        The servicers, and two more that tell of all of them.

    Raises:
        TypeError: an object is no servicer, or no pool.
    """
    servicers = tuple(servicers)
    both = (ReflectionServicer(servicers, pool=pool), ReflectionV1AlphaServicer(servicers, pool=pool))
    for one in both:
        one._add(both)
    return (*servicers, *both)
