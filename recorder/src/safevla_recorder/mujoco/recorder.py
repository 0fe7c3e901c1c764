"""The recorder of one MuJoCo episode: poses, torques, grip and contacts, read without changing the simulation.

The recorder reads `mjData` after each physics substep and at the end of each control step, and writes nothing. It makes
no extra forward pass, because that would change the solver's warm start. So a record's positions, contacts and torques
belong to the start of the last substep, when MuJoCo computed them. `sim_state` is the state at the end of this substep,
from which the run can be continued. Peak torques are the largest magnitudes over the substeps of the control step; in
record 0, which has no substeps, they are the magnitudes at that instant.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from safevla_recorder.channels import LINK_MOTION, SUBGOALS
from safevla_recorder.contacts import GeomMap, group_numbers
from safevla_recorder.episode import Action, Bools, Floats
from safevla_recorder.errors import HostError, get_logger, is_from_signal
from safevla_recorder.geometry import Geometry, rotate, turn_back
from safevla_recorder.mujoco.contacts import ContactLog
from safevla_recorder.mujoco.geometry import read_parts
from safevla_recorder.mujoco.hook import Undo, hook_after
from safevla_recorder.recorder import EpisodeLog, Row, subgoal_fields

if TYPE_CHECKING:
    import mujoco

_FREE, _SLIDE = 0, 2  # values of MuJoCo's mjtJoint
RESTING_M_S = 0.05  # an object with at most this speed [m/s] is at rest
# An object with a larger acceleration [m/s²] falls, or overlaps another body.
# After settling, the largest accelerations are 0.3 in LIBERO and RoboCasa.
# In robosuite's own tasks, the largest is 7.1, because some objects still rock.
FALLING_M_S2 = 8.0
_log = get_logger(__name__)


# Names and roles of a model's parts: bodies, tracked bodies, the gripper's fingers, the arm


@dataclass(frozen=True)
class SceneArm:
    """One arm of a model. `bodies` are its recorded bodies, or () for the only arm. Other fields: see `Scene`."""

    bodies: Collection[str] = ()
    fingers: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    eef_site: int | None = None
    arm_dofs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Scene:
    """Names, roles and MuJoCo ids of one model's bodies; constant over an episode.

    `body_name` [nbody] is the recorded name of each MuJoCo body; bodies with the same name are one body in the record.
    `roles` maps every name that a contact or pose may have to its role, sorted by name. `objects` and `links` are
    tracked: an object by the pose of its root body's frame, a fixture's link by the position of its center of mass.
    """

    body_name: tuple[str, ...]
    roles: Mapping[str, str]
    objects: Mapping[str, int]
    links: Mapping[str, int]
    fingers: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Geom ids of the gripper's two finger groups; None = there is no gripper, and grips are not recorded."""
    eef_site: int | None = None  # site of the end effector; None = the end effector's pose is not recorded
    arm_dofs: tuple[int, ...] = ()
    """Indices of the arm's joints in MuJoCo's `qvel`, base first; () = no actuators, so torques are not recorded."""
    apart_substeps: int = 1
    """Number of substeps without contact after which a resting geom pair counts (docs/explanation/fidelity.md)."""
    fixtures: tuple[frozenset[str], ...] = ()
    """The recorded bodies of each fixture whose parts touch by design, such as a door and its frame."""
    arms: Mapping[str, SceneArm] = field(default_factory=dict)
    """Several arms by name, in the order of the record. They replace `fingers`, `eef_site` and `arm_dofs` above."""

    @property
    def all_arms(self) -> tuple[SceneArm, ...]:
        """All arms in order. If `arms` is empty, the only arm has the scene's fingers, site and joints."""
        # () = the bodies of the only arm are not listed.
        return tuple(self.arms.values()) or (SceneArm((), self.fingers, self.eef_site, self.arm_dofs),)

    @property
    def all_dofs(self) -> tuple[int, ...]:
        """Indices of all arms' joints in MuJoCo's `qvel`, one arm after the other."""
        return tuple(dof for arm in self.all_arms for dof in arm.arm_dofs)

    def map_geoms(self, model: mujoco.MjModel) -> GeomMap:
        """Return the recorded body, finger group and fixture of each geom. Raises `HostError` if names of bodies are
        missing or contradict the ids, or if a tracked body or a geom's body lacks a role.
        """
        if len(self.body_name) != model.nbody:
            problem = f"`body_name` has {len(self.body_name)} names, but the model has {model.nbody} bodies"
            remedy = "List one name for each body, such as [model.body(k).name for k in range(model.nbody)]."
            raise HostError(problem, remedy=remedy)
        for name, body in {**self.objects, **self.links}.items():
            if self.body_name[body] != name:
                problem = f"{name!r} is tracked at the body {body}, whose name is {self.body_name[body]!r}"
                raise HostError(problem, remedy="Give bodies' ids, and in `body_name` the same name for this body.")
        unnamed = [body for body in model.geom_bodyid.tolist() if not self.body_name[body]]
        if unnamed:
            remedy = f"Give the bodies with geoms different names in `body_name`, such as `body_{unnamed[0]}`."
            raise HostError(f"the body {unnamed[0]} has no name", remedy=remedy)
        owners = {self.body_name[body] for body in model.geom_bodyid}
        without_role = sorted({*owners, *self.objects, *self.links} - set(self.roles))
        if without_role:
            remedy = "Give the body a role in `roles`: `robot`, `target`, `bystander` or `furniture`."
            raise HostError(f"the body {without_role[0]!r} has no role", remedy=remedy)
        unknown = sorted({part for parts in self.fixtures for part in parts} - set(self.body_name))
        if unknown:
            problem = f"the fixture part {unknown[0]!r} is not a body of the model"
            raise HostError(problem, remedy="Use the names of recorded bodies.")
        # In the result, bodies are indices in `roles`. Groups have numbers from 1; 0 = the geom is in no group.
        index_of = {name: index for index, name in enumerate(self.roles)}
        # An arm without fingers has two empty groups, because `GeomMap` counts two groups per arm.
        groups = [group for arm in self.all_arms for group in arm.fingers or ((), ())]
        has_fingers = any(len(group) > 0 for group in groups)
        body_of_geom = np.array([index_of[self.body_name[body]] for body in model.geom_bodyid], dtype=np.int64)
        return GeomMap(
            roles=self.roles,
            place=body_of_geom,
            fingers=group_numbers(range(model.ngeom), groups) if has_fingers else None,
            fixtures=group_numbers(self.roles, self.fixtures)[body_of_geom],
            substep_s=float(model.opt.timestep),
            apart_substeps=self.apart_substeps,
            torque_source="qfrc_actuator" if self.all_dofs else None,
            arms={name: sorted(set(arm.bodies) & set(self.roles)) for name, arm in self.arms.items()},
            arm_joints=tuple(len(arm.arm_dofs) for arm in self.arms.values()) if self.all_dofs else (),
            # The force [N] that balances each object's weight; objects without weight are left out.
            weights={
                index_of[name]: -model.opt.gravity * model.body_subtreemass[root]
                for name, root in self.objects.items()
                if model.body_subtreemass[root] and _can_fall(model, root)
            },
        )


