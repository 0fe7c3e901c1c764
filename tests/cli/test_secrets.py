"""No secret is ever printed, logged or written, wherever it was given and whoever repeats it.

A secret of its own is planted in each place where one can be given; then every byte of every output is searched.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from policies.servers.stub_servers import chunk, gr00t, openpi, vla_eval, websockets
from safevla_bench import cli
from safevla_bench.policies.servers import serve
from safevla_bench.policies.servers.codecs import OPENPI
from safevla_bench.text import is_secret_name, redact_secrets
from scenes import WITHOUT_WRIST

SECRET = "pl4nted-s3cret"
FAKE = ["--host", "fake", "--suite", "fake", "--task", "0", "--max-steps", "3"]
QUICK = [f"--policy-arg={text}" for text in ("cameras=agentview,none", "connect_timeout_s=0.3", "timeout_s=5")]
LOOKS = """
import os
from pathlib import Path

import numpy as np


class Policy:
    def __init__(self, at, **arguments):
        self.at = Path(at)

    def act(self, observation):
        titles = [Path(f"/proc/{process}/cmdline").read_bytes() for process in (os.getpid(), os.getppid())]
        (self.at / f"title-{os.getpid()}").write_bytes(b"\\n".join(titles))
        return np.zeros(7)
"""


@pytest.fixture
def run_command(capfd, tmp_path, caplog, monkeypatch):
    """Run a command as it was typed; returns its exit code. What it left behind is searched at the end."""
    caplog.set_level(logging.DEBUG)
    logging.getLogger("websockets").setLevel(logging.WARNING)  # those of the server that the test itself runs
    outputs = []

    def run(*words: object) -> int:
        monkeypatch.setattr(sys, "argv", ["safevla", *map(str, words)])
        code = cli.run_command_line([str(word) for word in words])
        outputs.append("".join(capfd.readouterr()))  # the workers' too
        return code

    yield run
    assert outputs
    assert SECRET not in "".join(outputs)
    assert SECRET not in caplog.text
    for path in tmp_path.rglob("*"):
        assert SECRET not in str(path)
        assert not path.is_file() or path.name == "key" or SECRET.encode() not in contents(path), path


def contents(path: Path) -> bytes:
    """The bytes of a file, those of compressed parts as they were."""
    content = path.read_bytes()
    if path.suffix == ".zst":
        import pyarrow as pa

        with pa.CompressedInputStream(pa.BufferReader(content), "zstd") as stream:
            return stream.read()
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return repr(pq.read_table(path).to_pylist()).encode()
    return content


ADDRESSES = [f"ws://user:{SECRET}@h:1", f"ws://{SECRET}@h", f"ws://h:1/?token={SECRET}", f"ws://h:1/#{SECRET}"]


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("policy", ["openpi", "vla-eval", "gr00t"])
def test_in_an_address(run_command, tmp_path, address, policy):
    address = address.replace("ws:", "tcp:") if policy == "gr00t" else address
    for more in ([], ["--dry-run"], ["--workers", "2"]):
        assert run_command("eval", *FAKE, "--policy", f"{policy}:{address}", *more, "--out", tmp_path / "run") == 2
    assert run_command("serve", "--policy", f"{policy}:{address}", "--port", "0") == 2


@pytest.mark.parametrize("address", ADDRESSES)
def test_in_the_address_of_an_entry_s_server(run_command, tmp_path, address):
    for server in (address, f"libero-spatial={address}", f"nowhere={address}"):
        arguments = ["--entry", "pi0.5@libero", "--suite", "libero-spatial", "--server", server]
        for more in ([], ["--dry-run"]):
            assert run_command("eval", "--record-only", *arguments, *more, "--out", tmp_path / "run") == 2


@pytest.mark.parametrize("address", ADDRESSES)
def test_in_what_is_typed_wrongly(run_command, tmp_path, address):
    out = ["--out", tmp_path / "run"]
    assert run_command("eval", *FAKE, "--policy", "noop", "--policy-arg", f"openpi:{address}:replan=1", *out) == 2
    assert run_command("eval", *FAKE, "--policy", "noop", address, *out) == 2
    assert run_command("eval", *FAKE, "--policy", "noop", "--workers", address, *out) == 2
    assert run_command("eval", *FAKE, "--policy", address, *out) == 2
    assert run_command("eval", *FAKE, "--policy", "noop", f"--{address}", *out) == 2
    (tmp_path / "key").write_text(f'host = "fake"\nsuite = ["fake"]\npolicy = ["openpi:{address}"]\n')
    assert run_command("eval", "--config", tmp_path / "key", *out) == 2


NAMES = ("api_key", "token", "hf_token", "password", "client-secret", "Authorization", "private_key", "passwd")


@pytest.mark.parametrize("name", NAMES)
def test_as_an_argument(run_command, tmp_path, name, monkeypatch):
    (tmp_path / "looks.py").write_text(LOOKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    for policy in ("noop", "python:looks:Policy", "openpi:ws://h:1"):
        arguments = [*FAKE, "--policy", policy, f"--policy-arg={name}={SECRET}", "--out", tmp_path / "run"]
        assert run_command("eval", *arguments) == 2
        assert run_command("eval", *arguments, "--dry-run") == 2
        assert run_command("serve", "--policy", policy, f"--policy-arg={name}={SECRET}") == 2
    assert run_command("eval", *FAKE, "--policy", "noop", f"--host-arg={name}={SECRET}", "--out", tmp_path / "run") == 2


@pytest.mark.parametrize("name", NAMES)
def test_as_an_argument_of_a_filter(run_command, tmp_path, name):
    for filter_name in ("python:guarded:Filter", "smooth", "random=python:guarded:Filter", "other=clip"):
        arguments = [*FAKE, "--policy", "random", "--filter", f"{filter_name}:{name}={SECRET}"]
        for more in ([], ["--dry-run"], ["--workers", "2"]):
            assert run_command("eval", *arguments, *more, "--out", tmp_path / "run") == 2


@pytest.mark.parametrize("value", [f"https://me:{SECRET}@h/x", f"https://h/x?key={SECRET}"])
def test_in_an_address_as_the_value_of_an_argument(run_command, tmp_path, value):
    arguments = ["--policy", "mine=python:numpy:array", f"--policy-arg=at={value}", "--out", tmp_path / "run"]
    assert run_command("eval", *FAKE, *arguments) == 2


def test_names_of_arguments_that_hold_no_secret_are_free():
    free = ("key_file", "tokenizer", "image_key", "authors", "tokens", "at", "unnorm_key", "max_tokens", "state_key")
    assert not any(map(is_secret_name, (*free, "eos_token_id", "tokens_per_step")))


def test_the_usual_names_of_secrets_are_known_in_any_spelling():
    names = """token access_token hf_token authToken API_KEY apikey api-key secret secret_key client_secret access_key
        aws_secret_access_key private_key ssh_key passwd password passphrase db_password pwd auth http_auth bearer
        credential credentials cookie jwt secrets api_keys private_key_pem token_2 wandb_key deploy_key dsn"""
    assert all(map(is_secret_name, names.split()))


@pytest.mark.parametrize("source", ["default", "file"])
def test_in_the_environment_or_a_file_while_all_goes_well(run_command, tmp_path, monkeypatch, source):
    key_options = plant_key(tmp_path, monkeypatch, source)
    (tmp_path / "looks.py").write_text(LOOKS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    run, at = tmp_path / "run", f"--policy-arg=python:looks:Policy:at={tmp_path}"
    with websockets(openpi(lambda request, number: chunk(5), WITHOUT_WRIST)) as peer:
        policy = f"openpi:{peer.url}"
        # The server answers, so a long time limit costs nothing; a short one fails on a busy machine.
        patient = [word.replace("0.3", "60").replace("timeout_s=5", "timeout_s=60") for word in QUICK]
        key_options = [word.replace("--policy-arg=", f"--policy-arg={policy}:") for word in [*key_options, *patient]]
        arguments = ["--policy", policy, "--policy", "python:looks:Policy", *key_options, at]
        assert run_command("eval", *FAKE, *arguments, "--dry-run") == 0
        workers = "2" if source == "default" else "1"
        assert run_command("eval", *FAKE, *arguments, "--record-only", "--workers", workers, "--out", run) == 0
        assert set(peer.headers) == {f"Api-Key {SECRET}"}
    assert list(tmp_path.glob("title-*"))
    if source == "default":
        for words in (["score", run, "--out", run], ["episodes", run], ["verify", run]):
            assert run_command(*words) in (0, 1)


def test_in_the_environment_of_the_doctor(run_command, monkeypatch):
    for name in ("SAFEVLA_API_KEY", "HF_TOKEN", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, SECRET)
    assert run_command("doctor", "--quick") in (0, 2)


def plant_key(place: Path, monkeypatch, source: str) -> list[str]:
    """The words that name a key, which is given in one of the two ways."""
    monkeypatch.delenv("SAFEVLA_API_KEY", raising=False)
    if source == "file":
        (place / "key").write_text(SECRET)
        return [f"--policy-arg=key_file={place / 'key'}"]
    monkeypatch.setenv("SAFEVLA_API_KEY", SECRET)
    return []


def closing(connection):
    connection.send(OPENPI.pack({}))
    connection.recv()
    connection.close(1011, f"the key was {SECRET}")


def in_a_dtype(connection):
    connection.send(OPENPI.pack({"model": SECRET, SECRET: [SECRET], "nested": {"key": SECRET}}))
    connection.recv()
    connection.send(OPENPI.pack({"actions": {b"__ndarray__": True, b"data": b"", b"dtype": SECRET, b"shape": []}}))


def refuse(connection, request):
    response = connection.respond(403, f"{SECRET} is no key\n")
    response.headers["X-Key"] = SECRET
    return response


@pytest.mark.parametrize(
    ("kind", "handle", "options", "workers"),
    [
        ("openpi", openpi(lambda *_: f"Traceback:\n  {SECRET}\nValueError: bad {SECRET}", WITHOUT_WRIST), {}, "1"),
        ("openpi", openpi(lambda *_: f"Traceback:\n  {SECRET}\nValueError: bad {SECRET}", WITHOUT_WRIST), {}, "2"),
        ("openpi", closing, {}, "1"),
        ("openpi", in_a_dtype, {}, "1"),
        ("openpi", lambda connection: connection.send(SECRET), {}, "1"),
        ("openpi", lambda connection: None, {"process_request": refuse}, "1"),
        ("vla-eval", vla_eval(lambda *_: {"type": "error", "payload": {"error": f"bad {SECRET}"}}, []), {}, "1"),
        ("vla-eval", vla_eval(lambda *_: {"type": SECRET, "payload": {}}, []), {}, "1"),
        ("vla-eval", closing, {}, "1"),
    ],
)
def test_where_a_server_repeats_it(run_command, tmp_path, monkeypatch, kind, handle, options, workers):
    monkeypatch.setenv("SAFEVLA_API_KEY", SECRET)
    with websockets(handle, **options) as peer:
        arguments = [*FAKE, "--policy", f"{kind}:{peer.url}", *QUICK, "--workers", workers, "--out", tmp_path / "run"]
        assert run_command("eval", *arguments) in (2, 4)


def test_where_a_zeromq_server_repeats_it(run_command, tmp_path, monkeypatch):
    monkeypatch.setenv("SAFEVLA_API_KEY", SECRET)
    for answer in (lambda endpoint, request: {"error": f"bad {SECRET}"}, lambda endpoint, request: [SECRET]):
        with gr00t(answer, token=SECRET) as server:
            arguments = [*FAKE, "--policy", f"gr00t:{server.url}", *QUICK, "--out", tmp_path / server.url[-5:]]
            assert run_command("eval", *arguments) in (2, 4)


def test_with_a_key_a_server_of_ours_tells_it_to_nobody(run_command, tmp_path, monkeypatch):
    from policies.servers.test_serve import served
    from safevla_bench.policies import make_policy

    monkeypatch.setenv("SAFEVLA_API_KEY", "another-key")
    with served(lambda: make_policy("noop"), key=SECRET) as url:
        assert run_command("eval", *FAKE, "--policy", f"openpi:{url}", *QUICK, "--out", tmp_path / "run") in (2, 4)
    assert SECRET not in repr(serve.ServedPolicy("noop", lambda: make_policy("noop")).metadata())


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("ws://user:word@host:1/a", "ws://***@host:1/a"),
        ("see https://host/a?b=c&d=e and f", "see https://host/a?*** and f"),
        ("'ws://h/#x' stays", "'ws://h/#***' stays"),
        ("mail a@b.c? #1", "mail a@b.c? #1"),
        ("ws://127.0.0.1:8000/p", "ws://127.0.0.1:8000/p"),
        ("ws://user:p@ss@host:1/a", "ws://***@host:1/a"),
        ("ws://user:pass/word@host", "ws://***@host"),
        ("https://host:443/project@v1", "https://host:443/project@v1"),
        ("https://a/?b,c://user:word@d", "https://a/?***"),
    ],
)
def test_addresses_are_printed_without_user_query_and_fragment(text, redacted):
    assert redact_secrets(text) == redacted


def test_a_text_of_addresses_alone_is_redacted_in_time_that_grows_with_it():
    text = 50_000 * "://a:b"  # each was once searched to the text's end
    assert redact_secrets(text) == text
