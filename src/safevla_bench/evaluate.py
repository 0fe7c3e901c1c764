"""The former name of `safevla_bench.jobs.evaluation`, kept for one release.

`safevla_bench.evaluate` is a function now, and importing this module puts it in the function's place. So the module can
be called, and does the same.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from safevla_bench.jobs import evaluation

__all__ = evaluation.__all__  # the same names


class _CallableModule(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> evaluation.Evaluation:
        """Call `evaluation.evaluate` with the same arguments, as the function in this module's place does."""
        return evaluation.evaluate(*args, **options)


def __getattr__(name: str) -> object:
    """Return the name from `safevla_bench.jobs.evaluation`; raises `AttributeError` where that module has no such name."""
    return getattr(evaluation, name)


sys.modules[__name__].__class__ = _CallableModule
