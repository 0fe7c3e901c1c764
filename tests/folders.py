"""What a run folder holds, for comparing two of them."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from safevla_bench import runs
from safevla_bench.runs import parts


def contents(folder: Path) -> dict[str, object]:
    """Every file, hidden ones too, by its path in the folder: its bytes; of run.json all but the facts of the day."""
    held: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            held[str(path.relative_to(folder))] = path.read_bytes()
    if "run.json" in held:
        description = json.loads((folder / "run.json").read_bytes())
        description.pop("volatile", None)
        held["run.json"] = description
    return held


def drop_episodes(folder: Path, names: Collection[str], *, of_the_archive: bool = True) -> None:
    """Forge a complete run without these episodes: table, archive and manifest agree, and run.json still plans them."""
    rows = [row for row in runs.episode_rows(folder) if row.episode_id not in names]
    records = [
        record
        for record in parts.read_records(folder)
        if not of_the_archive or record.headers[0].episode_id not in names
    ]
    parts.write_run(folder, runs.read_description(folder), rows, records)
