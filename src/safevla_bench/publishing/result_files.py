"""Results in the files of other evaluations, with Safety beside their success: LeRobot's and vla-evaluation-harness's.

Sources: lerobot 7427f31 src/lerobot/scripts/lerobot_eval.py (`eval_policy_all`), vla-evaluation-harness e1ee9ad
src/vla_eval/results/collector.py. What a record does not hold, such as rewards, is left out and not written as zero.
Keys of ours are `safe`, `sbu` and `vsi` of an episode, and `pc_safe`, `mean_safe` and so on of several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from safevla_bench.errors import RunError
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.scores import UNCOUNTED, EpisodeScore
from safevla_bench.version import __version__

K = TypeVar("K")
_OURS: Mapping[str, Callable[[EpisodeScore], bool | float | None]] = {
    "safe": lambda score: score.safe,
    "sbu": lambda score: score.sbu,
    "vsi": lambda score: score.vsi,
}


def encode_lerobot_results(judged: Judged) -> bytes:
    """Return LeRobot's `eval_info.json` of one policy's episodes; raises `RunError` for several policies or none."""
    scores = _finished_episodes(judged)
    per_task = [
        {"task_group": suite, "task_id": index, "metrics": _list_metrics(rows)}
        for (suite, index), rows in _group(scores, _name_task)
    ]
    per_group = {suite: _lerobot_rates(rows) for suite, rows in _group(scores, lambda score: _name_task(score)[0])}
    tree = {"per_task": per_task, "per_group": per_group, "overall": _lerobot_rates(scores), "safevla": _say(judged)}
    return _encode(tree)


def encode_harness_results(judged: Judged) -> bytes:
    """Return the harness's result of one policy on one suite; raises `RunError` for several of either, or none."""
    scores = _finished_episodes(judged)
    suites = dict.fromkeys(score.benchmark for score in scores)
    if len(suites) > 1:
        remedy = "Export the run of one suite, or --format lerobot-results."
        raise RunError(f"the harness's file holds one suite, and here are {len(suites)}", remedy=remedy)
    keys = {"success": "mean", **dict.fromkeys(_OURS, "mean")}
    tasks = [_harness_task(task, rows) for task, rows in _group(scores, lambda score: score.task_id)]
    head = {"benchmark": next(iter(suites)), "mode": "sync", "harness_version": f"safevla-bench {__version__}"}
    rates = {f"mean_{name}": rate for name, rate in _rates(scores).items()}
    return _encode({**head, "tasks": tasks, "config": {}, "metric_keys": keys, **rates, "safevla": _say(judged)})


def _finished_episodes(judged: Judged) -> list[EpisodeScore]:
    scores = [score for score in judged.scores.episodes() if score.outcome not in UNCOUNTED]
    policies = dict.fromkeys(score.policy for score in scores)
    if len(policies) != 1:
        remedy = "Export the run of one policy whose episodes ran to their end."
        raise RunError(f"such a file holds one policy's episodes, and here are {len(policies)}", remedy=remedy)
    return scores


def _name_task(score: EpisodeScore) -> tuple[str, int | str]:
    number = score.task_id.removeprefix("task_")
    return score.benchmark.replace("-", "_"), int(number) if number.isdecimal() else score.task_id


def _group(scores: Sequence[EpisodeScore], key: Callable[[EpisodeScore], K]) -> list[tuple[K, list[EpisodeScore]]]:
    """Return the episodes of each key, in the order in which they stand first."""
    groups: dict[K, list[EpisodeScore]] = {}
    for score in scores:
        groups.setdefault(key(score), []).append(score)
    return list(groups.items())


def _list_metrics(rows: Sequence[EpisodeScore]) -> dict[str, object]:
    return {"successes": [row.success for row in rows], **{name: [*map(read, rows)] for name, read in _OURS.items()}}


def _rates(rows: Sequence[EpisodeScore]) -> dict[str, float]:
    """Return the mean of each metric over the episodes that have it; a metric that none has is left out."""
    values: dict[str, list[bool | float | None]] = {name: [*map(read, rows)] for name, read in _OURS.items()}
    values = {"success": [row.success for row in rows], **values}
    known = {name: [float(value) for value in column if value is not None] for name, column in values.items()}
    return {name: float(np.mean(column)) for name, column in known.items() if column}


def _lerobot_rates(rows: Sequence[EpisodeScore]) -> dict[str, object]:
    rates = _rates(rows)
    percents = {f"pc_{name}": 100 * rates[name] for name in ("success", "safe", "sbu") if name in rates}
    return {**percents, **({"vsi": rates["vsi"]} if "vsi" in rates else {}), "n_episodes": len(rows)}


def _harness_task(task: str, rows: Sequence[EpisodeScore]) -> dict[str, object]:
    metrics = [{"success": row.success, **{name: read(row) for name, read in _OURS.items()}} for row in rows]
    episodes = [
        {"episode_id": number, "metrics": {name: value for name, value in values.items() if value is not None}}
        for number, values in enumerate(metrics)
    ]
    rates = {f"mean_{name}": rate for name, rate in _rates(rows).items()}
    return {"task": task, "episodes": episodes, "num_episodes": len(rows), **rates}


def _say(judged: Judged) -> dict[str, object]:
    return {"version": __version__, "judged_by": judged.provenance.to_sentence()}


def _encode(tree: Mapping[str, object]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(tree), indent=2) + b"\n"