def _can_fall(model: mujoco.MjModel, root: int) -> bool:
    # Return whether gravity can move the body `root` along its joints; then only contacts can carry its weight.
    # A body that is fixed, or that slides on a table by joints, as in Meta-World, is carried by its joints.
    gravity, mobility = model.opt.gravity, 0.0  # `mobility` is the squared length of gravity along the joints
    for joint in range(model.body_jntadr[root], model.body_jntadr[root] + model.body_jntnum[root]):
        if model.jnt_type[joint] == _FREE:
            return bool(gravity.any())
        if model.jnt_type[joint] == _SLIDE:
            axis, body = model.jnt_axis[joint], root
            while body:  # turn the axis from the body's frame to the world's
                axis, body = rotate(model.body_quat[body], axis), int(model.body_parentid[body])
            mobility += float(axis @ gravity) ** 2
    return mobility > 0.99 * float(gravity @ gravity)


def subtree_bodies(model: mujoco.MjModel, root: int) -> tuple[int, ...]:
    """Return the ids of a body and of all bodies below it, ascending."""
    inside = {root}
    for body in range(root + 1, model.nbody):  # a parent has a smaller id than its children
        if int(model.body_parentid[body]) in inside:
            inside.add(body)
    return tuple(sorted(inside))


def name_bodies(model: mujoco.MjModel, objects: Mapping[str, int]) -> tuple[str, ...]:
    """Return each body's name in the record, [nbody]. A part of an object has the object's name, others MuJoCo's."""
    # `objects` maps each object's recorded name to the id of its root body.
    names = [str(model.body(body).name) for body in range(model.nbody)]
    for name, root in objects.items():
        for body in subtree_bodies(model, root):
            names[body] = name
    return tuple(names)


def geom_ids(model: mujoco.MjModel, names: Iterable[str]) -> tuple[int, ...]:
    """Return the ids of geoms, in the order of `names`. Raises `KeyError` for an unknown name."""
    return tuple(int(model.geom(name).id) for name in names)


