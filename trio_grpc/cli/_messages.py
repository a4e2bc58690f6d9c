"""JSON to protobuf messages and back, by protobuf's own JSON mapping."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool

from trio_grpc.cli._failure import Failure


class Documents:
    """Cuts a text that comes piece by piece into JSON documents: one after the other, or the items of nothing else."""

    def __init__(self) -> None:
        self._text = ""
        self._decoder = json.JSONDecoder()

    def feed(self, text: str) -> Iterator[Any]:
        """Return the documents that are complete now.

        Raises:
            Failure: that is no JSON; the line says where.
        """
        self._text = (self._text + text).lstrip()
        while self._text:
            try:
                document, end = self._decoder.raw_decode(self._text)
            except json.JSONDecodeError as error:
                if error.pos >= len(self._text.rstrip()) or error.msg.startswith("Unterminated string"):
                    # More may come.
                    return
                raise _no_json(error) from error
            except (RecursionError, ValueError) as error:
                raise _beyond(error) from error
            if end == len(self._text) and not isinstance(document, (dict, list, str)):
                # A number may go on.
                return
            self._text = self._text[end:].lstrip()
            yield document

    def end(self) -> Iterator[Any]:
        """Return the last document, at the end of the text.

        Raises:
            Failure: it is not complete.
        """
        if self._text:
            try:
                yield json.loads(self._text)
            except json.JSONDecodeError as error:
                raise _no_json(error) from error
            except (RecursionError, ValueError) as error:
                raise _beyond(error) from error
            self._text = ""


def parse_documents(text: str) -> list[Any]:
    """Return all JSON documents of a text.

    Raises:
        Failure: that is no JSON; the line says where.
    """
    documents = Documents()
    return [*documents.feed(text), *documents.end()]


def to_message(message_type: Any, document: Any, pool: DescriptorPool) -> Any:
    """Return the message that a JSON document describes.

    Args:
        message_type: its class.
        document: what JSON gave.
        pool: has the types of ``google.protobuf.Any`` fields.

    Raises:
        Failure: the document does not fit; the line says where.
    """
    name = message_type.DESCRIPTOR.full_name
    if not isinstance(document, dict) and not name.startswith("google.protobuf."):
        raise Failure(f"JSON does not fit {name}: it must be an object, not {json.dumps(document)[:60]}")
    message = message_type()
    try:
        json_format.ParseDict(document, message, descriptor_pool=pool)
    except json_format.ParseError as error:
        raise Failure(f"JSON does not fit {name}: {error}") from error
    except RecursionError as error:
        raise Failure(f"JSON does not fit {name}: it is nested too deeply") from error
    return message


def to_document(message: Any, pool: DescriptorPool, *, defaults: bool = False) -> Any:
    """Return what is printed for a message.

    Args:
        message: any message.
        pool: has the types of ``google.protobuf.Any`` fields. One that it has not is printed as base64.
        defaults: print fields that are not set, too.
    """
    options = {"always_print_fields_with_no_presence": True} if defaults else {}
    try:
        return json_format.MessageToDict(message, descriptor_pool=pool, **options)
    except (TypeError, ValueError, json_format.Error):
        if message.DESCRIPTOR.full_name != "google.protobuf.Any":
            return {"@bytes": base64.b64encode(message.SerializeToString()).decode()}
        return {"@type": message.type_url, "@bytes": base64.b64encode(message.value).decode()}


def _no_json(error: json.JSONDecodeError) -> Failure:
    # Python's sentence about a string without an end goes on with the place.
    return Failure(f"that is no JSON: {error.msg.removesuffix(' at')} at line {error.lineno}, column {error.colno}")


def _beyond(error: RecursionError | ValueError) -> Failure:
    """Return the failure for JSON that Python will not read."""
    reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
    return Failure(f"that JSON cannot be read: {reason}")


__all__ = ["Documents", "parse_documents", "to_document", "to_message"]
