"""The RoboCasa installation: is it fit, where its assets are and whose they are, how one of its kitchens is made."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import io
import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from safevla_bench.errors import HostError
from safevla_bench.hosts import read_versions
from safevla_bench.hosts.mujoco.environment import env_options, quieten_log
from safevla_bench.hosts.mujoco.renderer import importing
from safevla_bench.hosts.robocasa.kitchens import KitchenStart
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import Task
from safevla_recorder.robocasa import ASSETS_ENTRY, OFFICIAL, STANDIN, is_standin

if TYPE_CHECKING:
    from robocasa.environments.kitchen.kitchen import Kitchen

DISTRIBUTION = "praxis-robocasa"
_ROBOSUITE = "praxis-robosuite"
_OTHER_ROBOSUITE = "robosuite"
_SIMULATOR = ("mujoco", _ROBOSUITE, DISTRIBUTION)
ASSETS = "SAFEVLA_ROBOCASA_ASSETS"
"""Environment variable: a folder of assets to use instead of the package's own."""
INSTALL = "make robocasa   (in a checkout: it makes RoboCasa's own environment, .venv-robocasa)"
DOWNLOAD = "python -m robocasa.scripts.download_kitchen_assets --type all   (about 10 GB)"
_NEEDED = ("scenes", "textures", "fixtures/microwaves", "objects/objaverse", "objects/lightwheel")


def versions() -> dict[str, str]:
    """Return the versions of all that a trajectory depends on; `robocasa-assets` is `official`, or `stand-in` for
    placeholders. Raises `HostError` without RoboCasa or its assets. Imports no simulator.
    """
    require()
    installed = {name: importlib.metadata.version(name) for name in (*_SIMULATOR, "numpy", "safevla-bench")}
    return {**installed, ASSETS_ENTRY: STANDIN if is_standin(assets()) else OFFICIAL}


def require() -> None:
    """Raise `HostError` unless RoboCasa is installed here, without the distribution `robosuite`; imports nothing."""
    read_versions(_SIMULATOR, "RoboCasa", INSTALL)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        other = importlib.metadata.version(_OTHER_ROBOSUITE)
        problem = f"robosuite {other} is installed beside {_ROBOSUITE}: both are the package 'robosuite'"
        raise HostError(problem, remedy=f"Use an environment of its own for RoboCasa: {INSTALL}")


def assets() -> Path:
    """Return the folder of assets: what `SAFEVLA_ROBOCASA_ASSETS` names, else the package's own.

    Raises `HostError` if RoboCasa is not installed or the folder lacks assets.
    """
    named = os.environ.get(ASSETS)
    root = Path(named).resolve() if named else _own_assets()
    lacking = [part for part in _NEEDED if not (root / part).is_dir()]
    if lacking:
        where = f"{ASSETS}={named}" if named else str(root)
        problem = f"RoboCasa's assets are missing: {where} has no {lacking[0]}"
        raise HostError(problem, remedy=f"{DOWNLOAD}, or set {ASSETS} to a folder that holds them.")
    return root


def _own_assets() -> Path:
    spec = importlib.util.find_spec("robocasa")
    if spec is None or not spec.submodule_search_locations:
        raise HostError("RoboCasa is not installed: there is no package robocasa", remedy=INSTALL)
    return Path(spec.submodule_search_locations[0], "models", "assets").resolve()


def kitchen(task: Task, start: KitchenStart, wants: Wants) -> Kitchen:
    """Return RoboCasa's environment of one episode, before its reset; a renderer only if cameras are wanted. Raises
    `HostError` if RoboCasa or its assets are missing, or it cannot be imported here.
    """
    return task_class(task)(
        **env_options("PandaOmron", wants),
        layout_and_style_ids=[(start.layout, start.style)],
        obj_instance_split=start.split,
        seed=start.seed,
    )


def task_class(task: Task) -> type[Kitchen]:
    """Return RoboCasa's class of a task; imports RoboCasa. Raises `HostError` if RoboCasa or its assets are missing or
    it cannot be imported here, and `KeyError` if it has no such task.
    """
    require()
    _import_robocasa(assets())
    from robocasa.environments.kitchen.kitchen import REGISTERED_KITCHEN_ENVS

    return REGISTERED_KITCHEN_ENVS[task.task_id]  # type: ignore[no-any-return]


@cache
def _import_robocasa(root: Path) -> None:
    quieten_log()
    imported = sys.modules.get("robocasa.models")
    if imported is not None and Path(imported.assets_root).resolve() != root:
        problem = f"RoboCasa was imported with the assets in {imported.assets_root}"
        raise HostError(problem, remedy=f"Start anew with {ASSETS}={root}.")
    finder = _AssetsFinder(root)
    sys.meta_path.insert(0, finder)
    try:
        # RoboCasa prints that mimicgen is not there.
        with importing("RoboCasa", INSTALL), contextlib.redirect_stdout(io.StringIO()):
            counter = importlib.import_module("robocasa.models.fixtures.counter")
    finally:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(finder)
    # RoboCasa puts the tops of a counter through a set of XML elements, which Python orders by address, and then draws
    # a top by its place in that order: models/fixtures/counter.py of robocasa 1.0.0, line 813. With the same seed, a
    # process that had built other kitchens placed a stand mixer elsewhere. Here they keep the order of the model; the
    # name `set` occurs in that module nowhere else.
    counter.set = dict.fromkeys  # type: ignore[attr-defined]


class _AssetsFinder(importlib.abc.MetaPathFinder):
    """Sets `robocasa.models.assets_root` as soon as that module is loaded: the next import reads it for good."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "robocasa.models":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_with_root(module: ModuleType) -> None:
                load(module)
                module.assets_root = str(self._root)  # type: ignore[attr-defined]

            spec.loader.exec_module = load_with_root  # type: ignore[method-assign]
        return spec