def moving_links(model: mujoco.MjModel, root: int) -> tuple[int, ...]:
    """Return the ids of the bodies with joints among `root` and all bodies below it, ascending."""
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
    """Return the role of each body that owns a geom or is tracked, sorted by name. Objects are targets or bystanders,
    bodies with an id in `robot` have the role robot, and all other bodies are furniture.
    """
    # `body_name` [nbody] is each MuJoCo body's recorded name. All other arguments except `robot` list recorded names.
    # A target is also an object, so its later entry in the dict replaces the earlier one.
    role_of = {
        **dict.fromkeys(objects, "bystander"),
        **dict.fromkeys(targets, "target"),
        **{body_name[body]: "robot" for body in robot},
    }
    with_geom = {body_name[body] for body in model.geom_bodyid}
    return {name: role_of.get(name, "furniture") for name in sorted({*with_geom, *objects, *links})}


# The flat state, `sim_state`, determines the next step, together with the actuators' inputs.
# `sim_state` contains time, qpos [nq], qvel [nv], act [na], mocap_pos [nmocap, 3] and mocap_quat [nmocap, 4].


def state_size(model: mujoco.MjModel) -> int:
    """Return the length of a model's flat state."""
    return int(1 + model.nq + model.nv + model.na + 7 * model.nmocap)


def state_views(model: mujoco.MjModel, data: mujoco.MjData) -> tuple[Floats, ...]:
    """Return flat views of the arrays `qpos` and `qvel`, and of `act`, `mocap_pos` and `mocap_quat` if not empty."""
    # The views share memory with the simulator: they always show the current state, and writing to them changes it.
    views: list[Floats] = [data.qpos, data.qvel]
    if model.na:
        views.append(data.act)
    if model.nmocap:
        views += [data.mocap_pos.reshape(-1), data.mocap_quat.reshape(-1)]
    return tuple(views)


def copy_state(model: mujoco.MjModel, data: mujoco.MjData) -> Floats:
    """Return a copy of the flat state, [S]: `time`, `qpos`, `qvel`, `act`, `mocap_pos`, `mocap_quat`."""
    return np.concatenate(((data.time,), *state_views(model, data)))


def set_state(model: mujoco.MjModel, data: mujoco.MjData, state: Floats) -> None:
    """Write a flat state [S] into the simulator. The caller must then call `mj_forward` for derived quantities."""
    # The state consists of the time and the arrays of `state_views`, one after another.
    data.time, start = float(state[0]), 1
    for view in state_views(model, data):
        view[:] = state[start : start + len(view)]
        start += len(view)


# Doors and drawers, and their interiors. Doors and drawers are non-robot bodies with a single joint that has limits.


# MuJoCo's constants for box geoms and for slide and hinge joints; minimum half size [m] of boxes for interiors.
_BOX, _ONE_DOF_JOINTS, _MIN_HALF_SIZE_M = 6, (2, 3), 0.01
_INTERIOR_SUFFIXES = ("_region", "reg_int")  # suffixes of LIBERO's sites and RoboCasa's geoms that mark interiors


@dataclass(frozen=True)
class _Door:
    """A door or drawer. For the joint: index in `sim_state`, closed position and travel [m or rad]. `boxes` form the
    interior. A box has a body, a center [3] and quaternion [4] in the body's frame, and half sizes [3].
    """

    name: str
    column: int
    closed: float
    travel: float
    boxes: tuple[tuple[int, Floats, Floats, Floats], ...]

    def is_entered(self, point: Floats, pos: Floats, quat: Floats) -> Bools:
        """Return whether points [n, 3] are in the interior, given all bodies' `pos` and `quat`, [n, nbody, 3 or 4]."""
        # Positions are in m and quaternions are wxyz, in the world frame, in each of n records.
        # The interior is the union of the boxes.
        inside = np.zeros(len(point), dtype=np.bool_)
        for body, center, box_quat, half_size in self.boxes:
            # Convert the points from the world to the body's frame, and from there to the box's frame.
            point_in_box = turn_back(box_quat, turn_back(quat[:, body], point - pos[:, body]) - center)
            inside |= (np.abs(point_in_box) <= half_size).all(axis=1)
        return inside


