"""``trio-grpc serve``: servicers by import path, as a program."""

from __future__ import annotations

import importlib
import json
import logging
import os
import ssl
import sys
from collections.abc import Callable
from typing import Any

import click

from trio_grpc._run import run
from trio_grpc._servicer import Servicer
from trio_grpc.channelz._servicer import ChannelzServicer
from trio_grpc.cli._failure import Failure
from trio_grpc.cli._seconds import Seconds
from trio_grpc.health._servicer import HealthServicer
from trio_grpc.reflection._servicers import with_reflection
from trio_grpc.tls._contexts import server_context

_FILE = click.Path(exists=True, dir_okay=False)


@click.command("serve")
@click.argument("servicers", metavar="MODULE:NAME...", nargs=-1, required=True)
@click.option(
    "-a", "--address", "addresses", multiple=True, default=["127.0.0.1:50051"], show_default=True, metavar="ADDRESS",
    help="Where to listen: host:port (port 0 for any free one), unix:path. May be repeated.",
)  # fmt: skip
@click.option("--cert", type=_FILE, help="PEM file of the server's certificate: speak TLS.")
@click.option("--key", type=_FILE, help="PEM file of its key, where --cert has it not.")
@click.option("--client-cacert", type=_FILE, help="Clients must have a certificate of one of these authorities.")
@click.option("--reflection/--no-reflection", default=True, show_default=True, help="Tell tools what is served.")
@click.option("--health/--no-health", default=True, show_default=True, help="Serve grpc.health.v1.")
@click.option("--channelz", is_flag=True, help="Serve grpc.channelz.v1: what connections and calls are doing.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes that serve.")
@click.option(
    "--grace", type=Seconds(min=0), default=5.0, show_default=True, metavar="SECONDS",
    help="How long running calls may go on after SIGTERM or Ctrl-C.",
)  # fmt: skip
@click.option("--app-dir", default=".", metavar="DIR", help="Put this folder on the import path; default: this one.")
@click.option("-v", "--verbose", is_flag=True, help="Log more than where it serves and what fails.")
@click.option("--json", "as_json", is_flag=True, help="Log JSON: a document on each line of stderr.")
def command(
    servicers: tuple[str, ...],
    addresses: tuple[str, ...],
    cert: str | None,
    key: str | None,
    client_cacert: str | None,
    reflection: bool,
    health: bool,
    channelz: bool,
    workers: int,
    grace: float,
    app_dir: str,
    verbose: bool,
    as_json: bool,
) -> None:
    """Serve servicers until SIGTERM or Ctrl-C, then drain.

    MODULE:NAME names an instance of a servicer, its class, or a function that returns one or several.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines() if as_json else logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    sys.path.insert(0, os.path.abspath(app_dir))  # noqa: PTH100 -- links in it stay what they are
    served = [one for path in servicers for one in load_servicers(path)]
    context = _context(cert, key, client_cacert)
    if health:
        served.append(HealthServicer(tuple(served)))
    if channelz:
        served.append(ChannelzServicer())
    if reflection:
        served = list(with_reflection(served))
    try:
        run(served, list(addresses), ssl_context=context, workers=workers, grace=grace)
    except (ValueError, TypeError) as error:
        raise Failure(str(error)) from error
    except OSError as error:
        raise Failure(f"cannot serve on {', '.join(addresses)}: {error}") from error


class _JsonLines(logging.Formatter):
    """Log records for programs."""

    def format(self, record: logging.LogRecord) -> str:
        values = {
            "time": record.created,
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            values["exception"] = self.formatException(record.exc_info)
        return json.dumps(values, ensure_ascii=False)


def load_servicers(path: str) -> list[Servicer]:
    """Return the servicers that an import path names.

    Raises:
        Failure: there is nothing of this name, or something else.
    """
    module_name, separator, name = path.partition(":")
    if not separator or not module_name or not name:
        raise click.UsageError(f"{path!r} names no servicer: write MODULE:NAME, as in greeter.server:Greeter")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise Failure(f"there is no module {error.name!r} on the import path (--app-dir adds a folder)") from error
        raise Failure(f"module {module_name!r} needs {error.name!r}, which is not installed") from error
    thing: Any = module
    for part in name.split("."):
        try:
            thing = getattr(thing, part)
        except AttributeError as error:
            raise Failure(f"module {module_name!r} has no {name!r}") from error
    if not isinstance(thing, Servicer) and callable(thing):
        thing = _made(path, thing)
    found = [thing] if isinstance(thing, Servicer) else thing
    if not isinstance(found, (list, tuple)) or not all(isinstance(one, Servicer) for one in found) or not found:
        raise Failure(f"{path} is {type(thing).__name__}, not a servicer, nor a function that returns some")
    return list(found)


def _made(path: str, factory: Callable[[], Any]) -> Any:
    try:
        return factory()
    except TypeError as error:
        raise Failure(f"{path} cannot be called without arguments: {error}") from error


def _context(cert: str | None, key: str | None, client_cacert: str | None) -> ssl.SSLContext | None:
    if cert is None:
        if key is not None or client_cacert is not None:
            raise click.UsageError("--key and --client-cacert are for TLS: add --cert FILE")
        return None
    try:
        if client_cacert is None:
            return server_context(cert, key)
        return server_context(cert, key, client_authorities=client_cacert)
    except (OSError, ValueError) as error:
        raise Failure(str(error)) from error


__all__ = ["command", "load_servicers"]
