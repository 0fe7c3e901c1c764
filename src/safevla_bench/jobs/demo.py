"""A small archive of real LIBERO rollouts that ships with the package; `docs/tools/record_demo.py` made it.

Two built-in policies, one careful and one hasty, ran from each initial state. The records have no `sim_state`.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from safevla_bench.files import has_partial_name, translated_errors, write_atomically
from safevla_recorder.folder import require_free_folder

ARCHIVE = "rollouts.parquet"  # name of the unpacked archive


def archive_bytes() -> bytes:
    """Return the bytes of the shipped archive, a Parquet file."""
    return resources.files("safevla_bench.jobs").joinpath("demo.parquet").read_bytes()


def unpack_archive(folder: Path) -> Path:
    """Copy the archive into `folder`; return the copy's path. Raises `FileError`; `RunError` if other files exist."""
    path, shipped = folder / ARCHIVE, archive_bytes()
    with translated_errors(folder):
        # Other files are allowed if the folder already contains an equal copy of the archive.
        if not (path.is_file() and path.read_bytes() == shipped):
            # Leftovers of an interrupted write do not count as other files.
            require_free_folder(folder, has_partial_name)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, shipped)
    return path