def _find_doors(model: mujoco.MjModel, scene: Scene) -> list[_Door]:
    # Return the doors and drawers in the order of their joints. Objects and the robot's bodies are left out.
    # A door or drawer is a body with a single joint, which must be a slide or a hinge with limits.
    boxes = _find_interior_boxes(model, "site", model.nsite) + _find_interior_boxes(model, "geom", model.ngeom)
    doors: dict[str, _Door] = {}
    for joint, body in enumerate(model.jnt_bodyid.tolist()):
        name, address = scene.body_name[body], int(model.jnt_qposadr[joint])
        is_fixture = scene.roles.get(name, "robot") != "robot" and name not in scene.objects
        has_one_dof = model.body_jntnum[body] == 1 and model.jnt_type[joint] in _ONE_DOF_JOINTS
        if not is_fixture or not has_one_dof or not model.jnt_limited[joint]:
            continue
        low, high = model.jnt_range[joint].tolist()
        # The joint's position [m or rad] in the model's initial state counts as closed.
        closed, subtree = float(model.qpos0[address]), subtree_bodies(model, body)
        travel = max(high - closed, closed - low)
        # Interiors that move with the door, such as that of a drawer. `box[0]` is the id of a box's body.
        own_boxes = [box for box in boxes if box[0] in subtree]
        if not own_boxes:  # the door closes the interior of the body to which the door is attached
            own_boxes = [box for box in boxes if box[0] == model.body_parentid[body]]
        # If several doors have the same recorded name, only the first is recorded.
        if travel > 0 and name not in doors:
            column = 1 + address  # in `sim_state`, the time precedes the joints' positions
            doors[name] = _Door(name, column, closed, travel, tuple(own_boxes))
    return list(doors.values())


def _find_interior_boxes(model: mujoco.MjModel, kind: str, count: int) -> list[tuple[int, Floats, Floats, Floats]]:
    # Return the boxes of the model's sites or geoms (`kind`) whose names mark interiors of doors and drawers.
    # `count` is the number of all sites or geoms. A box has the id of a body, and half sizes [3] in m.
    # A box also has a center [3] in m and a quaternion [4] wxyz, both in the body's frame.
    fields = ("bodyid", "type", "size", "pos", "quat")
    body, shape_type, size, pos, quat = (getattr(model, f"{kind}_{name}") for name in fields)
    large_boxes = [k for k in range(count) if shape_type[k] == _BOX and size[k].min() >= _MIN_HALF_SIZE_M]
    interiors = [k for k in large_boxes if getattr(model, kind)(k).name.endswith(_INTERIOR_SUFFIXES)]
    return [(int(body[k]), pos[k].copy(), quat[k].copy(), size[k].copy()) for k in interiors]


def link_offsets(model: mujoco.MjModel, data: mujoco.MjData, scene: Scene) -> Floats:
    """Return the center of mass of each whole link relative to that of its first body, in that body's frame, [L, 3]."""
    # The first body of a link may have no mass, as in RoboCasa's cabinet doors.
    # The other bodies of the link are fixed to the first body and have the same recorded name.
    offsets = np.zeros((len(scene.links), 3))
    for row, (name, first) in enumerate(scene.links.items()):
        fixed_bodies = np.flatnonzero(model.body_weldid == model.body_weldid[first]).tolist()
        bodies = [body for body in fixed_bodies if scene.body_name[body] == name]
        mass = model.body_mass[bodies]
        if len(bodies) > 1 and mass.sum() > 0:
            center = mass @ data.xipos[bodies] / mass.sum()
            offsets[row] = turn_back(data.xquat[first], center - data.xipos[first])
    return offsets


# The recorder


ReadSubgoals = Callable[[], Mapping[str, bool]]
"""A function that returns, by name, whether each of the goal's predicates holds now; {} = unknown."""
_UNSTABLE_START = (
    "The episode is lost, and another attempt from this initial state would fail, too. Look for overlapping bodies and "
    "large velocities in the initial state. Your own loop must call mujoco.mj_resetData before each episode."
)


# Margins for positions [m] and for differences of quaternions, as (minimum, rate, maximum).
# A margin is the timestep in seconds times the rate, limited to the range from the minimum to the maximum.
# `qvel` may lack a motion if a loop stops the robot after the last step, or if the integrator has several stages.
# The maximum for positions is below the smallest limit on displacements, 5 mm.
_STALE_M, _STALE_QUAT = (0.002, 2.0, 0.004), (0.01, 5.0, 0.05)


def _stale_margin(model: mujoco.MjModel, limits: tuple[float, float, float]) -> float:
    minimum, rate, maximum = limits
    return min(max(minimum, rate * float(model.opt.timestep)), maximum)


