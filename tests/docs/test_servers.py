"""howto/servers.md and reference/protocols.md name every server, argument, protocol and entry; the example runs."""

from __future__ import annotations

import inspect
import re
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from policies.servers.stub_servers import TASK, observe
from safevla_bench.hosts import protocols
from safevla_bench.policies import GROUP, make_policy
from safevla_bench.policies.servers import KINDS, entries

DOCS = Path(__file__).parents[2] / "docs"
SERVERS, PROTOCOLS = (
    (DOCS / f"{name}.md").read_text(encoding="utf-8") for name in ("howto/servers", "reference/protocols")
)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_of_server_and_every_argument_of_its_client_is_in_a_table(kind):
    (client,) = entry_points(group=GROUP, name=kind.name)
    assert f"\n| `{kind.example}` | " in SERVERS
    described = set(re.findall(r"`(\w+)=", SERVERS))
    assert set(list(inspect.signature(client.load()).parameters)[1:]) <= described


def test_the_example_runs(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", SERVERS, re.S)
    (tmp_path / "my_policy.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_policy", raising=False)
    policy = make_policy("python:my_policy:Policy", {"gain": "2"})
    policy.reset(TASK, 0)
    assert policy.act(observe()).tolist() == [0, 0, 0.2, 0, 0, 0, -1]


def test_the_protocols_and_entries_are_those_that_there_are():
    assert all(f"`{name}`" in PROTOCOLS for name in protocols.protocol_names())
    rows = re.findall(r"^\| `(\S+@\S+)` \| `(\S+)` \| `(\S+)` \|$", PROTOCOLS, re.M)
    listed = [entry for entry in entries.paper_entries() if entry.listed == "paper" and not entry.auxiliary]
    assert rows == [(entry.name, entry.transport, entry.protocol) for entry in listed]
    assert all(f"`{entry.name}`" in PROTOCOLS for entry in entries.paper_entries() if entry.listed != "paper")
    pi05 = entries.find_entry("pi0.5@libero")
    assert pi05.serve.format(checkpoint=pi05.checkpoint("libero-goal")) in PROTOCOLS
