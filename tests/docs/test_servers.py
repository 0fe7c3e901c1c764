"""docs/servers.md names every argument that a client takes, and its example is a policy."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import pytest

from policies.servers.test_openpi import TASK, seen
from safevla_bench.policies import make_policy
from safevla_bench.policies.servers import gr00t, openpi, openvla, vla_eval

PAGE = (Path(__file__).parents[2] / "docs" / "servers.md").read_text()


@pytest.mark.parametrize("client", [openpi, gr00t, vla_eval, openvla])
def test_every_argument_of_a_client_is_in_the_table(client):
    described = set(re.findall(r"`(\w+)=", PAGE))
    assert set(list(inspect.signature(client.make).parameters)[1:]) <= described


def test_the_example_runs(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    (tmp_path / "my_policy.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_policy", raising=False)
    made = make_policy("python:my_policy:Policy", {"gain": "2"})
    made.reset(TASK, 0)
    assert made.act(seen()).tolist() == [0, 0, 0.2, 0, 0, 0, -1]
