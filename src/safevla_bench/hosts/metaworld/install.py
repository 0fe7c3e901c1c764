"""The Meta-World installation: is it there, which versions, its environments and goals."""

from __future__ import annotations

import importlib.metadata
import warnings
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from safevla_bench.errors import HostError
from safevla_bench.hosts.mujoco.renderer import graphics_error

if TYPE_CHECKING:
    from metaworld.sawyer_xyz_env import SawyerXYZEnv

_SIMULATOR = ("mujoco", "gymnasium", "metaworld")
INSTALL = "make metaworld   (in a checkout: it makes Meta-World's own environment, .venv-metaworld)"


def versions() -> dict[str, str]:
    """Return the versions of all that a trajectory depends on, by distribution; imports no simulator.

    Raises:
        HostError: Meta-World is not installed.
    """
    installed = {}
    for name in (*_SIMULATOR, "numpy", "safevla-bench"):
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError as error:
            problem = f"Meta-World is not installed: there is no distribution {name!r}"
            raise HostError(problem, remedy=INSTALL) from error
    return installed


def import_metaworld() -> Any:
    """Return the package `metaworld`; raises `HostError` where it is missing or cannot be imported."""
    versions()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # gymnasium's, about its own registry
            import metaworld
    except ModuleNotFoundError as error:
        raise HostError(f"Meta-World lacks a package: {error}", remedy=INSTALL) from error
    except (ImportError, OSError, AttributeError) as error:
        raise graphics_error("Meta-World", error) from error
    return metaworld


def make_env(name: str) -> SawyerXYZEnv:
    """Return Meta-World's environment of a task, without a renderer and without a limit on its steps.

    Meta-World's own environment refuses the step after its horizon; here the rollout counts.
    """
    env = import_metaworld().env_dict.ALL_V3_ENVIRONMENTS[name]()
    env.max_path_length = 2**31
    return env


@lru_cache(maxsize=64)
def draw_goals(name: str, seed: int) -> tuple[Any, ...]:
    """Return Meta-World's own tasks, fifty goals and places of things, as `metaworld.MT1(name, seed)` draws them.

    The last 64 draws are kept.
    """
    return tuple(import_metaworld().MT1(name, seed=seed).train_tasks)