def _require_current_poses(model: mujoco.MjModel, data: mujoco.MjData) -> None:
    """Raise `HostError` if the bodies' poses do not match `qpos`, for example after a state was set without
    `mj_forward`. After `mj_step`, poses are one substep older than `qpos`. So they may differ by twice the motion in a
    substep, plus a margin that grows with the timestep to 4 mm. For bodies without a free joint, only a missing
    orientation is an error: simulators such as RoboCasa set joints of fixtures after each step. Skips plugins.
    """
    import mujoco

    # `previous` are the poses for `qpos` before the last substep, and `current` the poses for `qpos` after it.
    # The poses in `data` should equal `previous` after a step, and `current` after `mj_forward`.
    if model.nplugin:  # making an `MjData` may run a plugin's code
        return
    current, previous, previous_qpos = mujoco.MjData(model), mujoco.MjData(model), data.qpos.copy()
    mujoco.mj_integratePos(model, previous_qpos, data.qvel, -model.opt.timestep)  # go back by one substep
    for copied_data, qpos in ((current, data.qpos), (previous, previous_qpos)):
        copied_data.qpos[:] = qpos  # `qpos` alone determines the poses of free bodies
        mujoco.mj_kinematics(model, copied_data)
    # True for the bodies with a free joint, [nbody].
    is_checked = np.zeros(model.nbody, dtype=np.bool_)
    is_checked[model.jnt_bodyid[model.jnt_type == mujoco.mjtJoint.mjJNT_FREE]] = True
    for name, limits in (("xpos", _STALE_M), ("xquat", _STALE_QUAT)):
        margin = _stale_margin(model, limits)
        # Positions [nbody, 3] in m, or quaternions [nbody, 4]; the margin has the same unit.
        poses, current_poses, previous_poses = (getattr(source, name) for source in (data, current, previous))
        difference = np.linalg.norm(poses - current_poses, axis=1)
        is_missing = False
        if name == "xquat":
            # A quaternion and its negative are the same orientation.
            difference = np.minimum(difference, np.linalg.norm(poses + current_poses, axis=1))
            is_missing = (poses == 0).all(axis=1)  # no orientation has been computed since a reset
        motion = np.linalg.norm(previous_poses - current_poses, axis=1)  # how far bodies move in one substep
        is_stale = (is_checked & (difference > 2 * motion + margin)) | is_missing
        if is_stale.any():
            body = model.body(int(np.flatnonzero(is_stale)[0])).name
            cause = "a state, velocity or body was set after the last step"
            problem = f"record 0: the pose of the body {body!r} belongs to an earlier state or model: {cause}"
            remedy = "Call mujoco.mj_forward(model, data), or sim.forward(), after setting a state, before record 0."
            raise HostError(problem, remedy=remedy)


_SLEEP = "mjENBL_SLEEP"  # name of the flag in MuJoCo's mjtEnableBit, since version 3.4


def _may_sleep(model: mujoco.MjModel) -> bool:
    # Return whether MuJoCo may skip bodies at rest.
    import mujoco

    flag = getattr(mujoco.mjtEnableBit, _SLEEP, None)
    return flag is not None and bool(model.opt.enableflags & int(flag))


