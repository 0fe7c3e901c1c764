"""What a run folder holds, for comparing two of them."""

from __future__ import annotations

import json
from pathlib import Path


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
