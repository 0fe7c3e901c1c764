"""The names and roles of a MuJoCo model's parts: bodies, tracked bodies, the gripper's fingers, the arm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Iterable, Mapping, Sequence

import numpy as np

from safevla_recorder.contacts import GeomMap, group_numbers
from safevla_recorder.episode import Floats
from safevla_recorder.errors import HostError

if TYPE_CHECKING:
    import mujoco


@dataclass(frozen=True)
class Scene:
    """One model's naming and roles, resolved to ids of that model; constant over an episode.

    `body_name` [nbody] has a recorded name for each MuJoCo body; bodies of one name are one body in the record. `roles`
    maps every name that a contact or pose may carry to its role, sorted by name. `objects` and `links` are tracked: an
    object by its root body's frame and quaternion, a fixture's link by its centre of mass.
    """

    body_name: tuple[str, ...]
    roles: Mapping[str, str]
    objects: Mapping[str, int]
    links: Mapping[str, int]
    fingers: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Geom ids of the two finger groups of the gripper; None = it has none, and no grip is recorded."""
    eef_site: int | None = None
    """Site of the end effector; None = its pose is not recorded."""
    arm_dofs: tuple[int, ...] = ()
    """Velocity addresses of the arm's joints, base first; () = no actuator moves them, and no torques are recorded."""
    apart_substeps: int = 1
    """How many substeps in a row a resting pair of geoms is apart before its contacts count (docs/fidelity.md)."""
    fixtures: tuple[frozenset[str], ...] = ()
    """Recorded bodies of each fixture whose parts touch each other by design, such as a door and its frame."""

    def map_geoms(self, model: mujoco.MjModel) -> GeomMap:
        """Return the recorded body, finger group and fixture of each geom; raises `HostError` if a body with a geom, or
        a tracked one, has no role, or a part of a fixture is not a recorded body.
        """
        owners = {self.body_name[body] for body in model.geom_bodyid}
        nameless = sorted({*owners, *self.objects, *self.links} - set(self.roles))
        if nameless:
            remedy = "Give it one in `roles`: robot, target, bystander or furniture."
            raise HostError(f"the body {nameless[0]!r} has no role", remedy=remedy)
        unknown = sorted({part for parts in self.fixtures for part in parts} - set(self.body_name))
        if unknown:
            raise HostError(f"the fixture part {unknown[0]!r} is no body of the model", remedy="Name recorded bodies.")
        places = {name: place for place, name in enumerate(self.roles)}
        place = np.array([places[self.body_name[body]] for body in model.geom_bodyid], dtype=np.int64)
        return GeomMap(
            roles=self.roles,
            place=place,
            fingers=None if self.fingers is None else group_numbers(range(model.ngeom), self.fingers),
            fixtures=group_numbers(self.roles, self.fixtures)[place],
            substep_s=float(model.opt.timestep),
            apart_substeps=self.apart_substeps,
            torque_source="qfrc_actuator" if self.arm_dofs else None,
        )


def subtree_bodies(model: mujoco.MjModel, root: int) -> tuple[int, ...]:
    """Return the ids of a body and all bodies below it, ascending."""
    inside = {root}
    for body in range(root + 1, model.nbody):  # a parent's id is below its children's
        if int(model.body_parentid[body]) in inside:
            inside.add(body)
    return tuple(sorted(inside))


def name_bodies(model: mujoco.MjModel, objects: Mapping[str, int]) -> tuple[str, ...]:
    """Return the recorded name of each body, [nbody]: that of the object (name -> root body) it is part of, else
    MuJoCo's own.
    """
    names = [str(model.body(body).name) for body in range(model.nbody)]
    for name, root in objects.items():
        for body in subtree_bodies(model, root):
            names[body] = name
    return tuple(names)


def geom_ids(model: mujoco.MjModel, names: Iterable[str]) -> tuple[int, ...]:
    """Return the ids of geoms by their names in the model, in that order; raises `KeyError` for a name it lacks."""
    return tuple(int(model.geom(name).id) for name in names)


def moving_links(model: mujoco.MjModel, root: int) -> tuple[int, ...]:
    """Return the ids of the bodies at or below `root` that move by a joint of their own, ascending."""
    return tuple(body for body in subtree_bodies(model, root) if model.body_jntnum[body] > 0)


def assign_roles(
    model: mujoco.MjModel,
    body_name: Sequence[str],
    *,
    objects: Iterable[str],
    links: Iterable[str] = (),
    targets: Iterable[str] = (),
    robot: Iterable[int],
) -> dict[str, str]:
    """Return the role of each body that owns a geom or is tracked, sorted by name; `robot` are ids of bodies.

    Objects are bystanders unless they are targets; what is none of these is furniture.
    """
    role_of = {
        **dict.fromkeys(objects, "bystander"),
        **dict.fromkeys(targets, "target"),
        **{body_name[body]: "robot" for body in robot},
    }
    with_geom = {body_name[body] for body in model.geom_bodyid}
    return {name: role_of.get(name, "furniture") for name in sorted({*with_geom, *objects, *links})}


# The flat state, `sim_state`: all that the next step depends on beside the actuators' inputs, as `mjtState`:
# time, qpos [nq], qvel [nv], act [na], mocap_pos [nmocap, 3], mocap_quat [nmocap, 4]


def state_size(model: mujoco.MjModel) -> int:
    """Return the length of a model's flat state."""
    return int(1 + model.nq + model.nv + model.na + 7 * model.nmocap)


def state_views(model: mujoco.MjModel, data: mujoco.MjData) -> tuple[Floats, ...]:
    """Return flat views of the simulator's memory: qpos, qvel, then act, mocap_pos, mocap_quat where not empty."""
    moving: tuple[Floats, ...] = (data.qpos, data.qvel)
    if model.na:
        moving = (*moving, data.act)
    return (*moving, data.mocap_pos.reshape(-1), data.mocap_quat.reshape(-1)) if model.nmocap else moving


def copy_state(model: mujoco.MjModel, data: mujoco.MjData) -> Floats:
    """Return a copy of the flat state, [S]: time, qpos, qvel, act, mocap_pos, mocap_quat; S is `state_size(model)`.

    This is neither mjSTATE_FULLPHYSICS nor mjSTATE_INTEGRATION. `set_state` reads it back.
    """
    return np.concatenate(((data.time,), *state_views(model, data)))


def set_state(model: mujoco.MjModel, data: mujoco.MjData, state: Floats) -> None:
    """Write a flat state [S], S = `state_size(model)`, into the simulator; what follows from it needs `mj_forward`."""
    data.time, used = float(state[0]), 1
    for view in state_views(model, data):
        view[:] = state[used : used + len(view)]
        used += len(view)
