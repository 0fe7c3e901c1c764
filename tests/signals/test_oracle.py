"""Every signal agrees with the independent oracle of `tests/judging`, record by record, on random episodes."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, TypeAlias

import numpy as np
import pytest

from judging import oracle
from judging.comparison import read
from judging.random_records import add_arm, make
from judging.random_specs import FURTHER, HANDLING, SPACE
from safevla_bench.signals import build_trace, missing_fields
from safevla_bench.signals.signal import SIGNALS, RecordFields
from safevla_bench.tasks.loader import load_registry
from safevla_bench.trajectory.batch import concatenate_batches

EPISODES = 40
FORMS = (*SPACE, *FURTHER, *HANDLING)
Arms: TypeAlias = "list[tuple[RecordFields, tuple[oracle.Episode, ...]]]"


@pytest.fixture(scope="module", params=[1, 2], ids=["one arm", "two arms"])
def arms(request: pytest.FixtureRequest) -> Arms:
    """The fields of each arm, and the oracle's episodes."""
    trees = make(81, EPISODES) if request.param == 1 else [add_arm(tree, 5) for tree in make(82, EPISODES)]
    reading = RecordFields(load_registry().name_embodiments(concatenate_batches([read(tree) for tree in trees])))
    by_arm = list(zip(*(oracle.read_arms(tree) for tree in trees), strict=True))
    return [(reading.of_arm(np.full(EPISODES, arm)), episodes) for arm, episodes in enumerate(by_arm)]


@pytest.mark.parametrize("name", [*oracle.READS, *FORMS])
def test_a_signal_has_the_value_of_the_oracle_in_every_record(name: str, arms: Arms) -> None:
    if name.startswith("gap(eef") and len(arms) > 1:
        return  # of which the oracle does not know whose hand it is
    met = Counter[str]()
    for fields, episodes in arms:
        trace, lacking = build_trace(fields, [name]), missing_fields(fields, [name])
        values, unknown = trace.signals[name], trace.unknown.get(name, np.zeros(int(trace.starts[-1]), dtype=bool))
        for e, episode in enumerate(episodes):
            expected: Any = episode.signal(name)
            is_missing = any(lacks[e] for lacks in lacking.values())
            assert is_missing == isinstance(expected, oracle.Missing), (name, episode.tree["episode_id"])
            rows = slice(int(trace.starts[e]), int(trace.starts[e + 1]))
            if is_missing:
                met["missing"] += 1
                continue
            if expected is None:
                met["undefined"] += 1
                assert np.isnan(values[rows]).all(), (name, episode.tree["episode_id"])
                continue
            for t, (value, hidden) in enumerate(zip(values[rows], unknown[rows], strict=True)):
                wanted = expected[t]
                is_open = wanted is None or isinstance(wanted, tuple)
                met["unknown" if is_open else "known"] += 1
                assert hidden == is_open or np.isinf(value), (name, episode.tree["episode_id"], t)
                if not is_open:
                    assert same(name, value, wanted), (name, episode.tree["episode_id"], t, value, wanted)
    assert met  # at least one episode each


def same(name: str, value: float, wanted: float) -> bool:
    """Equal up to rounding, which near 0 and 180 degrees is that of an arc cosine."""
    near = 2e-5 if SIGNALS[name].unit.startswith("deg") else 1e-9
    return math.isclose(value, wanted, rel_tol=1e-9, abs_tol=near)


def test_a_signal_depends_on_later_records_only_if_it_says_so() -> None:
    trees = [tree for tree in make(83, EPISODES) if len(tree["steps"]) > 4]
    early = [{**tree, "steps": tree["steps"][: len(tree["steps"]) // 2]} for tree in trees]
    whole, part = (RecordFields(concatenate_batches([read(tree) for tree in each])) for each in (trees, early))
    rows, names = whole.batch.starts[:-1] + part.batch.lengths - 1, (*oracle.READS, *FORMS)
    last, changed = part.batch.starts[1:] - 1, set[str]()
    for name in names:
        full, cut = (build_trace(fields, [name]).signals[name] for fields in (whole, part))
        is_missing = np.isnan(full[rows]) | np.isnan(cut[last])  # in whole episodes
        changed |= {name} if (full[rows] != cut[last])[~is_missing].any() else set()
    assert changed <= {name for name in names if SIGNALS[name].ahead}
    assert changed >= {"grasped", "released", "lifted"}
