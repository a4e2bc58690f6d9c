"""Whatever somebody writes into a service config: it is read, or refused with a `ServiceConfigError`."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trio_grpc import ServiceConfig, ServiceConfigError
from trio_grpc._balancing.policies import _READERS
from trio_grpc._balancing.service_config_choice import choose_service_config

#: Values of the kinds that fields have, right and wrong ones, and what is of no kind at all.
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-1, 12)
    | st.floats()
    | st.sampled_from(["1s", "0.5s", "-1s", "5", "1e400", "UNAVAILABLE", "unavailable", "round_robin", "a.B", "", "/"])
    | st.text(max_size=5)
)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


def objects(**fields: Any) -> Any:
    """Objects that have some of these fields, mostly with values that may be right, and now and then others."""

    def mostly(value: Any) -> Any:
        return st.integers(0, 29).flatmap(lambda number: value if number else anything)

    known = {name: mostly(value) for name, value in fields.items()}
    return st.fixed_dictionaries({}, optional={**known, "unknown": anything})


codes = st.lists(st.sampled_from(["UNAVAILABLE", "aborted", 8]), max_size=3)
seconds = st.sampled_from(["1s", "0.5s", "5s", "60.25s", "0s"])
count = st.integers(1, 7)
share = st.floats(0, 1001)

retry_policies = objects(
    maxAttempts=count, initialBackoff=seconds, maxBackoff=seconds, backoffMultiplier=share, retryableStatusCodes=codes
)
hedging_policies = objects(maxAttempts=count, hedgingDelay=seconds, nonFatalStatusCodes=codes)
names = objects(service=st.sampled_from(["", "a.B", "a.C"]), method=st.sampled_from(["", "D", "E/F"]))
methods = objects(
    name=st.lists(names, max_size=2),
    waitForReady=st.booleans(),
    timeout=seconds,
    maxRequestMessageBytes=count,
    maxResponseMessageBytes=count,
    retryPolicy=retry_policies,
    hedgingPolicy=hedging_policies,
)
ejections = objects(
    stdevFactor=count, enforcementPercentage=count, minimumHosts=count, requestVolume=count, threshold=count
)
policies = st.dictionaries(
    st.sampled_from([*_READERS, "unknown"]),
    objects(
        shuffleAddressList=st.booleans(),
        choiceCount=count,
        minRingSize=count,
        maxRingSize=count,
        requestHashHeader=st.text(max_size=5),
        blackoutPeriod=seconds,
        weightExpirationPeriod=seconds,
        weightUpdatePeriod=seconds,
        errorUtilizationPenalty=share,
        enableOobLoadReport=st.booleans(),
        oobReportingPeriod=seconds,
        interval=seconds,
        baseEjectionTime=seconds,
        maxEjectionTime=seconds,
        maxEjectionPercent=count,
        successRateEjection=ejections,
        failurePercentageEjection=ejections,
        childPolicy=st.just([{"round_robin": {}}]),
    ),
    min_size=1,
    max_size=1,
)
configs = objects(
    loadBalancingConfig=st.lists(policies, max_size=2),
    loadBalancingPolicy=st.sampled_from(["PICK_FIRST", "round_robin"]),
    methodConfig=st.lists(methods, max_size=3),
    retryThrottling=objects(maxTokens=share, tokenRatio=share),
    healthCheckConfig=objects(serviceName=st.text(max_size=3)),
    connectionScaling=objects(maxConnectionsPerSubchannel=count),
)


def read(config: Any) -> ServiceConfig | str:
    try:
        return ServiceConfig.from_json(config)
    except ServiceConfigError as error:
        return str(error)


@given(configs)
def test_a_config_is_read_or_refused(config: Any) -> None:
    found = read(config)
    if isinstance(found, ServiceConfig):
        for path in ("/a.B/D", "/a.C/X", "/", ""):
            method = found.method_config(path)
            assert method.retry_policy is None or method.hedging_policy is None
            assert method.retry_policy is None or 2 <= method.retry_policy.max_attempts <= 5
        # What was read does not depend on how it came, and is a value.
        try:
            text = json.dumps(config, allow_nan=False)
        except ValueError:
            return
        assert read(text) == found
        assert hash(read(text)) == hash(found)


@given(st.text() | st.binary() | anything.map(json.dumps))
def test_any_text_is_read_or_refused(text: str | bytes) -> None:
    read(text)


choices = objects(
    clientLanguage=codes,
    clientHostname=codes,
    percentage=share,
    serviceConfig=objects(loadBalancingPolicy=st.just("round_robin")),
)


@given(st.lists(choices, max_size=3) | anything)
def test_choices_are_read_or_refused(offered: Any) -> None:
    text = f"grpc_config={json.dumps(offered)}"
    with contextlib.suppress(ServiceConfigError):
        chosen = choose_service_config([text], hostname="", random_percentage=1)
        assert chosen is None or json.dumps(chosen) in text
