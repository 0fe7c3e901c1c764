"""Sphinx settings of the documentation site: `make docs`.

The site holds everything that it shows: no font, script or picture comes from another host.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

from safevla_bench.version import __version__

DOCS = Path(__file__).parent
BUILD = DOCS.parent / "build"
STATIC = BUILD / "docs-static"  # what site_pages.py makes
STATIC.mkdir(parents=True, exist_ok=True)
sys.path.insert(0, str(DOCS / "tools"))

from site_pages import source_digest, write_ipython_profile  # noqa: E402

IPYTHON = BUILD / "docs-ipython"
write_ipython_profile(IPYTHON)
os.environ |= {  # of cells
    "COLUMNS": "88",
    "IPYTHONDIR": str(IPYTHON),
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "PYTHONPATH": f"{DOCS / 'tools'}:{os.environ.get('PYTHONPATH', '')}",
}
logging.getLogger("traitlets").setLevel(logging.ERROR)

project, author = "safevla-bench", "The safevla-bench developers"
release = version = __version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "myst_nb",
    "sphinx_design",
    "sphinx_copybutton",
    "site_pages",
]
exclude_patterns = ["**/.ipynb_checkpoints"]
suppress_warnings = ["myst.header"]  # a page may leave out a level of headings
smartquotes = False  # two dashes begin an option
default_role = "code"  # docstrings write code in single backticks

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "separated"
python_use_unqualified_type_names = True
napoleon_google_docstring, napoleon_numpy_docstring = True, False

# Cells are run when they or the package change, in an empty folder; one that fails ends the build.
nb_execution_mode = "cache"
nb_execution_cache_path = str(BUILD / "docs-cells" / source_digest())
nb_execution_in_temp = True
nb_execution_excludepatterns = ["tutorials/record*"]  # needs LIBERO: run_libero_cells.py stores its outputs
nb_execution_raise_on_error = True
nb_execution_timeout = 600  # a busy machine takes long
nb_merge_streams = True

html_theme = "furo"
html_title = "safevla-bench"
html_static_path = ["_static", str(STATIC)]
html_extra_path = ["llms.txt"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = r">{3} |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def setup(app: Sphinx) -> None:
    """Register the lexer of the list of import layers in architecture.md, which a test reads."""
    app.add_lexer("layers", TextLexer)
