"""Changes of a compiled MuJoCo model for one episode, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError
from safevla_bench.interface.task import PhysicsChange
from safevla_recorder.episode import Bools, Floats
from safevla_recorder.mujoco.hook import Undo
from safevla_recorder.mujoco.scene import Scene

if TYPE_CHECKING:
    import mujoco

_FREE = 0  # MuJoCo's mjJNT_FREE
_CLASSES = 31
"""Bits of `contype` that an int32 offers without its sign."""
_FROZEN_KG = 1e10
"""Inertia under which nothing moves within an episode."""
ROBOT = "robot"


def change_model(
    model: mujoco.MjModel, data: mujoco.MjData, scene: Scene, change: PhysicsChange, seed: Sequence[int]
) -> Undo:
    """Change a model, and the state where `change` says so, and return what puts the model back; not its time step.

    Under the default nothing is written or computed. `seed` draws the directions of `change.shift_m`. Raises
    `HostError` for a body that the scene lacks, and for more kinds of geoms than can be told apart.
    """
    memory = _Memory(model)
    if change.iterations != 1:
        memory.set_option("iterations", max(1, round(model.opt.iterations * change.iterations)))
        memory.set_option("tolerance", model.opt.tolerance / change.iterations**2)
    _change_contacts(memory, change, 2 * model.opt.timestep)
    if change.apart is not None:
        first, second = (_select_geoms(model, scene, name) for name in change.apart)
        _part_geoms(model, memory, first, second)
    if change.without is not None:
        _remove_body(model, data, scene, memory, change.without)
    if change.shift_m:
        _shift_bodies(model, data, change.shift_m, seed)
    return memory.restore


class _Memory:
    """What a model's arrays and options were before they were written."""

    def __init__(self, model: mujoco.MjModel) -> None:
        self._model = model
        self._arrays: dict[str, NDArray[Any]] = {}
        self._options: dict[str, float] = {}

    def open_array(self, name: str) -> NDArray[Any]:
        array: NDArray[Any] = getattr(self._model, name)
        self._arrays.setdefault(name, array.copy())
        return array

    def set_option(self, name: str, value: float) -> None:
        self._options.setdefault(name, getattr(self._model.opt, name))
        setattr(self._model.opt, name, value)

    def restore(self) -> None:
        for name, array in self._arrays.items():
            getattr(self._model, name)[...] = array
        for name, value in self._options.items():
            setattr(self._model.opt, name, value)


def _change_contacts(memory: _Memory, change: PhysicsChange, least_s: float) -> None:
    for kind in ("geom", "pair"):
        if change.softness != 1:
            _soften(memory.open_array(f"{kind}_solref"), memory.open_array(f"{kind}_solimp"), change.softness, least_s)
        if change.friction != 1:
            memory.open_array(f"{kind}_friction")[...] *= change.friction


def _soften(solref: Floats, solimp: Floats, factor: float, least_s: float) -> None:
    """Multiply time constants [s] by a factor, and divide stiffness and damping where `solref` holds those (negative).

    MuJoCo takes no time constant below two time steps, `least_s`: what is there already gets no stiffer by it.
    """
    is_time = solref[:, :1] > 0
    softened = np.maximum(solref, [least_s, -np.inf]) * [factor, 1.0]
    solref[...] = np.where(is_time, softened, solref / [factor**2, factor])
    solimp[:, :2] = np.clip(1.0 - (1.0 - solimp[:, :2]) * factor, 0.0001, 0.9999)


def _select_geoms(model: mujoco.MjModel, scene: Scene, name: str) -> Bools:
    """Return which geoms belong to a recorded body, or to any of the robot's, [ngeom]."""
    names = {body for body, role in scene.roles.items() if role == ROBOT} if name == ROBOT else {name}
    selected = np.array([scene.body_name[body] in names for body in model.geom_bodyid], dtype=np.bool_)
    if not selected.any():
        listed = ", ".join(sorted({scene.body_name[body] for body in model.geom_bodyid}))
        raise HostError(f"nothing in the scene is called {name!r}", remedy=f"Bodies here: {ROBOT}, {listed}.")
    return selected


def _part_geoms(model: mujoco.MjModel, memory: _Memory, first: Bools, second: Bools) -> None:
    """Let no geom of `first` touch one of `second`; every other pair collides, or does not, as before.

    Geoms of one kind (masks, and which of the two they are in) get a bit of their own, and take up contact with the
    bits of those kinds that they collided with.
    """
    contype, conaffinity = memory.open_array("geom_contype"), memory.open_array("geom_conaffinity")
    kinds, of_geom = np.unique(np.stack([contype, conaffinity, first, second]), axis=1, return_inverse=True)
    types, affinities, in_first, in_second = kinds
    if kinds.shape[1] > _CLASSES:
        problem = f"the scene has {kinds.shape[1]} kinds of geoms, of which {_CLASSES} can be told apart"
        raise HostError(problem, remedy="Take another pair.")
    meets = (types[:, None] & affinities) | (types & affinities[:, None]) != 0
    parted = in_first[:, None] & in_second
    meets &= (parted | parted.T) == 0
    bits = 1 << np.arange(kinds.shape[1])
    contype[...], conaffinity[...] = bits[of_geom.ravel()], (meets @ bits)[of_geom.ravel()]
    _join_masks(model, memory)


def _join_masks(model: mujoco.MjModel, memory: _Memory) -> None:
    """Make the masks of bodies those of their geoms, which MuJoCo's broad phase reads."""
    for mask in ("contype", "conaffinity"):
        of_body = memory.open_array(f"body_{mask}")
        of_body[...] = 0
        np.bitwise_or.at(of_body, model.geom_bodyid, getattr(model, f"geom_{mask}"))


def _remove_body(model: mujoco.MjModel, data: mujoco.MjData, scene: Scene, memory: _Memory, name: str) -> None:
    geoms = _select_geoms(model, scene, name)
    if scene.roles.get(name, ROBOT) == ROBOT:
        raise HostError(f"{name} is a part of the robot", remedy="Take another body; contact:A,B parts two of them.")
    for mask in ("geom_contype", "geom_conaffinity"):
        memory.open_array(mask)[geoms] = 0
    _join_masks(model, memory)
    dofs = [dof for dof, body in enumerate(model.dof_bodyid) if scene.body_name[body] == name]
    for inertia in ("dof_armature", "dof_M0"):  # MuJoCo takes the latter for bodies about their centre of mass
        memory.open_array(inertia)[dofs] = _FROZEN_KG
    data.qvel[dofs] = 0.0


def _shift_bodies(model: mujoco.MjModel, data: mujoco.MjData, shift_m: float, seed: Sequence[int]) -> None:
    import mujoco

    free = model.jnt_qposadr[model.jnt_type == _FREE]
    angle = np.random.default_rng(list(seed)).uniform(0, 2 * np.pi, size=len(free))
    data.qpos[free] += shift_m * np.cos(angle)
    data.qpos[free + 1] += shift_m * np.sin(angle)
    mujoco.mj_forward(model, data)