class Recorder(EpisodeLog):
    """Records one episode. The constructor takes record 0, the settled state.

    Call `record_substep` after every physics substep and `record_step` at the end of every control step.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        data: mujoco.MjData,
        scene: Scene,
        unstable: int = 0,
        read_subgoals: ReadSubgoals = dict,
    ) -> None:
        """Take record 0. `unstable` is the value of `unstable_steps` when the initial state was set; 0 after a reset.

        Raises `HostError` if the simulation has become unstable since then, or if poses of free bodies do not match
        `data.qpos`. Also raises it if the model has flexible bodies (their contacts do not belong to geoms) or bodies
        that sleep, if `scene` does not fit the model, or if MuJoCo's contact list has an unexpected layout.
        """
        # `scene` contains the names, roles and ids of bodies.
        # `read_subgoals` returns, by name, whether each predicate of the goal holds.
        # By default, the function returns {}.
        super().__init__()
        if getattr(model, "nflex", 0):
            raise HostError("the model has flexible bodies", remedy="Only models of rigid bodies can be recorded.")
        if _may_sleep(model):
            remedy = 'Switch off this flag: <flag sleep="disable"/> in the model\'s option.'
            raise HostError("bodies of the model may sleep, and MuJoCo then omits their contacts", remedy=remedy)
        if unstable_steps(data) != unstable:
            problem = "the simulation became unstable before the first record, and MuJoCo has reset its state"
            raise HostError(problem, remedy=_UNSTABLE_START)
        _require_current_poses(model, data)
        geoms = scene.map_geoms(model)  # raises an error if the scene does not fit the model
        self.scene = scene
        self._read_subgoals = read_subgoals
        self._subgoal_names: tuple[str, ...] = ()
        self._data, self._substep_s, self._time_s = data, float(model.opt.timestep), data.time
        # Counts of MuJoCo's warnings; `record_step` compares them with the current ones to find unstable states.
        self._warning_counts = data.warning.number  # a view of the simulator's own counts
        self._start_warnings = self._warning_counts.tobytes()
        self._start_unstable_steps = unstable_steps(data)
        self._arm_dofs = list(scene.all_dofs)
        self._actuator_torques = data.qfrc_actuator  # a view of the simulator's own array
        self._failure: Exception | None = None
        self._substep_torques: list[Floats] = []  # torques in every substep since the last record
        # Views of the simulator's own arrays, which keep their addresses while its `MjData` exists.
        self._state_views = state_views(model, data)
        self._views = {"pos": data.xpos, "com": data.xipos, "quat": data.xquat, "actuator": data.qfrc_actuator}
        self._eef_sites = [arm.eef_site for arm in scene.all_arms if arm.eef_site is not None]
        for k, site in enumerate(self._eef_sites):
            self._views.update({f"site_pos{k}": data.site_xpos[site], f"site_mat{k}": data.site_xmat[site]})
        # Positions in record 0 of the bodies with a free joint.
        # `_start_margin_m` limits [m] the motion of these bodies before the first substep.
        free_joints = np.flatnonzero(model.jnt_type == 0)  # mjJNT_FREE
        self._free_bodies = model.jnt_bodyid[free_joints]
        self._start_pos = data.qpos[model.jnt_qposadr[free_joints][:, None] + np.arange(3)]
        speed_m_s = np.linalg.norm(data.qvel[model.jnt_dofadr[free_joints][:, None] + np.arange(3)], axis=1)
        self._start_margin_m = _stale_margin(model, _STALE_M) + 2 * model.opt.timestep * speed_m_s
        self._link_offsets = link_offsets(model, data, scene)
        self._doors = _find_doors(model, scene)
        self._contacts = ContactLog(model)
        self._contacts.add_substep(data)
        torque_peak_nm = np.abs(self._actuator_torques[self._arm_dofs])
        first = self._copy_row(torque_peak_nm)
        parts, self._part_bodies, hand = read_parts(model, scene)
        self._geometry = Geometry(parts, hand, first["pos"][self._part_bodies], first["quat"][self._part_bodies])
        self._begin_log(replace(geoms, geometry=self._geometry.text), self._contacts, first)

    def record_substep(self) -> None:
        """Copy the last substep's contacts and torques. Raises `HostError` if record 0 belongs to an earlier state."""
        # Also raises the same errors as `ContactLog`.
        if len(self._rows) == 1 and not self._substep_torques:
            self._require_start()
        # Torques of all of the model's degrees of freedom are copied, [nv]; `record_step` selects the arms' joints.
        self._contacts.add_substep(self._data)
        self._substep_torques.append(self._actuator_torques.copy())

    def _require_start(self) -> None:
        # Raise `HostError` if the first substep did not begin in the state of record 0, for example after a reset.
        # MuJoCo computed the poses at the substep's start.
        distance_m = np.linalg.norm(self._views["pos"][self._free_bodies] - self._start_pos, axis=1)
        is_moved = distance_m > self._start_margin_m
        if is_moved.any():
            name = self.scene.body_name[int(self._free_bodies[is_moved][0])]
            problem = f"{name!r} was moved by {distance_m[is_moved][0]:g} m between record 0 and the first substep"
            raise HostError(problem, remedy="Take record 0 after the reset: make a new Recorder for each episode.")

    def try_substep(self) -> None:
        """Copy the last substep as `record_substep` does, but leave any error to the next `record_step`."""
        # A hook on the simulator calls this method after each substep; an error must not reach the user's loop.
        try:
            self.record_substep()
        except Exception as error:
            if is_from_signal(error):
                raise
            self._failure = self._failure or error  # `record_step` reports the first error

    def record_step(self, action: Action) -> None:
        """Add the record of the control step driven by `action` [A].

        Raises `HostError` if the action is refused; repeat the call with a valid action. Also raises it if MuJoCo has
        reset an unstable state, if the number of recorded substeps is zero or wrong, or if records were read in the
        middle of this control step.
        """
        action = self._read_action(action)  # raises before anything changes, so the call can be repeated
        if self._failure is not None:  # the first error of `try_substep` in this episode
            problem = f"a physics substep could not be recorded: {self._failure}"
            raise HostError(problem, remedy="The episode is lost.") from self._failure
        has_new_warnings = self._warning_counts.tobytes() != self._start_warnings  # a cheap comparison
        if has_new_warnings and unstable_steps(self._data) != self._start_unstable_steps:
            problem = f"the simulation became unstable in control step {len(self._rows)}"
            raise HostError(problem, remedy="The episode is lost; look for overlapping bodies or extreme actions.")
        self._check_substeps()
        # The largest magnitude of each arm joint's torque [N·m] over the step's substeps, [J].
        peak = np.abs(np.array(self._substep_torques)[:, self._arm_dofs]).max(axis=0)
        substeps = len(self._substep_torques)
        self._substep_torques.clear()
        self._add_step(action, self._copy_row(peak), substeps)

    def _copy_row(self, torque_peak_nm: Floats) -> Row:
        # Return copies of the simulator's arrays by name, for one record.
        # `_build_channels` turns the arrays into channels.
        # `torque_peak_nm` [J] are the largest magnitudes of the arms' torques since the last record.
        # `_views` and `_state_views` are views of the simulator's own arrays.
        sim_state = np.concatenate(((self._data.time,), *self._state_views))
        copies = {name: view.copy() for name, view in self._views.items()}
        subgoals = self._read_subgoals()
        # Record 0 determines the names of predicates. If a predicate is missing later, its value is NaN.
        if not self._rows:
            self._subgoal_names = tuple(subgoals)
        copies[SUBGOALS] = np.array([subgoals.get(name, np.nan) for name in self._subgoal_names], dtype=np.float64)
        return {**copies, "torque_peak_nm": torque_peak_nm, "sim_state": sim_state}

    def _check_substeps(self) -> None:
        # Raise `HostError` unless every substep since the last record was recorded, and there was at least one.
        # The number of substeps follows from the simulated time; `_time_s` is the time of the last record.
        # Set `_time_s` to the current time, even if an error follows.
        # Each item of `_substep_torques` contains the torques of one recorded substep.
        recorded = len(self._substep_torques)
        elapsed = round((self._data.time - self._time_s) / self._substep_s)
        self._time_s = self._data.time
        if recorded != elapsed or not recorded:
            problem = f"{recorded} of {elapsed} physics substeps were recorded in control step {len(self._rows)}"
            remedy = "Call record_substep once after each substep; hook_substeps splits mj_step(model, data, nstep)."
            raise HostError(problem, remedy=remedy)

    def _build_channels(self, rows: Sequence[Row]) -> dict[str, object]:
        # Return the channels of the n records `rows` by name, without actions and contacts.
        # Bodies are indices in `scene.roles`. Objects have poses of their frames; links have centers of mass.
        scene, arm_dofs = self.scene, self._arm_dofs
        index_of = {name: index for index, name in enumerate(scene.roles)}
        objects, links = list(scene.objects.values()), list(scene.links.values())
        quat_bodies = [index_of[name] for name in scene.objects]
        # End effectors are recorded only if every arm has one.
        eef_indices = range(len(self._eef_sites)) if len(self._eef_sites) == len(scene.all_arms) else ()
        eef_positions = [np.stack([row[f"site_pos{k}"] for row in rows]) for k in eef_indices]
        eef_quats = [np.stack([_quaternion_of_matrix(row[f"site_mat{k}"]) for row in rows]) for k in eef_indices]
        state = np.stack([row["sim_state"] for row in rows])
        # Centers of mass of links, [n, L, 3]. `com` is only that of a link's first body, so an offset is added.
        link_quats = np.stack([row["quat"][links] for row in rows])
        link_positions = np.stack([row["com"][links] for row in rows]) + rotate(link_quats, self._link_offsets)
        # How far each door is open, as a share of its travel, in each record; transposed below to [n, doors].
        opening_rows = [np.abs(state[:, door.column] - door.closed) / door.travel for door in self._doors]
        channels: dict[str, object] = {
            "pos_bodies": [*quat_bodies, *(index_of[name] for name in scene.links)],
            "body_pos_m": np.concatenate([np.stack([row["pos"][objects] for row in rows]), link_positions], axis=1),
            "quat_bodies": quat_bodies,
            "body_quat_wxyz": np.stack([row["quat"][objects] for row in rows]),
            "sim_state": state,
            "opening_bodies": [index_of[door.name] for door in self._doors],
            "opening": np.array(opening_rows).reshape(-1, len(rows)).T,
        }
        if eef_positions:
            channels.update(eef_pos_m=np.hstack(eef_positions), eef_quat_wxyz=np.hstack(eef_quats))
            doors_with_interior = [door for door in self._doors if door.boxes]
            pos, quat = (np.stack([row[name] for row in rows]) for name in ("pos", "quat"))
            entered = np.zeros((len(rows), len(doors_with_interior)), dtype=np.bool_)
            for column, door in enumerate(doors_with_interior):
                # True in the records in which the end effector of any arm is inside.
                entered[:, column] = np.any([door.is_entered(point, pos, quat) for point in eef_positions], axis=0)
            channels.update(entered_bodies=[index_of[door.name] for door in doors_with_interior], entered=entered)
        if arm_dofs:
            channels["joint_torque_nm"] = np.stack([row["actuator"][arm_dofs] for row in rows])
            channels["joint_torque_peak_nm"] = np.stack([row["torque_peak_nm"] for row in rows])
        # The motion of the scene's parts since record 0, from their positions [n, P, 3] and quaternions [n, P, 4].
        part_poses = [np.stack([row[name][self._part_bodies] for row in rows]) for name in ("pos", "quat")]
        channels[LINK_MOTION] = self._geometry.measure_motion(*part_poses)
        subgoal_rows = np.stack([row[SUBGOALS] for row in rows])
        # Sub-goals are recorded only if every record contains a value for each sub-goal.
        if subgoal_rows.size and not np.isnan(subgoal_rows).any():
            channels.update(subgoal_fields(self._subgoal_names, subgoal_rows))
        return channels


