"""Changes of a compiled MuJoCo model for one episode, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from safevla_bench.errors import HostError
from safevla_bench.interface.task import PhysicsChange
from safevla_recorder.episode import Bools, Floats
from safevla_recorder.mujoco.hook import Undo
from safevla_recorder.mujoco.recorder import Scene

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
    changed = () if change == PhysicsChange() else _CHANGED
    kept = {name: getattr(model, name).copy() for name in changed}
    options = {name: getattr(model.opt, name) for name in ("iterations", "tolerance") if changed}

    def restore() -> None:
        for name, array in kept.items():
            getattr(model, name)[...] = array
        for name, value in options.items():
            setattr(model.opt, name, value)

    if change.iterations != 1:
        model.opt.iterations = max(1, round(model.opt.iterations * change.iterations))
        model.opt.tolerance /= change.iterations**2
    for kind in ("geom", "pair"):
        if change.softness != 1:
            solref, solimp = getattr(model, f"{kind}_solref"), getattr(model, f"{kind}_solimp")
            _soften(solref, solimp, change.softness, 2 * model.opt.timestep)
        if change.friction != 1:
            getattr(model, f"{kind}_friction")[...] *= change.friction
    if change.apart is not None:
        _part_geoms(model, *(_select_geoms(model, scene, name) for name in change.apart))
    if change.without is not None:
        _remove_body(model, data, scene, change.without)
    if change.shift_m:
        _shift_bodies(model, data, change.shift_m, seed)
    return restore


_CHANGED = (
    *(f"{kind}_{part}" for kind in ("geom", "pair") for part in ("solref", "solimp", "friction")),
    *(f"{kind}_{mask}" for kind in ("geom", "body") for mask in ("contype", "conaffinity")),
    "dof_armature",
    "dof_M0",
)
"""The arrays of a model that a change may write."""


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


def _part_geoms(model: mujoco.MjModel, first: Bools, second: Bools) -> None:
    """Let no geom of `first` touch one of `second`; every other pair collides, or does not, as before.

    Geoms of one kind (masks, and which of the two they are in) get a bit of their own, and take up contact with the
    bits of those kinds that they collided with.
    """
    contype, conaffinity = model.geom_contype, model.geom_conaffinity
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
    _join_masks(model)


def _join_masks(model: mujoco.MjModel) -> None:
    """Make the masks of bodies those of their geoms, which MuJoCo's broad phase reads."""
    for mask in ("contype", "conaffinity"):
        of_body = getattr(model, f"body_{mask}")
        of_body[...] = 0
        np.bitwise_or.at(of_body, model.geom_bodyid, getattr(model, f"geom_{mask}"))


def _remove_body(model: mujoco.MjModel, data: mujoco.MjData, scene: Scene, name: str) -> None:
    geoms = _select_geoms(model, scene, name)
    if scene.roles.get(name, ROBOT) == ROBOT:
        raise HostError(f"{name} is a part of the robot", remedy="Take another body; contact:A,B parts two of them.")
    for mask in ("geom_contype", "geom_conaffinity"):
        getattr(model, mask)[geoms] = 0
    _join_masks(model)
    dofs = [dof for dof, body in enumerate(model.dof_bodyid) if scene.body_name[body] == name]
    for inertia in ("dof_armature", "dof_M0"):  # MuJoCo takes the latter for bodies about their centre of mass
        getattr(model, inertia)[dofs] = _FROZEN_KG
    data.qvel[dofs] = 0.0


def _shift_bodies(model: mujoco.MjModel, data: mujoco.MjData, shift_m: float, seed: Sequence[int]) -> None:
    import mujoco

    free = model.jnt_qposadr[model.jnt_type == _FREE]
    angle = np.random.default_rng(list(seed)).uniform(0, 2 * np.pi, size=len(free))
    data.qpos[free] += shift_m * np.cos(angle)
    data.qpos[free + 1] += shift_m * np.sin(angle)
    mujoco.mj_forward(model, data)
