"""Was a success also safe, and if not, how bad was it?

An example in Python, from a record to its scores:

>>> import safevla_bench as sb
>>> batch = sb.open_archive("tests/cases/appendix_b.json")
>>> scores = sb.score(batch, sb.load_ruleset())
>>> sb.aggregate(scores).safety
1.0
>>> scores.to_pandas()["rho.max_contact_force_under_200N"].tolist()
[187.6]

Public names are imported on first use, so that `import safevla_bench` is fast.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")  # type checkers read `__init__.pyi`, too
_MODULE_OF = {name: module for module, name in re.findall(r"^from (\S+) import \w+ as (\w+)$", _STUB, re.MULTILINE)}
__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> object:
    """Return a public name, importing its module on first use. Raises `AttributeError` for any other name."""
    # Python calls this function for names that the package lacks. `_MODULE_OF` maps public names to their modules.
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    """Return the public names, sorted."""
    return sorted(__all__)
