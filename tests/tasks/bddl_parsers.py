"""Comparison of this package's BDDL parser with LIBERO's, on task files.

usage: python tests/tasks/bddl_parsers.py FOLDER ...   with LIBERO installed; exit code 1 if a file is read differently
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safevla_bench.errors import RegistryError
from safevla_bench.tasks import bddl


def differences(files: Iterable[Path]) -> list[str]:
    """Return one line per file that is refused, or that LIBERO reads differently from what is written of it."""
    from libero.libero.envs import bddl_utils

    def parse(path: Path) -> tuple[Any, str]:
        problem = bddl_utils.robosuite_parse_problem(str(path))
        return problem, repr((problem, bddl_utils.get_problem_info(str(path))))  # the text also compares types

    found = []
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "task.bddl")
        for file in files:
            try:
                ours = bddl.read_bddl(file)
            except RegistryError as error:
                found.append(f"{file}: refused: {error.problem}")
                continue
            written.write_text(ours.text, encoding="utf-8")
            theirs, shown = parse(file)
            read = {
                "language": " ".join(theirs["language_instruction"]),
                "objects": {name: kind for kind, names in theirs["objects"].items() for name in names},
                "fixtures": {name: kind for kind, names in theirs["fixtures"].items() for name in names},
                "regions": {name: region["target"] for name, region in theirs["regions"].items()},
                "init": tuple(map(tuple, theirs["initial_state"])),
                "goal": tuple(map(tuple, theirs["goal_state"])),
            }
            found += [f"{file}: {name} differs" for name, value in read.items() if getattr(ours, name) != value]
            found += [f"{file}: LIBERO reads the written file differently"] * (parse(written)[1] != shown)
    return found


if __name__ == "__main__":
    files = sorted(file for folder in sys.argv[1:] for file in Path(folder).rglob("*.bddl"))
    lines = differences(files)
    print(*lines[:20], f"{len(files)} files, {len(lines)} differences", sep="\n")
    sys.exit(bool(lines))
