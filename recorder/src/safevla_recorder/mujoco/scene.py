"""The names and roles of a MuJoCo model's parts: bodies, tracked bodies, the gripper's fingers, the arm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from safevla_recorder.episode_log import GeomMap
from safevla_recorder.errors import HostError

if TYPE_CHECKING:
    import mujoco


@dataclass(frozen=True)
class Scene:
    """One model's naming and roles, resolved to ids of that model; constant over an episode.

    `body_name` has a recorded name for each MuJoCo body, [nbody]; bodies of one name are one body in the record.
    `roles` maps every name that a contact or pose may carry to its role, sorted by name. `objects` and `links` are
    tracked: an object by its root body's frame and quaternion, a fixture's link by its centre of mass.
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
        """Return the recorded body, finger group and fixture of each geom.

        Raises:
            HostError: a body with a geom, or a tracked one, has no role; or a part of a fixture is no recorded body.
        """
        owners = {self.body_name[body] for body in model.geom_bodyid}
        nameless = sorted({*owners, *self.objects, *self.links} - set(self.roles))
        if nameless:
            remedy = "Give it one in `roles`: robot, target, bystander or furniture."
            raise HostError(f"the body {nameless[0]!r} has no role", remedy=remedy)
        places = {name: place for place, name in enumerate(self.roles)}
        place = np.array([places[self.body_name[body]] for body in model.geom_bodyid], dtype=np.int64)
        return GeomMap(
            roles=self.roles,
            place=place,
            fingers=None if self.fingers is None else _finger_groups(self.fingers, model.ngeom),
            fixtures=self._fixture_numbers()[place],
            substep_s=float(model.opt.timestep),
            apart_substeps=self.apart_substeps,
        )

    def _fixture_numbers(self) -> NDArray[np.int64]:
        """Return the number, from 1, of the fixture that each body of `roles` is a part of, 0 = of none, [B].

        Raises `HostError` if a part of a fixture is no body of the model.
        """
        number = {name: group for group, names in enumerate(self.fixtures, start=1) for name in names}
        unknown = sorted(set(number) - set(self.body_name))
        if unknown:
            raise HostError(f"the fixture part {unknown[0]!r} is no body of the model", remedy="Name recorded bodies.")
        return np.array([number.get(name, 0) for name in self.roles], dtype=np.int64)


def _finger_groups(fingers: tuple[tuple[int, ...], tuple[int, ...]], geoms: int) -> NDArray[np.int64]:
    groups = np.zeros(geoms, dtype=np.int64)
    for side, ids in enumerate(fingers, start=1):
        groups[list(ids)] = side
    return groups


def subtree_bodies(model: mujoco.MjModel, root: int) -> tuple[int, ...]:
    """Return the ids of a body and all bodies below it, ascending."""
    inside = {root}
    for body in range(root + 1, model.nbody):  # a parent's id is below its children's
        if int(model.body_parentid[body]) in inside:
            inside.add(body)
    return tuple(sorted(inside))


def name_bodies(model: mujoco.MjModel, objects: Mapping[str, int]) -> tuple[str, ...]:
    """Return the recorded name of each body: that of the object it is part of, else MuJoCo's own, [nbody].

    `objects` has the root body of each object by name.
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


def roles_in_use(
    model: mujoco.MjModel, body_name: tuple[str, ...], role_of: Mapping[str, str], tracked: frozenset[str]
) -> dict[str, str]:
    """Return the role of each body that owns a geom or is tracked, by name and sorted by it.

    Raises `KeyError` if `role_of` lacks such a body.
    """
    with_geom = {body_name[body] for body in model.geom_bodyid}
    return {name: role_of[name] for name in sorted(with_geom | tracked)}
