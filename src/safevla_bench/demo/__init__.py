"""A small archive of real LIBERO rollouts that ships with the package, for trying out the judge.

`recording` plans and records its episodes. They lack `sim_state`, which no specification reads.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from safevla_bench.files import is_leftover, translated_errors, write_atomically

ARCHIVE = "rollouts.parquet"

__all__ = ["ARCHIVE", "archive_bytes", "unpack_archive"]


def archive_bytes() -> bytes:
    """Return the bytes of the shipped archive, a Parquet file."""
    return resources.files(__package__).joinpath(ARCHIVE).read_bytes()


def unpack_archive(folder: Path) -> Path:
    """Copy the shipped archive into a new folder, or into one that already holds it, and return its path.

    Raises `RunError` if the folder holds something else, and `FileError` if it cannot be written to. Nothing is changed
    then.
    """
    from safevla_recorder.folder import require_free_folder  # with NumPy, before which __main__ fixes OpenBLAS

    path, shipped = folder / ARCHIVE, archive_bytes()
    with translated_errors(folder):
        if not (path.is_file() and path.read_bytes() == shipped):
            require_free_folder(folder, is_leftover)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, shipped)
    return path
