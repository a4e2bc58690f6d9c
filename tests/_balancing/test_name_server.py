"""Asking a name server: targets that name one, and what is made of its answers (without sockets)."""

from __future__ import annotations

import sys
from math import inf
from typing import Any

import dns.asyncresolver
import dns.message
import dns.rcode
import dns.resolver
import pytest
import trio
import trio.testing

import trio_grpc
from tests.support import name_server as support
from trio_grpc._balancing.dns import DnsResolver
from trio_grpc._balancing.name_server import NameServer
from trio_grpc._balancing.naming import resolve_name, unresolved
from trio_grpc._balancing.target import TcpTarget
from trio_grpc.testing import ManualResolver

Clock = trio.testing.MockClock


@pytest.mark.parametrize(
    ("target", "server", "text", "hostname", "authority"),
    [
        (
            "dns://10.0.0.10/greeter.example:50051",
            TcpTarget("10.0.0.10", 53),
            "dns://10.0.0.10/greeter.example:50051",
            "greeter.example",
            "greeter.example:50051",
        ),
        (
            "dns://10.0.0.10:5353/greeter.example",
            TcpTarget("10.0.0.10", 5353),
            "dns://10.0.0.10:5353/greeter.example:443",
            "greeter.example",
            "greeter.example:443",
        ),
        (
            "dns://[fd00::a]:54/greeter.example",
            TcpTarget("fd00::a", 54),
            "dns://[fd00::a]:54/greeter.example:443",
            "greeter.example",
            "greeter.example:443",
        ),
        ("dns://[::1]/a:1", TcpTarget("::1", 53), "dns://[::1]/a:1", "a", "a:1"),
    ],
)
def test_a_target_that_names_a_name_server(
    target: str, server: TcpTarget, text: str, hostname: str, authority: str
) -> None:
    name = resolve_name(target, {})
    assert (name.text, name.hostname, name.authority) == (text, hostname, authority)
    assert isinstance(name.resolver, DnsResolver)
    lookup: Any = name.resolver.lookup
    assert lookup.__self__.address == server
    # Nobody else would know the names that it knows.
    assert unresolved(name) is name


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("dns://ns.example/host", "the name server 'ns.example' must be an IP address"),
        ("dns://10.0.0.10:x/host", "port 'x' is not a number"),
        ("dns://[::1/host", "IPv6"),
        ("dns://10.0.0.10/", "has no host"),
        ("dns://10.0.0.10/host:x", "port 'x' is not a number"),
    ],
)
def test_malformed_targets(target: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        trio_grpc.open_channel(target)


def test_a_resolver_of_the_users_own_makes_of_it_what_it_likes() -> None:
    resolver = ManualResolver()
    name = resolve_name("dns://anything/host:1", {"dns": resolver})
    assert name.resolver is resolver
    assert name.target.authority == "anything"


def test_without_dnspython_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dns.asyncresolver", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        trio_grpc.open_channel("dns://10.0.0.10/host")
    assert str(caught.value) == (
        "target 'dns://10.0.0.10/host' needs dnspython, which is not installed: pip install 'trio-grpc[dns]'"
    )
    # Nobody else needs it.
    trio_grpc.open_channel("dns:///host")
    with pytest.raises(ModuleNotFoundError, match=r"^service_config_from_dns needs dnspython"):
        trio_grpc.open_channel("dns:///host", service_config_from_dns=True)
    trio_grpc.open_channel("ipv4:10.0.0.1:5", service_config_from_dns=True)


class Answers:
    """In the place of dnspython's sockets: a name server that a test gives its records."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = support.NameServer({})
        self.broken: dict[str, Exception] = {}
        self.takes = 0.0
        self.silent: tuple[str, ...] = ()
        self.searches: list[bool] = []
        self.made: list[dns.asyncresolver.Resolver] = []
        answers = self

        class Resolver(dns.asyncresolver.Resolver):
            def __init__(self, configure: bool = True) -> None:
                super().__init__(configure=False)
                if configure:
                    self.nameservers = ["192.0.2.1"]
                answers.made.append(self)

            async def resolve(self, qname: Any, rdtype: Any = "A", *_: Any, search: bool, **__: Any) -> Any:
                answers.searches.append(search)
                await trio.sleep(inf if rdtype in answers.silent else answers.takes)
                if rdtype in answers.broken:
                    raise answers.broken[rdtype]
                query = dns.message.make_query(qname, rdtype)
                response = dns.message.from_wire(answers.server.answer(query.to_wire(), "memory"))
                question = query.question[0]
                if response.rcode() == dns.rcode.NXDOMAIN:
                    raise dns.resolver.NXDOMAIN(qnames=[question.name], responses={question.name: response})
                assert isinstance(response, dns.message.QueryMessage)
                answer = dns.resolver.Answer(question.name, question.rdtype, question.rdclass, response)
                if answer.rrset is None:
                    raise dns.resolver.NoAnswer(response=response)
                return answer

        monkeypatch.setattr(dns.asyncresolver, "Resolver", Resolver)
        name_server = NameServer(TcpTarget("10.0.0.10", 53), "this")
        self.addresses = name_server.addresses
        self.texts = name_server.texts


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    return Answers(monkeypatch)


async def test_both_kinds_of_addresses_are_asked_for_at_once(answers: Answers, autojump_clock: Clock) -> None:
    answers.server.records = {("a.example.", "A"): ["10.0.0.1", "10.0.0.2"], ("a.example.", "AAAA"): ["fd00::1"]}
    answers.takes = 3
    first, *others = await answers.addresses("a.example", 1)
    assert first == "fd00::1"
    assert sorted(others) == ["10.0.0.1", "10.0.0.2"]
    assert trio.current_time() == 3


@pytest.mark.parametrize(("kind", "address"), [("A", "10.0.0.1"), ("AAAA", "fd00::1")])
async def test_one_kind_is_enough(answers: Answers, autojump_clock: Clock, kind: str, address: str) -> None:
    answers.server.records = {("a.example.", kind): [address]}
    assert await answers.addresses("a.example", 1) == [address]
    answers.broken = {("AAAA" if kind == "A" else "A"): dns.resolver.NoNameservers()}
    assert await answers.addresses("a.example", 1) == [address]


@pytest.mark.parametrize(("kind", "address"), [("A", "10.0.0.1"), ("AAAA", "fd00::1")])
async def test_no_answer_for_one_kind_is_not_waited_for_as_long_as_for_both(
    answers: Answers, autojump_clock: Clock, kind: str, address: str
) -> None:
    """There are name servers, and boxes before them, that do not answer for AAAA at all."""
    answers.server.records = {("a.example.", kind): [address]}
    answers.silent = ("AAAA" if kind == "A" else "A",)
    answers.takes = 2
    assert await answers.addresses("a.example", 1) == [address]
    assert trio.current_time() == 7


async def test_a_host_without_addresses_has_none(answers: Answers, autojump_clock: Clock) -> None:
    answers.server.records = {("a.example.", "TXT"): ['"hello"']}
    assert await answers.addresses("a.example", 1) == []


async def test_a_name_that_does_not_exist(answers: Answers, autojump_clock: Clock) -> None:
    with pytest.raises(dns.resolver.NXDOMAIN, match=r"does not exist: nobody\.example"):
        await answers.addresses("nobody.example", 1)


async def test_texts_come_in_one_piece_each(answers: Answers, autojump_clock: Clock) -> None:
    answers.server.records = {("_grpc_config.a.example.", "TXT"): ['"grpc_config=" "[]"', '"other"']}
    assert sorted(await answers.texts("_grpc_config.a.example")) == ["grpc_config=[]", "other"]
    assert await answers.texts("_grpc_config.nobody.example") == []
    answers.broken = {"TXT": dns.resolver.NoNameservers()}
    with pytest.raises(dns.resolver.NoNameservers):
        await answers.texts("_grpc_config.a.example")


async def test_the_name_servers_of_the_system_are_asked_with_its_search_domains(
    answers: Answers, autojump_clock: Clock
) -> None:
    answers.server.records = {("_grpc_config.a.", "TXT"): ['"grpc_config=[]"']}
    assert await NameServer(None, "this").texts("_grpc_config.a") == ["grpc_config=[]"]
    await answers.texts("_grpc_config.a")
    assert answers.searches == [True, False]
    # The first is configured by the system, the second by us.
    assert [resolver.nameservers == ["192.0.2.1"] for resolver in answers.made] == [True, False]


async def test_names_of_other_alphabets(answers: Answers, autojump_clock: Clock) -> None:
    answers.server.records = {("xn--bcher-kva.example.", "A"): ["10.0.0.1"]}
    assert await answers.addresses("bücher.example", 1) == ["10.0.0.1"]


async def test_a_name_server_that_keeps_silent_is_given_up(answers: Answers, autojump_clock: Clock) -> None:
    answers.takes = trio.current_time() + 1e6
    async with trio_grpc.open_channel("dns://10.0.0.10/a.example") as channel:
        channel.connect()
        await trio.sleep(29.9)
        assert channel.state is trio_grpc.ConnectivityState.CONNECTING
        await trio.sleep(0.2)
        assert channel.state is trio_grpc.ConnectivityState.TRANSIENT_FAILURE
        assert channel._unready_reason() == ("failed to resolve dns://10.0.0.10/a.example:443: no answer within 30 s")
