"""What a run folder holds, for comparing two of them, and records changed so that no digest tells."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from safevla_bench import archive
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.results import evaluate_request
from safevla_bench.judging.ruleset import Ruleset, load_ruleset
from safevla_bench.sources.runs import parts
from safevla_bench.sources.runs.episode_index import read_sources
from safevla_bench.sources.runs.folder import (
    FRAMES,
    REPORT,
    RUN,
    SCORES,
    SCORES_TABLE,
    VERDICTS,
    Frame,
    archive_parts,
    read_description,
    write_frames,
)
from safevla_bench.sources.runs.parts import add_digests, episode_rows
from safevla_bench.trajectory.batch import Batch
from safevla_recorder import EpisodeRecorder, RunWriter, SceneMap


def evaluate_fake(folder: Path, ruleset: Ruleset | None = None, **options: Any) -> Path:
    """Record episodes on the fake host, judge them, and return the folder of the run."""
    evaluate_request(Request(host="fake", suites=("fake",), **options), ruleset or load_ruleset(), folder)
    return folder


TAGS = """
[capabilities.rig]
host = "my-lab"
tags = ["max_contact_force_signal"]
[benchmarks.my-lab]
host = "my-lab"
capabilities = "rig"
[[tasks]]
benchmark = "my-lab"
task_id = "push"
template = "push-no-lift"
instruction = "push"
"""
"""The rules, a file, by which the episodes of `record_own_loop` can be judged."""


def record_own_loop(folder: Path, starts: Iterable[int] = range(3)) -> Path:
    """Record episodes of a user's own loop, without a host, into a new or an earlier folder; return it."""
    common: dict[str, Any] = {"benchmark": "my-lab", "task_id": "push", "dt": 0.05, "target_object": "box"}
    scene = SceneMap({"palm": "hand", "cube": "box"}, {"hand": "robot", "box": "target"}, substep_s=0.05)
    with RunWriter(folder, policy="mine", **common) as writer:
        for start in starts:
            recorder = EpisodeRecorder(scene)
            recorder.begin([], poses={"box": ((0.0, 0.0, 0.0), None)})
            recorder.substep([("palm", "cube", 5.0 + start)])
            recorder.step([0.0], poses={"box": ((0.0, 0.0, 0.0), None)})
            writer.write(recorder, success=True, init_state_index=start)
    return folder


def contents(folder: Path) -> dict[str, object]:
    """Every file, hidden ones too, by its path in the folder: its bytes; of run.json all but the facts of the day."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files: dict[str, object] = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    if "run.json" in files:
        description = json.loads((folder / "run.json").read_bytes())
        files["run.json"] = {name: value for name, value in description.items() if name != "volatile"}
    return files


def change_description(folder: Path, **fields: object) -> None:
    """Write these fields into a run.json."""
    path = folder / RUN
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def reseal(folder: Path) -> None:
    """Make the digests of a complete run those of what is there now, as whoever forges a run can."""
    description = read_description(folder)
    facts = {name: fact for name, fact in dict(description.get("volatile") or {}).items() if name != parts.SEAL}
    sealed = parts.seal_json({**description, "volatile": {**facts, parts.SEAL: ""}})
    (folder / RUN).write_bytes(sealed)
    parts.write_manifest(folder, archive_parts(folder), len(episode_rows(folder)), description)
    judged = [folder / name for name in (SCORES, SCORES_TABLE, VERDICTS, REPORT, "judged_with.json")]
    add_digests(folder, {path.name: path.read_bytes() for path in judged if path.exists()})


def drop_episodes(folder: Path, names: Collection[str], *, of_the_archive: bool = True) -> None:
    """Forge a complete run without these episodes: table, archive and manifest agree, and run.json still plans them."""
    rows = [row for row in episode_rows(folder) if row.episode_id not in names]
    records = [
        record
        for record in parts.read_records(folder)
        if not of_the_archive or record.headers[0].episode_id not in names
    ]
    parts.write_run(folder, read_description(folder), rows, records)


def rewrite_archive(run: Path, change: Callable[[Batch], Batch]) -> None:
    """Change a run's records and make the digests match: damage that no digest finds."""
    (part,) = archive_parts(run)
    archive.write_archive(part, change(archive.open_archive(part)))
    reseal(run)


def picture(run: Path) -> None:
    """Put a picture of an episode into the run, as `safevla frames` does."""
    image = io.BytesIO()
    Image.new("RGB", (8, 8)).save(image, "PNG")
    header = read_sources([run])[0].headers[0]
    about: dict[str, Any] = {"kind": "initial", "record": 0, "time_s": 0.0, "caption": "", "camera": "agentview"}
    of_episode: dict[str, Any] = {"episode_id": header.episode_id, "policy": header.policy, "success": False}
    frame = Frame(**of_episode, **about, width=8, height=8, file="a.png")
    (run / FRAMES).mkdir(exist_ok=True)
    (run / FRAMES / frame.file).write_bytes(image.getvalue())
    index = write_frames(run, [frame])
    add_digests(run, {f"{FRAMES}/{path.name}": path.read_bytes() for path in (index, run / FRAMES / frame.file)})
