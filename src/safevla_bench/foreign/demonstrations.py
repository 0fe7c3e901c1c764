"""Demonstrations of other tools: an HDF5 file, a folder of them, or a LeRobot dataset."""

from __future__ import annotations

from pathlib import Path

from safevla_bench.errors import Place, RecordError
from safevla_bench.foreign import hdf5, lerobot
from safevla_bench.foreign.take import RecordedActions


def read_demonstrations(path: Path) -> list[RecordedActions] | None:
    """Return the episodes of a file or folder, in its order; None if it is none of these forms.

    Raises:
        RecordError: it is one, and cannot be read; or a package is missing.
    """
    if path.is_dir():
        if (path / lerobot.INFO).is_file():
            return lerobot.read_dataset(path)
        files = sorted(file for suffix in hdf5.SUFFIXES for file in path.glob(f"*{suffix}"))
        return [take for file in files for take in hdf5.read_hdf5(file)] if files else None
    if path.suffix not in hdf5.SUFFIXES:
        return None
    if not path.is_file():
        raise RecordError("there is no such file", remedy="Name a recording.", place=Place(file=str(path)))
    return hdf5.read_hdf5(path)
