"""The mark of tests in which SAPIEN renders: they are skipped, with the reason, on a machine without such a device."""

from __future__ import annotations

import pytest

from safevla_bench.errors import HostError
from safevla_bench.hosts.maniskill.graphics import render_device


def _missing_device() -> str:
    try:
        render_device()
    except ImportError:
        return "SAPIEN is not installed"
    except HostError as error:
        return str(error.problem)
    return ""


MISSING = _missing_device()
"""Why SAPIEN cannot render here; "" if it can."""
needs_vulkan = pytest.mark.skipif(bool(MISSING), reason=MISSING)
