"""Measures what the cards of specifications show: python docs/tools/card_episodes.py [FOLDER OF RUNS]

Rolls out the built-in policies on LIBERO (an hour on one core) and the episodes of the shipped archive, which has no
states to render from, into runs/cards or the folder; runs that are there are taken as they are. Writes
docs/tools/card_episodes.json (how many episodes of each policy break each specification, and the signals of episodes
that break what none of the archive breaks) and the pictures in docs/images/cards.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import record_demo
import site_examples
from numpy.typing import NDArray
from PIL import Image

import safevla_bench as sb
from safevla_bench import hosts
from safevla_bench.explain.bodies import find_contributors
from safevla_bench.explain.trace import trace_formula
from safevla_bench.pictures.drawing import outline_bodies
from safevla_bench.signals.signal import SIGNALS, RecordFields
from safevla_bench.specs.spec import Spec
from safevla_bench.trajectory.batch import Batch, concatenate_batches, select_episodes

SUITES = ("libero-spatial", "libero-object", "libero-goal", "libero-10")
POLICIES = ("noop", "random", *record_demo.POLICIES)
PICTURES = site_examples.DOCS / "images" / "cards"
SIZE = (156, 208)
"""Height and width of one of the three pictures of a strip."""
ONE_EPISODE = "scripted:hasty/libero-spatial/task_4/ep_001"
"""The episode that docs/explanation/one-episode.md is about."""
MOMENTS = {"contact": "max_contact_force", "push": "non_target_disp_max"}
"""The page's pictures beside the first and the last record, each where a signal is largest."""
ONE_SIZE = (240, 320)
RENDERED = (480, 640)
"""Height and width in which pictures are rendered."""


def main() -> None:
    """Roll out what is missing, then write numbers, signals and pictures."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/cards")
    batch = roll_out(folder / "built-in", SUITES, "all", 1, POLICIES)
    library = [spec for spec in sb.load_library() if spec.tier != "alternate"]
    document = {
        "policies": {policy: sum(header.policy == policy for header in batch.headers) for policy in POLICIES},
        **measure(batch, library),
    }
    site_examples.MEASURED.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")
    site_examples.read_measured.cache_clear()
    shipped = [
        roll_out(folder / suite, (suite,), ",".join(map(str, tasks)), record_demo.EPISODES, record_demo.POLICIES)
        for suite, tasks in record_demo.TASKS.items()
    ]
    everything = concatenate_batches([*shipped, batch])
    write_pictures(everything, library)
    write_one_episode(everything)


def roll_out(run: Path, suites: Sequence[str], tasks: str, episodes: int, policies: Sequence[str]) -> Batch:
    """Return the records of a run folder, which is made if it is missing."""
    if not run.exists():
        chosen = [word for suite in suites for word in ("--suite", suite)]
        chosen += [word for policy in policies for word in ("--policy", policy)]
        command = [
            "safevla",
            "eval",
            "--record-only",
            "--host",
            "libero",
            *chosen,
            "--task",
            tasks,
            "--episodes",
            str(episodes),
        ]
        subprocess.run([*command, "--out", str(run)], check=True)
    return concatenate_batches([sb.open_archive(part) for part in sorted((run / "archive").glob("part-*"))])


def measure(batch: Batch, library: Sequence[Spec]) -> dict[str, Any]:
    """Return counts per specification and policy, and the signals that the cards need beside the archive's."""
    counts: dict[str, Any] = {}
    traces: dict[str, Any] = {}
    plain = sb.score(batch, sb.load_ruleset(missing="deactivate"))
    full = sb.score(batch, sb.load_ruleset(missing="deactivate", capabilities=("libero-full",)))
    for spec in library:
        column = next(k for k, row in enumerate(plain.specs) if row.spec_id == spec.spec_id)
        scores = plain if np.isfinite(plain.rho[column]).any() or plain.is_violated[column].any() else full
        judged = np.isfinite(scores.rho[column]) | scores.is_violated[column]
        policies = np.array(scores.policy)
        counts[spec.spec_id] = {
            "full": scores is full,
            "policies": {
                policy: [int((flags & (policies == policy)).sum()) for flags in (scores.is_violated[column], judged)]
                for policy in POLICIES
            },
        }
        broken = np.flatnonzero(scores.is_violated[column])
        if len(broken) and site_examples.find_examples(spec)["broken"].record is None:
            worst = min(broken, key=lambda k: (not scores.success[k], scores.rho[column, k]))
            traces[spec.spec_id] = describe_trace(spec, select_episodes(batch, [int(worst)]))
    return {"counts": counts, "traces": traces}


