"""Meta-World's expert is refused before a run where Meta-World is missing; with it, see tests/hosts/metaworld."""

from __future__ import annotations

import sys

import pytest

from safevla_bench.errors import PolicyError
from safevla_bench.policies import make_policy


def test_without_meta_world_the_policy_cannot_be_made(monkeypatch):
    monkeypatch.setitem(sys.modules, "metaworld.policies", None)
    with pytest.raises(PolicyError, match="needs the package metaworld") as caught:
        make_policy("metaworld:expert")
    assert "safevla-bench[metaworld]" in caught.value.remedy
