"""The names and roles of a MuJoCo model's parts: bodies, tracked bodies, the gripper's fingers, the arm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Mapping

import numpy as np
from numpy.typing import NDArray

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
    fingers: tuple[tuple[int, ...], tuple[int, ...]]
    """Geom ids of the two finger groups of the gripper."""
    eef_site: int
    arm_dofs: tuple[int, ...]
    """Velocity addresses of the arm's joints, base first."""
    apart_substeps: int = 1
    """How many substeps in a row a resting pair of geoms is apart before its contacts count (docs/fidelity.md)."""
    fixtures: tuple[frozenset[str], ...] = ()
    """Recorded bodies of each fixture whose parts touch each other by design, such as a door and its frame."""

    def geom_places(self, model: mujoco.MjModel) -> NDArray[np.int64]:
        """Return the place in `roles` of the body that owns each geom, [ngeom]."""
        places = {name: place for place, name in enumerate(self.roles)}
        return np.array([places[self.body_name[body]] for body in model.geom_bodyid], dtype=np.int64)

    def fixture_groups(self, place: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return 0 for each geom, or the number of the fixture that it is a part of, [ngeom].

        `place` [ngeom] is the place in `roles` of the body that owns each geom.

        Raises:
            HostError: a part of a fixture is no recorded body of the model.
        """
        number = {name: group for group, names in enumerate(self.fixtures, start=1) for name in names}
        unknown = sorted(set(number) - set(self.body_name))
        if unknown:
            raise HostError(f"the fixture part {unknown[0]!r} is no body of the model", remedy="Name recorded bodies.")
        of_body = np.array([number.get(name, 0) for name in self.roles], dtype=np.int64)
        groups: NDArray[np.int64] = of_body[place]
        return groups

    def finger_groups(self, model: mujoco.MjModel) -> NDArray[np.int64]:
        """Return 0 for each geom, or 1 and 2 for those of the two finger groups, [ngeom]."""
        groups = np.zeros(model.ngeom, dtype=np.int64)
        for side, geoms in enumerate(self.fingers, start=1):
            groups[list(geoms)] = side
        return groups


def subtree_bodies(model: mujoco.MjModel, root: int) -> tuple[int, ...]:
    """Return a body and all bodies below it, in id order."""
    inside = {root}
    for body in range(root + 1, model.nbody):  # a parent's id is below its children's
        if int(model.body_parentid[body]) in inside:
            inside.add(body)
    return tuple(sorted(inside))


def moving_links(model: mujoco.MjModel, root: int) -> tuple[int, ...]:
    """Return the bodies at or below `root` that move by a joint of their own."""
    return tuple(body for body in subtree_bodies(model, root) if model.body_jntnum[body] > 0)


def roles_in_use(
    model: mujoco.MjModel, body_name: tuple[str, ...], role_of: Mapping[str, str], tracked: frozenset[str]
) -> dict[str, str]:
    """Return the role of each body that owns a geom or is tracked, by name and sorted by it."""
    with_geom = {body_name[body] for body in model.geom_bodyid}
    return {name: role_of[name] for name in sorted(with_geom | tracked)}
