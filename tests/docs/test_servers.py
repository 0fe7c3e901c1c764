"""docs/servers.md names every argument that a client takes, and its example is a policy."""

from __future__ import annotations

import inspect
import re
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from safevla_bench.policies import GROUP, make_policy
from safevla_bench.policies.servers.client import KINDS
from stub_servers import TASK, seen

PAGE = (Path(__file__).parents[2] / "docs" / "servers.md").read_text()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_of_server_and_every_argument_of_its_client_is_in_a_table(kind):
    (client,) = entry_points(group=GROUP, name=kind.name)
    assert f"\n| `{kind.example}` | " in PAGE
    described = set(re.findall(r"`(\w+)=", PAGE))
    assert set(list(inspect.signature(client.load()).parameters)[1:]) <= described


def test_the_example_runs(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    (tmp_path / "my_policy.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_policy", raising=False)
    made = make_policy("python:my_policy:Policy", {"gain": "2"})
    made.reset(TASK, 0)
    assert made.act(seen()).tolist() == [0, 0, 0.2, 0, 0, 0, -1]