def attach_recorder(
    simulation: Any, method: str, scene: Scene, task_id: str, unstable: int = 0, read_subgoals: ReadSubgoals = dict
) -> tuple[Recorder, Undo]:
    """Return a recorder that copies a substep after each call of `method` of robosuite's `MjSim`, and a function that
    removes the hook. Takes record 0, and warns if an object still moves. Raises the same errors as `Recorder`;
    `record_step` raises the errors of later substeps.
    """
    model, data = simulation.model._model, simulation.data._data  # MuJoCo's own objects
    recorder = Recorder(model, data, scene, unstable, read_subgoals)
    warn_if_moving(model, data, scene.objects, task_id)
    return recorder, hook_after(simulation, method, recorder.try_substep)


def unstable_steps(data: mujoco.MjData) -> int:
    """Return how often MuJoCo has reset an unstable state of this simulation since the last `mj_resetData`."""
    import mujoco

    # MuJoCo resets the state when a position, velocity or acceleration is not finite or is too large.
    # MuJoCo counts its resets of unstable states.
    kinds = mujoco.mjtWarning
    warnings_of_reset = (kinds.mjWARN_BADQPOS, kinds.mjWARN_BADQVEL, kinds.mjWARN_BADQACC)
    return sum(int(data.warning[kind].number) for kind in warnings_of_reset)


