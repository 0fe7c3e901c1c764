"""What a run folder holds, for comparing two of them, and records changed so that no digest tells."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from safevla_bench import archive
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.results import evaluate_request
from safevla_bench.judging.ruleset import Ruleset, load_ruleset
from safevla_bench.sources.runs import parts
from safevla_bench.sources.runs.folder import REPORT, RUN, SCORES, SCORES_TABLE, archive_parts, read_description
from safevla_bench.sources.runs.parts import add_digests, episode_rows
from safevla_bench.trajectory.batch import Batch


def evaluate_fake(folder: Path, ruleset: Ruleset | None = None, **options: Any) -> Path:
    """Record episodes on the fake host, judge them, and return the folder of the run."""
    evaluate_request(Request(host="fake", suites=("fake",), **options), ruleset or load_ruleset(), folder)
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
    judged = [folder / name for name in (SCORES, SCORES_TABLE, REPORT, "judged_with.json")]
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
