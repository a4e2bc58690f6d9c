"""Which of the service configs that DNS offers is this client's: TXT records of ``_grpc_config.host`` (gRFC A2)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from trio_grpc._balancing.json_fields import ServiceConfigError, array, as_mapping, mapping, number, within

#: How the one attribute begins that counts.
_ATTRIBUTE = "grpc_config="
#: What we are to those who write choices (gRFC A2: "this client's language"), and how it is compared.
_LANGUAGE = "python"


def choose_service_config(
    txt_attributes: Sequence[str], *, hostname: str, random_percentage: float
) -> Mapping[str, object] | None:
    """Return the first service config whose conditions hold for this client, as it was parsed; None if there is none.

    Args:
        txt_attributes: the attributes of the name's TXT records, those in several strings joined.
        hostname: of the machine that this client runs on.
        random_percentage: drawn once for this client, from 0 up to but not including 100: a choice that is for 20 % of
            the clients holds for those that have drawn less than 20.

    Raises:
        ServiceConfigError: the attribute is no list of choices, or a choice is malformed. The service config in it is
            not looked into.
    """
    texts = [attribute[len(_ATTRIBUTE) :] for attribute in txt_attributes if attribute.startswith(_ATTRIBUTE)]
    if not texts:
        return None
    with within("grpc_config"):
        # The first, as in grpc-go and C-core.
        choices = _parse(texts[0])
        chosen: Mapping[str, object] | None = None
        for index, item in enumerate(choices):
            with within(f"[{index}]"):
                config = _choice(as_mapping("", item), hostname, random_percentage)
            if chosen is None:
                # All are checked all the same: what is wrong is wrong for everybody (gRFC A2).
                chosen = config
        return chosen


def _parse(text: str) -> Sequence[object]:
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ServiceConfigError("", f"is not JSON: {error}") from error
    if not isinstance(choices, list):
        raise ServiceConfigError("", "must be a list of choices")
    return choices


def _choice(choice: Mapping[str, object], hostname: str, random_percentage: float) -> Mapping[str, object] | None:
    """Return the service config of a choice if its conditions hold."""
    config = mapping(choice, "serviceConfig")
    if config is None:
        raise ServiceConfigError("serviceConfig", "is missing")
    languages = [language.lower() for language in _texts(choice, "clientLanguage")]
    hosts = _texts(choice, "clientHostname")
    percentage = number(choice, "percentage", None)
    if percentage is not None and not 0 <= percentage <= 100:
        raise ServiceConfigError("percentage", f"must be from 0 to 100, got {percentage:g}")
    holds = (
        (not languages or _LANGUAGE in languages)
        and (not hosts or hostname in hosts)
        and (percentage is None or random_percentage < percentage)
    )
    return config if holds else None


def _texts(choice: Mapping[str, object], name: str) -> list[str]:
    texts = []
    for index, item in enumerate(array(choice, name)):
        if not isinstance(item, str):
            raise ServiceConfigError(f"{name}[{index}]", "must be a string")
        texts.append(item)
    return texts


__all__ = ["choose_service_config"]