def _quaternion_of_matrix(matrix: Floats) -> Floats:
    # Return the unit quaternion wxyz [4] of a rotation matrix, given as its 9 numbers row by row.
    import mujoco

    quat = np.empty(4)
    mujoco.mju_mat2Quat(quat, matrix)
    return quat


# Settling: objects come to rest before an episode begins


def settling_steps(
    model: mujoco.MjModel, data: mujoco.MjData, objects: Mapping[str, int], wait_steps: int, rest_steps: int
) -> Iterator[None]:
    """Yield before each settling step, which is a control step that the caller makes in the simulation. After
    `wait_steps` steps, yield until all `objects` (free or sliding bodies, by name) are at rest, but at most
    `rest_steps` times. At rest means at most 0.05 m/s after each of two successive steps.
    """
    # `objects` maps each object's name to the id of its root body.
    slow_steps = 0  # number of successive steps, up to now, after which all objects were slow
    for step in range(wait_steps + rest_steps):
        if step >= wait_steps and slow_steps > 1:
            return
        yield
        slow_steps = slow_steps + 1 if _fastest_object(model, data.qvel, objects)[1] <= RESTING_M_S else 0


def warn_if_moving(model: mujoco.MjModel, data: mujoco.MjData, objects: Mapping[str, int], task_id: str) -> None:
    """Warn of an object that moves, falls or jumps in record 0, because its motion would count as displacement."""
    # In LIBERO's initial states, objects hang in the air. In some of the states, objects also overlap the table.
    # How high the objects jump depends on MuJoCo's version.
    # `objects` maps each object's name to the id of its root body. `task_id` is only for the message.
    name, speed_m_s = _fastest_object(model, data.qvel, objects)
    if speed_m_s > RESTING_M_S:
        message = "%s still moves at %.2f m/s when the episode begins; use more settling steps (task %s)"
        _log.warning(message, name, speed_m_s, task_id)
        return
    name, acceleration_m_s2 = _fastest_object(model, data.qacc, objects)
    if acceleration_m_s2 > FALLING_M_S2:
        message = (
            "%s hangs in the air or overlaps another body when the episode begins (%.1f m/s^2), and its fall or jump"
            " will count as displacement; use settling steps (task %s)"
        )
        _log.warning(message, name, acceleration_m_s2, task_id)


def _fastest_object(model: mujoco.MjModel, rates: Floats, objects: Mapping[str, int]) -> tuple[str, float]:
    # Return the name and the linear speed [m/s] of the fastest object; ("", 0.0) without objects.
    # `rates` [nv] is MuJoCo's `qvel`, or `qacc` for the largest acceleration [m/s²] instead.
    # `objects` maps each object's name to the id of its root body.
    speed_of: dict[str, float] = {}
    for name, body in objects.items():
        first_dof = model.body_dofadr[body]
        linear_dofs = min(model.body_dofnum[body], 3)  # the first three velocities of a free joint are linear
        speed_of[name] = float(np.linalg.norm(rates[first_dof : first_dof + linear_dofs]))
    if not speed_of:
        return "", 0.0
    fastest = max(speed_of, key=speed_of.__getitem__)
    return fastest, speed_of[fastest]
