"""Runs the cells of pages that need LIBERO, and stores their outputs in them: python docs/tools/run_libero_cells.py"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

DOCS = Path(__file__).parents[1]
sys.path.insert(0, str(DOCS / "tools"))
PAGES = (DOCS / "tutorials" / "record.ipynb",)


def main() -> None:
    """Run each page in an empty folder; what LIBERO and robosuite print on stderr is left out."""
    import conf  # the environment of cells

    assert conf.IPYTHON.exists()
    for page in PAGES:
        notebook = nbformat.read(page, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            os.environ["LIBERO_CONFIG_PATH"] = str(Path(folder, "config"))
            NotebookClient(notebook, timeout=900, resources={"metadata": {"path": folder}}).execute()
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
            if cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        nbformat.write(notebook, page)


if __name__ == "__main__":
    main()
