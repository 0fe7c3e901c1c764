"""A server of any kind is told by what answers at its address, and a stranger is no policy server."""

from __future__ import annotations

import pytest

from policies.servers.test_hostile_servers import raw
from safevla_bench.errors import PolicyError, ServerUnreachableError
from safevla_bench.policies.servers import wires
from stub_servers import chunk, gr00t, gr00t_action, http_server, openpi, operation, websockets


def bare(url: str) -> str:
    return url.partition("://")[2]


@pytest.mark.parametrize("scheme", ["", "ws://", "http://"])
def test_a_websocket_server_that_is_no_harness_is_openpi_s(scheme):
    with websockets(openpi(lambda request, number: chunk(5))) as peer:
        assert wires.resolve_server(f"{scheme}{bare(peer.url)}") == f"openpi:{peer.url}"


@pytest.mark.parametrize("scheme", ["", "tcp://", "ws://"])
def test_zeromq_s_greeting_is_gr00t_s(scheme):
    with gr00t(lambda endpoint, data: gr00t_action(16)) as server:
        assert wires.resolve_server(f"{scheme}{bare(server.url)}") == f"gr00t:{server.url}"


def test_a_page_of_configuration_is_the_harness_s():
    def pages(method, path, body):
        return (200, b'{"applied": {}, "config": {}}') if path == "/config" else (426, b"")

    with http_server(pages) as server:
        assert wires.resolve_server(bare(server.url)) == f"vla-eval:ws://{bare(server.url)}"


@pytest.mark.parametrize("name", ["predict_action", "get_server_action"])
def test_an_operation_at_act_is_openvla_s(name):
    with http_server(lambda *asked: (200, operation(name))) as server:
        assert wires.resolve_server(bare(server.url)) == f"openvla:{server.url}"


def test_a_kind_that_is_given_is_believed():
    assert wires.resolve_server("gr00t:somewhere") == "gr00t:somewhere"


def test_another_web_server_is_none_of_them():
    with http_server(lambda *asked: (404, b"")) as server, pytest.raises(PolicyError, match="HTTP 404, as no policy"):
        wires.resolve_server(server.url)


def test_a_server_that_wants_a_key_says_so_and_gets_it():
    with http_server(lambda *asked: (401, b"")) as server:
        with pytest.raises(PolicyError, match="wants a key"):
            wires.resolve_server(server.url)
        with pytest.raises(PolicyError, match="refuses this key"):
            wires.resolve_server(server.url, "k3y")
        assert "Api-Key k3y" in server.headers


@pytest.mark.parametrize("scheme", ["", "ws://", "wss://", "http://", "https://"])
def test_nothing_at_an_address_is_unreachable(scheme):
    with http_server(lambda *asked: (404, b"")) as server:
        gone = bare(server.url)
    with pytest.raises(ServerUnreachableError, match=r"refused(.|\n)*Start the server, or look at its address\."):
        wires.resolve_server(scheme + gone)


def test_a_server_that_speaks_no_tls_is_unreachable_by_it():
    with (
        http_server(lambda *asked: (404, b"")) as server,
        pytest.raises(ServerUnreachableError, match=r"https://.*SSL"),
    ):
        wires.resolve_server(f"https://{bare(server.url)}")


def test_a_stranger_s_noise_is_no_server(monkeypatch):
    monkeypatch.setattr(wires, "_ANSWER_S", 0.5)
    with (
        raw(lambda connection, over: connection.sendall(b"SSH-2.0-OpenSSH\r\n")) as address,
        pytest.raises(ServerUnreachableError, match="no HTTP"),
    ):
        wires.resolve_server(address)


@pytest.mark.parametrize("text", ["nonsense", "localhost", "ftp://a:1", "http://a:99999999", ""])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(PolicyError, match="is not the address of a server"):
        wires.resolve_server(text)


def test_a_password_in_an_address_is_not_repeated():
    with pytest.raises(PolicyError) as caught:
        wires.resolve_server("http://user:pa55word@host:1")
    assert "pa55word" not in str(caught.value)


def test_the_other_kind_of_a_server_that_was_named_wrong_is_found():
    with gr00t(lambda endpoint, data: gr00t_action(16)) as server:
        assert wires.other_kind(f"openpi:ws://{bare(server.url)}") == f"gr00t:{server.url}"
        assert wires.other_kind(f"gr00t:{server.url}") is None
    assert wires.other_kind("openpi:ws://127.0.0.1:9") is None
