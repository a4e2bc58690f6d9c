"""Call credentials: metadata that says who calls, asked for anew for each call, and kept away from plaintext.

They are attached by an interceptor, the innermost of a call's. So calls without any know nothing of this, all kinds of
call have the same, a call's timeout bounds the asking, and interceptors of the user's never see a secret.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import attrs

from trio_grpc._interceptors import ClientInterceptor, InterceptedCall, Proceed
from trio_grpc._metadata import Metadata, MetadataLike
from trio_grpc._options import check_async_callable, name_of
from trio_grpc._status import RpcError, StatusCode

#: What no library may say for itself: applications take these codes for their server's own (gRFC A54).
_RESTRICTED = frozenset(
    {
        StatusCode.INVALID_ARGUMENT,
        StatusCode.NOT_FOUND,
        StatusCode.ALREADY_EXISTS,
        StatusCode.FAILED_PRECONDITION,
        StatusCode.ABORTED,
        StatusCode.OUT_OF_RANGE,
        StatusCode.DATA_LOSS,
    }
)


@attrs.frozen
class CallInfo:
    """What call credentials are told of the call that they are for.

    Attributes:
        method: the path of the method, ``"/package.Service/Method"``.
        authority: the host that the call is for, as it goes on the wire.
        service_url: what tokens name as their audience: ``"https://host/package.Service"``, without the port where that
            is 443, as in all of gRPC.
    """

    method: str
    authority: str
    service_url: str


class CallCredentials(abc.ABC):
    """Says who calls: an object that is awaited for each call and returns metadata.

    A plain async function will do where the two other members are not needed.

    Attributes:
        allow_plaintext: whether the metadata may travel where others can read it. False unless it is set.
    """

    allow_plaintext: bool = False

    @abc.abstractmethod
    async def __call__(self, call: CallInfo, /) -> MetadataLike:
        """Return the metadata for one call.

        What it raises ends the call: `RpcError` as it is (with INTERNAL in place of a code that only servers may
        choose, gRFC A54), any other exception with UNAVAILABLE, as C-core and gRFC A97 have it.
        """

    def rejected(self, metadata: Metadata, /) -> None:  # noqa: B027 -- most have nothing to do
        """Called when a call has ended with UNAUTHENTICATED. Must not block; does nothing.

        Args:
            metadata: what was sent.
        """


#: What ``credentials=`` takes.
CallCredentialsLike: TypeAlias = "CallCredentials | Callable[[CallInfo], Awaitable[MetadataLike]]"


class Attacher:
    """Makes the interceptors that attach credentials to the calls of one channel.

    Args:
        target: of the channel, for messages.
        secure: whether nobody else reads what goes there.
        scheme: of URLs.
        authority: of its calls.
    """

    def __init__(self, target: str, *, secure: bool, scheme: str, authority: str) -> None:
        self._target = target
        self.secure = secure
        self._authority = authority
        self._url = f"{scheme}://{authority.removesuffix(':443') if scheme == 'https' else authority}"

    def attach(self, credentials: CallCredentialsLike) -> ClientInterceptor:
        """Return the interceptor that attaches these.

        Raises:
            TypeError: they cannot be called.
            ValueError: the channel is in plaintext, which they do not allow.
        """
        check_async_callable("credentials", credentials, " or None")
        if not self.secure and not getattr(credentials, "allow_plaintext", False):
            raise ValueError(
                f"credentials must not be sent to {self._target} in plaintext: use ssl_context=, "
                "or credentials that have allow_plaintext=True"
            )

        async def attach_credentials(call: InterceptedCall, proceed: Proceed) -> None:
            path = call.method.path
            info = CallInfo(path, self._authority, f"{self._url}{path[: path.rfind('/')]}")
            metadata = await _ask(credentials, info)
            for key, value in metadata:
                call.metadata.add(key, value)
            try:
                await proceed()
            finally:
                # A block's status may be known before its error is raised, and the block may keep that to itself.
                if call.status is StatusCode.UNAUTHENTICATED and isinstance(credentials, CallCredentials):
                    credentials.rejected(metadata)

        return attach_credentials


async def _ask(credentials: CallCredentialsLike, info: CallInfo) -> Metadata:
    try:
        metadata: Any = await credentials(info)
        # A copy: what is kept elsewhere must not change with what is sent.
        return Metadata(metadata)
    except RpcError as error:
        if error.code not in _RESTRICTED:
            raise
        raise RpcError(StatusCode.INTERNAL, f"{_failed(credentials)}: {error}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise RpcError(StatusCode.UNAVAILABLE, f"{_failed(credentials)}: {reason}") from error


def _failed(credentials: object) -> str:
    return f"credentials {name_of(credentials)} failed"


__all__ = ["CallCredentials", "CallCredentialsLike", "CallInfo"]
