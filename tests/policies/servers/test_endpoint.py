"""What a server says of itself is kept bounded, as plain JSON, and without secrets."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.servers.stub_servers import TASK, chunk, http_server, observe, playing, websockets
from safevla_bench.errors import PolicyError
from safevla_bench.policies import make_policy
from safevla_bench.policies.servers import KINDS
from safevla_bench.policies.servers.codecs import OPENPI
from safevla_bench.policies.servers.endpoint import MAX_BYTES, sanitize_greeting


def test_a_checkpoint_is_kept_and_secrets_are_hidden():
    greeting = {
        "checkpoint": "pi05/75000",
        "nested": {"api_key": "abc", "url": "s3://user:word@store/x"},
        "echo": "you sent k3y",
        "HF_TOKEN": ["x"],
        "tokenizer": "t5",
    }
    assert sanitize_greeting(greeting, "k3y") == {
        "checkpoint": "pi05/75000",
        "nested": {"api_key": "***", "url": "s3://***@store/x"},
        "echo": "you sent ***",
        "HF_TOKEN": "***",
        "tokenizer": "t5",
    }


def test_what_is_not_a_plain_json_is_described():
    greeting = {"a": np.zeros((2, 3), np.uint8), "b": b"123", "c": np.float32(0.5), "d": float("nan"), 5: 2**70}
    assert sanitize_greeting(greeting) == {"a": "uint8 [2, 3]", "b": "b'123'", "c": 0.5, "d": "nan", "5": str(2**70)}


@pytest.mark.parametrize("greeting", [None, [], "text", 3])
def test_what_is_not_a_map_says_nothing(greeting):
    assert sanitize_greeting(greeting) == {}


def test_a_long_greeting_is_cut_and_still_differs_from_another():
    first, second = ({"short": 1, **{f"k{n}": letter * 190 for n in range(40)}} for letter in "ab")
    assert len(json.dumps(sanitize_greeting(first), separators=(",", ":"))) <= MAX_BYTES
    assert sanitize_greeting(first)["short"] == 1
    assert sanitize_greeting(first)["sha256 of all"] != sanitize_greeting(second)["sha256 of all"]


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=12,
)


@settings(max_examples=30)
@given(st.dictionaries(st.text() | st.integers(), ANY))
def test_any_greeting_becomes_json_of_bounded_size_and_fitting_it_again_changes_nothing(greeting):
    bounded = sanitize_greeting(greeting)
    encoded = msgspec.json.encode(bounded)  # as run.json holds it; other encoders write some floats a byte longer
    assert len(encoded) <= MAX_BYTES
    assert json.loads(encoded) == json.loads(json.dumps(bounded, allow_nan=False))
    assert sanitize_greeting(bounded) == bounded


def test_a_client_keeps_what_its_server_says(monkeypatch):
    monkeypatch.setenv("SAFEVLA_API_KEY", "k3y")

    def handle(connection):
        connection.send(OPENPI.pack({"checkpoint": "A", "echo": "k3y"}))
        for _ in connection:
            connection.send(OPENPI.pack(chunk(10)))

    with websockets(handle) as peer:
        policy = make_policy(f"openpi:{peer.url}")
        assert not policy.greeting
        policy.reset(TASK, 0)
        policy.act(observe())
        policy.close()
    assert policy.greeting == {"checkpoint": "A", "echo": "***"}


def test_a_policy_of_one_s_own_may_say_something_of_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "speaks.py").write_text(
        "class Policy:\n    greeting = {'checkpoint': 'mine'}\n    def act(self, observation): ...\n"
    )
    assert make_policy("python:speaks:Policy").greeting == {"checkpoint": "mine"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_path_of_an_address_is_asked_or_refused(kind):
    """One gateway may have several models, each at its own path."""
    paths = []
    with http_server(lambda method, path, body: paths.append(path) or (404, b"")) as server:
        address = server.url.replace("http", KINDS[kind].schemes[0])
        with pytest.raises(PolicyError) as caught, playing(kind, f"{address}/model-a") as policy:
            policy.act(observe())
    assert paths or "needs a valid address" in caught.value.problem
    assert all(path.startswith("/model-a") for path in paths)
    with pytest.raises(PolicyError, match="needs a valid address"):
        make_policy(f"{kind}:{address}/a b")
