"""The scripts of docs/tools as modules."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).parents[2] / "docs" / "tools"


@pytest.fixture(scope="session")
def load_tool() -> Callable[[str], ModuleType]:
    """Return what imports a script by its name; scripts that it imports itself are found beside it."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"docs_tools_{name}", TOOLS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        sys.path.insert(0, str(TOOLS))
        try:
            spec.loader.exec_module(module)
        finally:
            sys.path.remove(str(TOOLS))
        return module

    return load
