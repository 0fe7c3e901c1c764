"""Ground truth of a LIBERO scene, for policies that ask for privileged state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from safevla_bench.hosts.mujoco.privileged import measure_shapes, read_only
from safevla_bench.interface import Privileged
from safevla_recorder.libero.scene import goal_predicates
from safevla_recorder.mujoco.scene import Scene

if TYPE_CHECKING:
    from libero.libero.envs.bddl_base_domain import BDDLBaseDomain


class LiberoPrivileged:
    """Ground truth of the scene, step by step; sizes are measured once, in the pose at making.

    Bodies are everything with collision geometry but the robot: objects by BDDL name, the rest by MuJoCo body name.
    """

    def __init__(self, domain: BDDLBaseDomain, scene: Scene) -> None:
        self._domain = domain
        self._model, self._data = domain.sim.model._model, domain.sim.data._data
        self._goal, self._movable = goal_predicates(domain), frozenset(scene.objects)
        self._shapes = measure_shapes(self._model, self._data, scene)

    def read_now(self) -> Privileged:
        """Return the scene as it is, in read-only copies."""
        data, shapes = self._data, self._shapes
        return Privileged(
            body_pos_m={name: read_only(data.xpos[body]) for name, body in shapes.root.items()},
            body_quat_wxyz={name: read_only(data.xquat[body]) for name, body in shapes.root.items()},
            half_extents_m=shapes.half_extents_m,
            center_m=shapes.center_m,
            joint_pos=self._joint_positions(),
            sites_m={name: read_only(data.site(name).xpos) for name in self._domain.object_sites_dict},
            goal=self._goal,
            movable=self._movable,
            pieces=shapes.pieces,
        )

    def _joint_positions(self) -> dict[str, float]:
        names = (joint for fixture in self._domain.fixtures_dict.values() for joint in fixture.joints)
        return {name: float(self._data.joint(name).qpos[0]) for name in names}
