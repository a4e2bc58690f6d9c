"""The TLS handshake of either side: ALPN, and what both ends are told when it fails."""

from __future__ import annotations

import ssl

import trio

from trio_grpc._tls_info import TlsInfo
from trio_grpc._transport.side import Side

#: Seconds in which an alert must be written, and for which a server waits for the peer to hang up first: closing a
#: socket with unread input makes the kernel reset it, and the alert would be lost with it.
_ALERT_TIME = 1.0
#: OpenSSL's reasons for a peer that speaks something else. Versions differ in what they call it.
_NOT_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "RECORD_LAYER_FAILURE"}
)


class TlsError(OSError):
    """There is no TLS with this peer; the text says why."""


async def start_tls(
    stream: trio.abc.Stream, context: ssl.SSLContext, side: Side, server_hostname: str | None = None
) -> trio.SSLStream[trio.abc.Stream]:
    """Shake hands over a stream, which is closed if that fails. Knows no timeout of its own.

    Args:
        stream: owned from here on.
        context: offers, or selects, ALPN ``h2``; see `offer_h2`.
        side: which end this is.
        server_hostname: the name that the server's certificate must carry, and SNI (client).

    Raises:
        TlsError: the peer does not do its part.
    """
    try:
        tls = trio.SSLStream(
            stream,
            context,
            server_hostname=server_hostname,
            server_side=side is Side.SERVER,
            https_compatible=True,
        )
        try:
            await tls.do_handshake()
        except (trio.BrokenResourceError, OSError) as error:
            await _send_alert(tls, stream, side)
            raise TlsError(explain(error, server_hostname)) from error
        selected = tls.selected_alpn_protocol()
        if selected != "h2":
            other = "no ALPN protocol" if selected is None else f"ALPN protocol {selected!r}"
            raise TlsError(f"{other} was agreed on, where HTTP/2 needs 'h2' (RFC 9113, 3.2)")
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return tls


def offer_h2(context: ssl.SSLContext) -> None:
    """Let a context offer and select HTTP/2, and nothing else (RFC 9113, 3.2): it cannot be asked what it does."""
    context.set_alpn_protocols(["h2"])


def tls_info(stream: trio.abc.Stream) -> TlsInfo | None:
    """Return what is known of a stream that has shaken hands; None of one without TLS.

    A stream of the user's own may have TLS that has not shaken hands yet: nothing is known of that.
    """
    if not isinstance(stream, trio.SSLStream):
        return None
    try:
        cipher = stream.cipher()
    except trio.NeedHandshakeError:
        return None
    # The certificate of a peer that nobody verifies is an empty dictionary.
    return TlsInfo(
        version=stream.version(),
        cipher="" if cipher is None else cipher[0],
        alpn=stream.selected_alpn_protocol(),
        peer_certificate=stream.getpeercert() or {},
        peer_certificate_der=stream.getpeercert(binary_form=True),
    )


async def _send_alert(tls: trio.SSLStream[trio.abc.Stream], stream: trio.abc.Stream, side: Side) -> None:
    """Let the peer know what was wrong (RFC 8446, 6.2). OpenSSL has put it into words; trio does not send them."""
    outgoing = getattr(tls, "_outgoing", None)
    alert = outgoing.read() if isinstance(outgoing, ssl.MemoryBIO) else b""
    if not alert:
        return
    with trio.move_on_after(_ALERT_TIME):
        try:
            await stream.send_all(alert)
            if side is Side.SERVER and isinstance(stream, trio.abc.HalfCloseableStream):
                await stream.send_eof()
                while await stream.receive_some():
                    pass
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            # It has gone.
            return


def explain(error: BaseException, server_hostname: str | None = None) -> str:
    """Return why a stream, maybe with TLS, has failed: OpenSSL's own texts are for those who know them."""
    cause = error.__cause__ if isinstance(error, trio.BrokenResourceError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        subject = "" if server_hostname is None else f" for {server_hostname!r}"
        return f"certificate verify failed{subject}: {cause.verify_message.rstrip('.')}"
    if isinstance(cause, ssl.SSLError):
        # Only those that OpenSSL made have a reason.
        reason = getattr(cause, "reason", None) or ""
        words = reason.replace("_", " ").lower()
        # Which of the three it is depends on the releases of Python and OpenSSL.
        if isinstance(cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError)) or reason == "UNEXPECTED_EOF_WHILE_READING":
            return "the peer hung up in the middle of it"
        if reason in _NOT_TLS:
            return f"the peer does not speak TLS ({words})"
        if "ALERT" in reason:
            return f"the peer refused: {words}"
        return words or str(cause)
    return str(cause or "") or str(error) or type(cause or error).__name__
