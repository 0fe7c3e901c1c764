"""What a run folder holds, for comparing two of them, and records changed so that no digest tells."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from safevla_bench import archive, runs
from safevla_bench.files import sha256_of
from safevla_bench.trajectory import Batch


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


def rewrite_archive(run: Path, change: Callable[[Batch], Batch]) -> None:
    """Change a run's records and make the manifest match: damage that no digest finds."""
    (part,) = runs.archive_parts(run)
    archive.write_archive(part, change(archive.open_archive(part)))
    manifest = json.loads((run / runs.MANIFEST).read_text())
    manifest["parts"] = {f"archive/{part.name}": sha256_of(part)}
    (run / runs.MANIFEST).write_text(json.dumps(manifest))
