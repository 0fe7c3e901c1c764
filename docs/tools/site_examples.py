"""Episodes for the cards of specifications: one that breaks a specification, and one that does not.

They are those of the archive that ships. Where none of them breaks a specification under the default rules, more
is assumed to be measured, then tags are left aside, then a signal stored by `card_episodes.py` is taken, and last a
trace is made up; the card says which.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
from site_charts import draw_signal
from site_reference import escape_markdown

import safevla_bench as sb
from safevla_bench.explain.trace import SignalTrace, trace_formula
from safevla_bench.signals.signal import RecordFields
from safevla_bench.specs.spec import Spec
from safevla_bench.trajectory.batch import Batch, select_episodes
from safevla_bench.trajectory.header import Header

Kind = Literal["broken", "kept"]
DOCS = Path(__file__).parents[1]
CASES = tomllib.loads((DOCS.parent / "tests" / "specs" / "cases" / "default.toml").read_text(encoding="utf-8"))
MEASURED = DOCS / "tools" / "card_episodes.json"
"""What card_episodes.py measured: how often policies break each specification, and signals that the archive lacks."""
RULES: Sequence[tuple[Mapping[str, object], str]] = (
    ({}, ""),
    (
        {"capabilities": ("libero-full",)},
        "Judged with `--set capabilities=libero-full`: LIBERO's plain set lacks this channel.",
    ),
    (
        {"applicability": "off"},
        "The judge does not count this episode: the tags of its task rule the specification out. It is shown because "
        "no recorded episode breaks the specification where it applies.",
    ),
)
"""How the archive is judged until some episode breaks the specification, and what is said of it."""


@dataclass(frozen=True)
class Example:
    """One episode under one specification; `record` is None where the archive does not have it."""

    caption: str
    chart: str
    trace: SignalTrace
    episode_id: str | None = None
    record: Batch | None = None


@cache
def archive() -> Batch:
    """Return the records of the archive that ships."""
    with resources.as_file(resources.files("safevla_bench.jobs") / "demo.parquet") as path:
        return sb.open_archive(path)


@cache
def read_measured() -> dict[str, Any]:
    """Return what card_episodes.py stored."""
    return dict(json.loads(MEASURED.read_text(encoding="utf-8")))


@cache
def _scores(rule: int) -> sb.Scores:
    options = dict(RULES[rule][0])
    return sb.score(archive(), sb.load_ruleset(missing="deactivate", **options))


def find_examples(spec: Spec) -> dict[Kind, Example]:
    """Return an episode that breaks a specification, successes first, and one that keeps it."""
    for rule, (_, remark) in enumerate(RULES):
        column = next(k for k, row in enumerate(_scores(rule).specs) if row.spec_id == spec.spec_id)
        scores = _scores(rule)
        violated = np.flatnonzero(scores.is_violated[column])
        if not len(violated):
            continue
        broken = min(violated, key=lambda k: (not scores.success[k], scores.rho[column, k]))
        judged = np.flatnonzero(np.isfinite(scores.rho[column]) & ~scores.is_violated[column])
        same = [
            k
            for k in judged
            if scores.task_id[k] == scores.task_id[broken] and scores.benchmark[k] == scores.benchmark[broken]
        ]
        kept = min(same or judged.tolist(), key=lambda k: (not scores.success[k], scores.rho[column, k]), default=None)
        first = _recorded(spec, int(broken), remark)
        return {"broken": first, "kept": _made_up(spec, "kept") if kept is None else _recorded(spec, int(kept), "")}
    stored = read_measured()["traces"].get(spec.spec_id)
    return {"broken": _measured(spec, stored) if stored else _made_up(spec, "broken"), "kept": _find_kept(spec)}


def _find_kept(spec: Spec) -> Example:
    for rule in range(len(RULES)):
        scores = _scores(rule)
        column = next(k for k, row in enumerate(scores.specs) if row.spec_id == spec.spec_id)
        judged = np.flatnonzero(np.isfinite(scores.rho[column]))
        if len(judged):
            nearest = int(min(judged, key=lambda k: scores.rho[column, k]))
            return _recorded(spec, nearest, RULES[rule][1] if rule == 1 else "")
    return _made_up(spec, "kept")


def _recorded(spec: Spec, episode: int, remark: str) -> Example:
    """Return an episode of the archive."""
    record = select_episodes(archive(), [episode])
    header, trace = record.headers[0], trace_formula(spec.formula, RecordFields(record))
    caption = f"{describe_episode(header)} {remark}".rstrip()
    chart = draw_signal(trace, float(record.dt_s[0]), escape(f"{spec.spec_id} in {header.episode_id}"))
    return Example(caption, chart, trace, header.episode_id, record)


def describe_episode(header: Header) -> str:
    """Return an episode's id, instruction and outcome as one line."""
    outcome = "It succeeded." if header.success else "It did not succeed."
    return f"`{header.episode_id}`: {escape_markdown(header.instruction or '')}. {outcome}"


def _measured(spec: Spec, stored: Mapping[str, Any]) -> Example:
    """Return an episode of which card_episodes.py kept the signal alone."""
    failing = np.zeros(len(stored["values"]), dtype=bool)
    failing[stored["failing"]] = True
    gate = None
    if stored["gate"] is not None:
        gate = np.zeros(len(stored["values"]), dtype=bool)
        gate[stored["gate"]] = True
    trace = SignalTrace(
        stored["signal"], stored["unit"], np.array(stored["values"]), stored["limit"], stored["upper"], gate, failing,
        stored["worst"],
    )  # fmt: skip
    chart = draw_signal(trace, stored["dt_s"], escape(f"{spec.spec_id} in {stored['episode_id']}"))
    caption = f"{stored['caption']} It is not in the archive, none of whose episodes breaks this specification."
    return Example(caption, chart, trace, stored["episode_id"])


def _made_up(spec: Spec, kind: Kind) -> Example:
    case = CASES[spec.spec_id]["violated" if kind == "broken" else "satisfied"]
    values = np.array(next(row for key, row in case.items() if key != "rho" and not isinstance(row[0], bool)))
    name = next(key for key, row in case.items() if key != "rho" and not isinstance(row[0], bool))
    limit = -spec.threshold if "> -" in spec.stl else spec.threshold
    failing = values >= limit if limit > 0 else values <= limit
    if kind == "kept":
        failing[:] = False
    trace = SignalTrace(name, spec.unit, values, limit, limit > 0, None, failing, int(np.argmax(np.abs(values))))
    caption = "No recorded episode breaks it. This is a made-up trace of a few records, from the tests."
    return Example(
        caption if kind == "broken" else "A made-up trace, from the tests.",
        draw_signal(trace, 0.05, spec.spec_id),
        trace,
    )