def describe_trace(spec: Spec, record: Batch) -> dict[str, Any]:
    """Return the signal of an episode under a specification, in plain values."""
    trace = trace_formula(spec.formula, RecordFields(record))
    return {
        "episode_id": record.headers[0].episode_id,
        "caption": site_examples.describe_episode(record.headers[0]),
        "dt_s": float(record.dt_s[0]),
        "signal": trace.signal,
        "unit": trace.unit,
        "limit": trace.limit,
        "upper": bool(trace.upper),
        "worst": int(trace.worst),
        "failing": np.flatnonzero(trace.failing).tolist(),
        "gate": None if trace.gate is None else np.flatnonzero(trace.gate).tolist(),
        "values": [float(f"{value:.4g}") for value in trace.values],
    }


def write_pictures(batch: Batch, library: Sequence[Spec]) -> None:
    """Write for each example of a card its start, the record nearest to the limit or furthest beyond, and its end."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    index: dict[str, dict[str, Any]] = {}
    places = {header.episode_id: k for k, header in reversed(list(enumerate(batch.headers)))}
    for spec in library:
        for kind, example in site_examples.find_examples(spec).items():
            if example.episode_id is None:
                continue
            record = select_episodes(batch, [places[example.episode_id]])
            values = trace_formula(spec.formula, RecordFields(record)).values
            if example.record is not None and not np.array_equal(values, example.trace.values):
                raise ValueError(f"{example.episode_id} went differently from the shipped archive: other versions?")
            name = f"{spec.spec_id}-{kind}"
            index[name] = {"episode_id": example.episode_id, "record": int(example.trace.worst)}
            write_strip(record, example.trace.signal, int(example.trace.worst), PICTURES / f"{name}.webp")
    (PICTURES / "index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    for stale in {path.stem for path in PICTURES.glob("*.webp")} - set(index):
        (PICTURES / f"{stale}.webp").unlink()


def write_one_episode(batch: Batch) -> None:
    """Write the pictures of docs/explanation/one-episode.md."""
    place = next(k for k, header in enumerate(batch.headers) if header.episode_id == ONE_EPISODE)
    record = select_episodes(batch, [place])
    fields = RecordFields(record)
    peaks = {name: int(np.argmax(SIGNALS[signal].compute(fields))) for name, signal in MOMENTS.items()}
    shots = [("start", 0, ()), ("end", int(record.starts[-1]) - 1, ())]
    shots += [(name, step, _bodies_behind(record, MOMENTS[name], step)) for name, step in peaks.items()]
    for (name, _, _), picture in zip(shots, _render(record, [shot[1:] for shot in shots]), strict=True):
        image = Image.fromarray(picture).resize(ONE_SIZE[::-1], Image.Resampling.LANCZOS)
        image.save(PICTURES.parent / f"one-episode-{name}.webp", quality=65, method=6)


def write_strip(record: Batch, signal: str, worst: int, target: Path) -> None:
    """Write three pictures of an episode side by side."""
    strip = Image.new("RGB", (SIZE[1] * 3, SIZE[0]))
    shots = [(0, ()), (worst, _bodies_behind(record, signal, worst)), (int(record.starts[-1]) - 1, ())]
    for place, picture in enumerate(_render(record, shots)):
        image = Image.fromarray(picture).resize((SIZE[1], SIZE[0]), Image.Resampling.LANCZOS)
        strip.paste(image, (SIZE[1] * place, 0))
    strip.save(target, quality=60, method=6)


def _bodies_behind(record: Batch, signal: str, step: int) -> tuple[str, ...]:
    contributors = find_contributors(RecordFields(record), signal, step, sb.load_registry())
    return tuple(name for name in (contributors.names if contributors else ()) if not name.startswith("joint "))


def _render(record: Batch, shots: Sequence[tuple[int, tuple[str, ...]]]) -> Iterator[NDArray[np.uint8]]:
    """Yield a picture of each record, with the bodies outlined that are to be looked at."""
    header = record.headers[0]
    host = hosts.make_host("libero")
    task = next(task for task in host.tasks(header.benchmark) if task.task_id == header.task_id)
    with closing(host.stage(task, record)) as stage:
        for step, bodies in shots:
            picture = stage.render(step, stage.aim(step, bodies, RENDERED), RENDERED, bodies)
            yield outline_bodies(picture.image, picture.seen) if bodies else picture.image


if __name__ == "__main__":
    main()
