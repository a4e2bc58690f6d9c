"""Options about the server to talk to, which all commands with a target share."""

from __future__ import annotations

import functools
import math
import ssl
from collections.abc import Callable
from typing import Any, TypeVar

import attrs
import click
import trio

from trio_grpc._balancing.connectivity import ConnectivityState
from trio_grpc._bearer_token import BearerToken, is_sendable
from trio_grpc._channel import Channel
from trio_grpc._open_channel import open_channel
from trio_grpc._options import DEFAULT_MAX_RECEIVE_MESSAGE_LENGTH, Limits
from trio_grpc._status import StatusCode
from trio_grpc.cli._failure import ExitCode, Failure
from trio_grpc.cli._seconds import POSITIVE_SECONDS
from trio_grpc.tls._contexts import client_context

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


@attrs.frozen(kw_only=True)
class ConnectionOptions:
    """How to reach the server.

    Attributes:
        target: as for `trio_grpc.open_channel`.
        tls: speak TLS.
        cacert: a PEM file of the authorities to believe; None for the system's.
        cert, key: PEM files of the client's own certificate.
        server_name: what the server's certificate must carry, where that is not the target's host.
        authority: the ``:authority`` of calls.
        token: a bearer token.
        token_in_plaintext: send the token without TLS as well.
        connect_timeout: seconds until the server must be reached.
        max_message_size: bytes of the largest reply that is accepted.
    """

    target: str
    tls: bool
    cacert: str | None
    cert: str | None
    key: str | None
    server_name: str | None
    authority: str | None
    token: str | None
    token_in_plaintext: bool
    connect_timeout: float
    max_message_size: int

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the context for TLS, None for plaintext.

        Raises:
            Failure: a file cannot be used.
        """
        if not self.tls:
            return None
        try:
            return client_context(self.cacert, certificate=self.cert, key=self.key)
        except (OSError, ValueError) as error:
            raise Failure(str(error)) from error


def connection_options(command: CommandT) -> CommandT:
    """Add the argument TARGET and the options about it; the command gets them as ``connection``, first of all."""

    @click.argument("target", metavar="TARGET")
    @click.option("--tls", is_flag=True, help="Speak TLS; without it, and without the files below, plaintext.")
    @click.option("--cacert", type=_FILE, help="PEM file of the authorities to believe, instead of the system's.")
    @click.option("--cert", type=_FILE, help="PEM file of the certificate to show to the server.")
    @click.option("--key", type=_FILE, help="PEM file of its key, where --cert has it not.")
    @click.option("--server-name", metavar="NAME", help="The name that the server's certificate must carry.")
    @click.option("--authority", metavar="NAME", help="The host that calls are for, as the server sees it.")
    @click.option("--token", metavar="TOKEN", envvar="TRIO_GRPC_TOKEN", help="Bearer token [env: TRIO_GRPC_TOKEN].")
    @click.option("--token-in-plaintext", is_flag=True, help="Send the token without TLS as well.")
    @click.option(
        "--connect-timeout",
        type=POSITIVE_SECONDS,
        default=10.0,
        show_default=True,
        metavar="SECONDS",
        help="How long to try to reach the server.",
    )
    @click.option(
        "--max-message-size",
        type=click.IntRange(min=0, max=2**32 - 1),
        default=DEFAULT_MAX_RECEIVE_MESSAGE_LENGTH,
        show_default=True,
        metavar="BYTES",
        help="The largest reply to accept.",
    )
    @functools.wraps(command)
    def with_connection(*args: Any, **options: Any) -> Any:
        chosen = {field.name: options.pop(field.name) for field in attrs.fields(ConnectionOptions)}
        if chosen["key"] is not None and chosen["cert"] is None:
            raise click.UsageError("--key belongs to a certificate: add --cert FILE")
        if chosen["token"] is not None and not is_sendable(chosen["token"]):
            # It may come from the environment, and is not to be printed.
            raise click.UsageError("--token is empty, or has blanks, line ends or characters outside of ASCII")
        # Whoever gives files for TLS wants it.
        chosen["tls"] = chosen["tls"] or any(chosen[name] is not None for name in ("cacert", "cert", "server_name"))
        return command(*args, connection=ConnectionOptions(**chosen), **options)

    return with_connection  # type: ignore[return-value]  # the same, but for its arguments


_FILE = click.Path(exists=True, dir_okay=False)


def open_channel_for(connection: ConnectionOptions, **options: Any) -> Channel:
    """Return the channel that the options ask for, to be entered.

    Args:
        connection: the options.
        options: more of those of `trio_grpc.open_channel`.

    Raises:
        Failure: the options cannot be used.
    """
    credentials = None
    if connection.token is not None:
        token = connection.token

        async def fetch() -> str:
            return token

        credentials = BearerToken(fetch, allow_plaintext=connection.token_in_plaintext)
    context = connection.ssl_context()
    try:
        return open_channel(
            connection.target,
            ssl_context=context,
            server_hostname=connection.server_name,
            authority=connection.authority,
            credentials=credentials,
            idle_timeout=None,
            limits=Limits(max_receive_message_length=connection.max_message_size),
            **options,
        )
    except (ValueError, TypeError) as error:
        if credentials is not None and context is None and "plaintext" in str(error):
            raise Failure("--token would travel in plaintext: add --tls, or --token-in-plaintext") from error
        raise Failure(str(error), ExitCode.USAGE) from error


async def connect(channel: Channel, connection: ConnectionOptions) -> None:
    """Wait until the server is reached, no longer than the options allow.

    Raises:
        Failure: it was not; the line says why. The exit code is that of UNAVAILABLE.
    """
    with trio.move_on_after(connection.connect_timeout):
        channel.connect()
        state = channel.state
        while state not in _DECIDED:
            state = await channel.wait_for_state_change(state)
    if channel.state is ConnectivityState.READY:
        return
    reason = channel._unready_reason() or f"no answer within {connection.connect_timeout:g} s"
    raise Failure(
        f"cannot reach {connection.target}: {reason}{_hint(reason, connection)}",
        ExitCode.RPC + StatusCode.UNAVAILABLE.value,
    )


async def wait_until_reached(channel: Channel, connection: ConnectionOptions, timeout: float | None) -> None:
    """Wait for a server that may not be there yet, through attempts that fail.

    Args:
        channel: to the server.
        connection: its options.
        timeout: seconds; None for as long as it takes.

    Raises:
        Failure: it has not come in time; the line says what was in the way. The exit code is that of a call's deadline.
    """
    seconds = math.inf if timeout is None else timeout
    with trio.move_on_after(seconds):
        await channel.wait_ready()
        return
    reason = channel._unready_reason() or "no answer"
    raise Failure(
        f"cannot reach {connection.target} within {seconds:g} s: {reason}{_hint(reason, connection)}",
        ExitCode.RPC + StatusCode.DEADLINE_EXCEEDED.value,
    )


def _hint(reason: str, connection: ConnectionOptions) -> str:
    """Return which option may help, empty where none does."""
    if "the peer does not speak TLS" in reason:
        return "; without --tls it may work"
    if not connection.tls:
        return "; with --tls it may work" if "TLS" in reason or "before it said a word" in reason else ""
    if "issuer certificate" in reason or "self-signed certificate" in reason:
        return "; --cacert FILE says whom to believe"
    if "certificate is not valid for" in reason:
        return "; --server-name NAME says what name the certificate has"
    return ""


#: One attempt to connect is enough for somebody who waits.
_DECIDED = (ConnectivityState.READY, ConnectivityState.TRANSIENT_FAILURE)

__all__ = ["ConnectionOptions", "connect", "connection_options", "open_channel_for", "wait_until_reached"]
