"""A small archive of real LIBERO rollouts that ships with the package, so that judging can be tried at once.

`recording` says which episodes these are and makes them anew; they lack `sim_state`, which no specification reads.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from safevla_bench.errors import Place, RunError
from safevla_bench.files import begun, write_atomically, writing

ARCHIVE = "rollouts.parquet"

__all__ = ["ARCHIVE", "contents", "unpack"]


def contents() -> bytes:
    """The bytes of the shipped archive, a Parquet file."""
    return resources.files(__package__).joinpath(ARCHIVE).read_bytes()


def unpack(folder: Path) -> Path:
    """Copy the shipped archive into a new folder, or into one where it lies already, and return its path.

    Raises `RunError` where the folder holds something else, and `FileError` where it cannot be written to; nothing is
    changed then.
    """
    path, shipped, place = folder / ARCHIVE, contents(), Place(file=str(folder))
    with writing(folder):
        if not (_free(folder) or (path.is_file() and path.read_bytes() == shipped)):
            remedy = "Choose another --out, or remove it first."
            raise RunError("the folder exists and is not empty", remedy=remedy, place=place)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, shipped)
    return path


def _free(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and all(map(begun, folder.iterdir())))
