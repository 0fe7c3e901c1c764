"""A recorder for simulators that step many worlds as arrays: ManiSkill, Isaac Lab, MJX, MuJoCo Warp.

    recorder = BatchRecorder(scene, pairs=[("finger", "cube"), ("cube", "table")], num_envs=512)
    recorder.begin(net_force_n, poses={"cube": (position, quaternion)})  # [512, 2] or [512, 2, 3], [512, 3], [512, 4]
    while True:
        for _ in range(substeps):
            ...                                          # the simulator's own step of all worlds
            recorder.substep(net_force_n)
        for episode in recorder.step(action, poses=..., done=done):
            writer.write(episode, success=bool(success[episode.world]))
        recorder.begin(net_force_n, poses=..., env_ids=done)  # record 0 of worlds that were reset

The records of each world equal those of an `EpisodeRecorder` that receives only the net forces of the declared pairs.
Arrays are NumPy arrays or torch tensors. Tensors on a GPU stay there until the episode ends; in each control step only
one Boolean per world is copied to the host. Other arrays, such as JAX arrays, are copied by `numpy.asarray`.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Mapping, Sequence, Tuple
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from safevla_recorder.channels import LINK_MOTION, NET_FORCE, SUBGOALS
from safevla_recorder.contacts import NOTHING, ContactFilter, GeomMap, Ints, MeasuredContacts
from safevla_recorder.episode import Bools, ContactList, EpisodeArrays, Floats, add_header_field
from safevla_recorder.errors import HostError
from safevla_recorder.geometry import Geometry
from safevla_recorder.recorder import (
    SceneMap,
    Shape,
    assemble_recording,
    require_same_channels,
    split_pose,
    step_range_s,
    subgoal_fields,
)

Array = Any  # a NumPy array, a torch tensor, or another value that `numpy.asarray` accepts
_BLOCK = 64  # number of control steps in a block of `StepTables`
PEAK, SUM, NOW = "the peak of the net forces", "the sum of the net forces", "the net forces"
"""Keys of a pair's forces in N: peak and sum over substeps in which contacts count; the force in the last substep."""
BatchPose = Tuple[Array, "Array | None"]
"""One body's poses in N worlds: positions [N, 3] in m; quaternions [N, 4] wxyz, or None if there are only positions."""
_SNAPSHOT, _ACTION = "snapshot", "action"
_PART_POSITIONS, _PART_QUATERNIONS = "part_pos", "part_quat"
# For each array with the joined vectors of several bodies or parts: the size of one vector.
_VECTOR_SIZES = {"body_pos_m": 3, "body_quat_wxyz": 4, _PART_POSITIONS: 3, _PART_QUATERNIONS: 4}
_TORQUES, _TORQUE_PEAK = "joint_torque_nm", "joint_torque_peak_nm"
# The values that are accumulated over the substeps of a control step.
_SUBSTEP_NAMES = (PEAK, SUM, NOW, _TORQUES, _TORQUE_PEAK)


class BatchRecorder:
    """Records episodes in N worlds that step together: call `begin`, then `substep` and `step`."""

    def __init__(self, scene: SceneMap, pairs: Sequence[tuple[Shape, Shape]], num_envs: int) -> None:
        """Store the scene, which all worlds share, and the pairs of shapes whose net forces you will pass, in the order
        of `pairs`.

        Contacts of other pairs are not recorded. Raises `HostError` if the scene's `forces` are not `net_force_n`, a
        shape is unknown, two pairs have the same bodies, or no body has pairs with both finger groups.
        """
        if tuple(scene.forces) != (NET_FORCE,):
            problem = f"a batch recorder needs net forces, but the scene's forces are {list(scene.forces)}"
            raise HostError(problem, remedy=f'Give the SceneMap forces=("{NET_FORCE}",).')
        self.num_envs, self._scene = num_envs, scene
        self._pairs = find_pairs(scene, pairs)
        self._is_running = np.zeros(num_envs, dtype=np.bool_)
        self._first_row = np.zeros(num_envs, dtype=np.int64)  # index of the first row of each world's episode
        # Prepare to record on the CPU, because no array on a GPU was passed yet.
        # `begin` calls this again, with arrays, if no world is in an episode.
        self._restart(())

    def _restart(self, samples: Sequence[Array]) -> None:
        # Drop all records and sizes. If `samples` has a GPU tensor, later records are stored on the tensor's device.
        self._arrays = BatchArrays(samples, self.num_envs)  # makes and reads arrays on that device
        self._timeline = StepTables(self._arrays, self.num_envs)  # one row of values per control step
        self._has_quat: dict[str, bool] = {}  # body with a pose -> whether the pose includes an orientation
        self._subgoal_names: tuple[str, ...] = ()
        self._array_sizes: dict[str, int] = {}  # name of an array -> number of values per row; in the row's order
        self._action_size: int | None = None
        self._substeps = 0  # number of substeps in the current control step
        self._last_row_of: dict[int, int] = {}  # number of substeps -> last row whose step has this number
        self._accumulated: dict[str, Array] = {}  # peaks, sums and last values of the current control step
        # How many substeps without contact a pair needs before its contacts count, and how many are left, [N, K].
        # 0 = the pair's contacts count now, inf = they never count.
        self._substeps_needed = self._arrays.make_zeros((self.num_envs, self._pairs.count))
        self._substeps_left = self._arrays.make_zeros((self.num_envs, self._pairs.count))

    def begin(
        self,
        net_force_n: Array | None,
        *,
        poses: Mapping[str, BatchPose],
        eef: BatchPose | None = None,
        torques_nm: Array | None = None,
        state: Array | None = None,
        parts: Sequence[BatchPose] = (),
        subgoals: Mapping[str, Array] | None = None,
        env_ids: Array | None = None,
    ) -> None:
        """Take record 0, the settled state, of the worlds `env_ids`. Call this between two control steps. Each array
        has one row per world; only the rows of `env_ids` are used.

        The current episodes of `env_ids` are dropped, even if this method raises an error. While any world is in an
        episode, each call must pass the same kinds of arrays with the same sizes.

        Args:
            net_force_n: net forces of the declared pairs in newtons: vectors [N, K, 3] in the world frame, or norms
                [N, K]. A pair with zero force does not touch. None = no pair is declared; contacts are not recorded.
            poses: poses of the tracked bodies, by name.
            eef: poses of the end effector.
            torques_nm: torques of the arm's joints [N, J], base first [N·m]; every substep must then pass them.
            state: all numbers that determine a world's state, [N, S].
            parts: poses of the scene's `parts`, in their order, with orientations.
            subgoals: whether each predicate of the goal holds [N], by name.
            env_ids: the worlds, given as distinct integers of at least two bytes or as a Boolean mask [N]; None = all.

        Raises:
            HostError: a body, world, kind of array or size is wrong, or other worlds are inside a control step.
        """
        worlds = self._read_worlds(env_ids)
        if not worlds:
            return
        self._is_running[worlds] = False  # if an error follows, these worlds are in no episode
        if not self._is_running.any():
            # If one of these arrays is a GPU tensor, all records are stored on its device.
            eef_arrays = () if eef is None else eef
            self._restart([*chain(*poses.values()), net_force_n, torques_nm, state, *eef_arrays, *chain(*parts)])
        elif self._substeps:
            remedy = "Call begin after step and before the next substep."
            raise HostError("some worlds begin while other worlds are in the middle of a control step", remedy=remedy)
        arrays = self._arrays
        snapshot = self._collect_arrays(poses, eef, state, parts, subgoals)
        norms = self._read_norms(net_force_n)
        if norms is not None:
            # A pair's contacts count after `needed` substeps without contact; 0 = always, inf = never.
            # This number depends on whether the pair touches in record 0.
            needed_if_apart, needed_if_touching = map(arrays.share, self._pairs.needed_substeps)
            needed = arrays.xp.where(norms > 0, needed_if_touching, needed_if_apart)
            self._substeps_needed[worlds] = self._substeps_left[worlds] = needed[worlds]
            counted_norms = norms * (self._substeps_needed == 0)  # 0 N for contacts that do not count
            snapshot.update({PEAK: counted_norms, SUM: counted_norms, NOW: norms})
        if torques_nm is not None:
            torques = arrays.read("the torques", torques_nm, None)  # None = any number of joints
            snapshot.update({_TORQUES: torques, _TORQUE_PEAK: abs(torques)})
        self._timeline.write(_SNAPSHOT, self._join_arrays(snapshot)[worlds], worlds)
        self._clear_accumulated()
        # The newest row contains record 0 of the worlds `env_ids`, and the latest records of all other worlds.
        self._is_running[worlds], self._first_row[worlds] = True, self._timeline.last

    def substep(self, net_force_n: Array | None = None, torques_nm: Array | None = None) -> None:
        """Take the measurements of the substep that has just ended in all worlds: the net forces of the pairs, as for
        `begin`, and the arm's torques [N, J] in N·m.

        Raises `HostError` if no world has an episode, or if the passed arrays differ from record 0 in kind or size.
        An error ends the episodes of all worlds.
        """
        running = self._require_running()
        self._is_running = np.zeros_like(running)  # an error in this substep ends all episodes
        # `accumulated` contains the peaks, sums and last values of this control step.
        # `xp` is the module numpy or torch.
        norms, accumulated, xp = self._read_norms(net_force_n), self._accumulated, self._arrays.xp
        require_same_channels({_TORQUES: torques_nm is not None}, {_TORQUES: _TORQUES in self._array_sizes})
        if torques_nm is not None:
            torques = self._arrays.read("the torques", torques_nm, self._array_sizes[_TORQUES]) + 0.0  # `+` copies
            accumulated.update({_TORQUES: torques, _TORQUE_PEAK: xp.maximum(accumulated[_TORQUE_PEAK], abs(torques))})
        if norms is not None:
            # `_substeps_left` [N, K]: how many substeps without contact a pair still needs before its contacts count.
            # If a pair touches before its contacts count, the count of substeps starts again.
            is_still_resting = (norms > 0) & (self._substeps_left > 0)
            self._substeps_left = xp.where(is_still_resting, self._substeps_needed, (self._substeps_left - 1).clip(0))
            counted_norms = norms * (self._substeps_left == 0)  # 0 N for contacts that do not count
            accumulated[PEAK] = xp.maximum(accumulated[PEAK], counted_norms)
            accumulated[SUM] = accumulated[SUM] + counted_norms
            accumulated[NOW] = norms
        self._substeps += 1
        self._is_running = running

    def step(
        self,
        action: Array,
        *,
        done: Array,
        poses: Mapping[str, BatchPose],
        eef: BatchPose | None = None,
        state: Array | None = None,
        parts: Sequence[BatchPose] = (),
        subgoals: Mapping[str, Array] | None = None,
    ) -> list[EndedEpisode]:
        """Add the record of the control step driven by `action` [N, A]. Call this after the last physics step, before
        any reset. The episodes of worlds whose `done` [N] is true end with this record; return them, sorted by world.

        Raises `HostError` if no world has an episode, if no substep was recorded since the last record, or if bodies,
        arrays or sizes differ from record 0. After an error, the call can be repeated.
        """
        # The arguments after `done` are described in `begin`.
        self._require_running()
        if not self._substeps:
            problem = "no physics substep was recorded in this control step"
            raise HostError(problem, remedy="Call substep after each of the simulator's steps.")
        state_arrays = self._collect_arrays(poses, eef, state, parts, subgoals)
        snapshot = self._join_arrays({**state_arrays, **self._accumulated})
        actions = self._arrays.read("the action", action, self._action_size)
        is_done = self._read_mask("done", done)
        self._action_size = int(actions.shape[1])
        # Begin a new row. Rows that are older than all running episodes are no longer needed.
        self._timeline.advance(int(self._first_row[self._is_running].min()))
        self._timeline.write(_SNAPSHOT, snapshot)
        self._timeline.write(_ACTION, actions)
        # Maps a number of substeps to the last row whose control step has this number of substeps.
        self._last_row_of[self._substeps] = self._timeline.last
        self._clear_accumulated()
        return self.end(is_done)

    def end(self, env_ids: Array | None = None) -> list[EndedEpisode]:
        """End the episodes of the worlds `env_ids` (see `begin`). Return them sorted by world."""
        # `env_ids` are indices of worlds or a mask [N]; None = all worlds. Worlds without an episode are left out.
        worlds = [world for world in self._read_worlds(env_ids) if self._is_running[world]]
        self._is_running[worlds] = False
        return [self._copy_episode(world) for world in worlds]

    def _copy_episode(self, world: int) -> EndedEpisode:
        # Return the records of a world's episode, copied to host memory. `tables` maps names to arrays [R, size].
        tables = self._timeline.copy_rows(world, int(self._first_row[world]))
        # A row of the table `_SNAPSHOT` contains the values of all arrays, one array after the other. Split the rows.
        boundaries = np.cumsum(list(self._array_sizes.values()))[:-1]
        tables.update(zip(self._array_sizes, np.split(tables.pop(_SNAPSHOT), boundaries, axis=1)))
        # The distinct numbers of substeps in the control steps after the world's record 0.
        counts = frozenset(count for count, row in self._last_row_of.items() if row > self._first_row[world])
        return EndedEpisode(world, self._scene, self._pairs, tables, self._has_quat, self._subgoal_names, counts)

    def _require_running(self) -> Bools:
        # Return whether each world is in an episode, [N]. Raise an error if no world is.
        if not self._is_running.any():
            raise HostError("no episode has begun", remedy="Call begin after settling, and after an error in substep.")
        return self._is_running

    def _clear_accumulated(self) -> None:
        # Begin a new control step, without any substeps: all peaks, sums and last values are 0, [N, size].
        sizes = {name: self._array_sizes[name] for name in _SUBSTEP_NAMES if name in self._array_sizes}
        self._accumulated = {name: self._arrays.make_zeros((self.num_envs, size)) for name, size in sizes.items()}
        self._substeps = 0

    def _read_norms(self, net_force_n: Array | None) -> Array:
        # Return the norms [N, K] in N of the forces of the declared pairs; None if no pair is declared.
        # Raise an error for forces without declared pairs, and for declared pairs without forces.
        pair_count = self._pairs.count
        if (net_force_n is None) != (pair_count == 0):
            verb = "are missing" if net_force_n is None else "are passed"
            problem = f"net forces {verb} for {pair_count} declared pairs"
            raise HostError(problem, remedy="Declare all pairs whose net forces you pass, and always pass the forces.")
        return None if net_force_n is None else self._arrays.read_norms(net_force_n, pair_count)

    def _collect_arrays(
        self, poses: Mapping[str, BatchPose], eef: Any, state: Array, parts: Sequence[BatchPose], subgoals: Any
    ) -> dict[str, Array]:
        # Return the passed arrays by name, each [N, size]. See `begin` for the arguments.
        # Values of the same kind, such as the positions of all bodies, are joined into one array.
        self._scene.require_parts(len(parts))  # raises an error for a wrong number of parts
        has_quat = {name: split_pose(name, pose)[1] is not None for name, pose in poses.items()}
        self._scene.require_roles(poses)  # raises an error for a body without a role
        goals = dict(subgoals or {})
        if self._array_sizes:  # record 0 was read; later records must match it
            require_same_channels(has_quat, self._has_quat)
            # Only the names of sub-goals matter here, so all values are equal.
            require_same_channels(dict.fromkeys(goals, 1), dict.fromkeys(self._subgoal_names, 1))
        else:
            self._has_quat, self._subgoal_names = has_quat, tuple(goals)
        read = self._arrays.read
        oriented_bodies = [name for name, is_given in self._has_quat.items() if is_given]
        columns = {
            "body_pos_m": [read(f"the position of {name}", poses[name][0], 3) for name in self._has_quat],
            "body_quat_wxyz": [read(f"the orientation of {name}", poses[name][1], 4) for name in oriented_bodies],
            _PART_POSITIONS: [read(f"the position of part {k}", position, 3) for k, (position, _) in enumerate(parts)],
            _PART_QUATERNIONS: [read(f"the orientation of part {k}", quat, 4) for k, (_, quat) in enumerate(parts)],
            SUBGOALS: [read(f"the sub-goal {name}", goals[name])[:, None] for name in self._subgoal_names],
        }
        snapshot = {name: self._arrays.xp.concatenate(arrays, 1) for name, arrays in columns.items() if arrays}
        if isinstance(eef, Mapping):
            remedy = "Record robots with several arms one by one: EpisodeRecorder(scene, arms=...)."
            raise HostError("a batch recorder records one arm, but poses of several arms are given", remedy=remedy)
        eef_position, eef_quat = (None, None) if eef is None else split_pose("the end effector", eef)
        if eef_position is not None:
            snapshot["eef_pos_m"] = read("the position of the end effector", eef_position, 3)
        if eef_quat is not None:
            snapshot["eef_quat_wxyz"] = read("the orientation of the end effector", eef_quat, 4)
        if state is not None:
            snapshot["sim_state"] = read("the state", state, None)  # None = any length
        return snapshot

    def _join_arrays(self, rows: Mapping[str, Array]) -> Array:
        """Join the arrays in `rows`, in the order of record 0. Return one row per world, [N, F]."""
        # `rows` maps the name of an array to its values [N, size]; `F` is the sum of the sizes.
        sizes = {name: int(values.shape[1]) for name, values in rows.items()}
        if not sizes:
            raise HostError("nothing is recorded", remedy="Pass net forces, poses, torques or the state.")
        self._array_sizes = self._array_sizes or sizes  # record 0 determines names, order and sizes
        require_same_channels(sizes, self._array_sizes)
        return self._arrays.xp.concatenate([rows[name] for name in self._array_sizes], 1)

    def _read_mask(self, name: str, values: Array) -> Bools:
        # Return one Boolean for each of the `N` worlds, in host memory. Error messages call the argument `name`.
        mask = copy_to_host(values)
        if mask.shape != (self.num_envs,):
            remedy = f"Give one Boolean for each of the {self.num_envs} worlds."
            raise HostError(f"{name}: the shape is {list(mask.shape)}", remedy=remedy)
        return mask.astype(np.bool_)

    def _read_worlds(self, env_ids: Array | None) -> list[int]:
        # Return the sorted indices of the worlds `env_ids`, which are given as indices or as a mask; None = all worlds.
        ids = np.arange(self.num_envs) if env_ids is None else copy_to_host(env_ids)
        if ids.dtype == np.bool_:
            ids = np.flatnonzero(self._read_mask("env_ids", ids))
        # A mask that holds the integers 0 and 1 is rejected here, because it repeats a number.
        is_distinct = ids.ndim == 1 and len(set(ids.tolist())) == len(ids)
        # Reject integers of one byte: some simulators use them as masks, because they lack Booleans on the GPU.
        has_integers = (ids.dtype.kind in "iu" and ids.dtype.itemsize > 1) or not ids.size
        if not (is_distinct and has_integers and set(ids.tolist()) <= set(range(self.num_envs))):
            problem = f"env_ids: {ids.tolist()} of type {ids.dtype} are not distinct numbers of worlds"
            remedy = f"Give a mask of {self.num_envs} Booleans (done.bool() of a tensor, done.astype(bool) of an array)"
            raise HostError(problem, remedy=f"{remedy}, or distinct int64 from 0 to {self.num_envs - 1}.")
        return sorted(ids.tolist())


# The episode of one world; its contacts are computed from the net forces of declared pairs


@dataclass(frozen=True)
class BodyPairs:
    """The `K` declared pairs of shapes, and the rules of `ContactFilter` that decide which of their contacts count."""

    geoms: GeomMap
    shapes: Ints  # [2, K], two indices in `SceneMap.shapes` for each pair
    bodies: Ints  # [2, K]: for each pair, two indices in `roles`, in ascending order
    grips: Mapping[int, tuple[Bools, Bools]]
    """For each body that can be held, two masks [K]: its pairs with each of the two finger groups."""
    needed_substeps: Floats
    """Number of successive substeps without contact after which a pair's contacts count, [2, K]. Row 0 applies if the
    pair does not touch in record 0, row 1 if it does. 0 = contacts always count, inf = they never count."""
    mechanical: frozenset[tuple[int, int]]  # body pairs whose contacts never count
    resting: frozenset[tuple[int, int]]  # body pairs whose contacts are dropped if the two bodies touch in record 0

    @property
    def count(self) -> int:
        """Number of pairs, K."""
        # `shapes` [2, K] contains the indices of each pair's two shapes.
        return int(self.shapes.shape[1])

    def peak_contacts(self, peak: Floats, total: Floats) -> ContactList:
        """Return the contacts of `R` records, given each pair's peak and sum [N] of the forces that count, [R, K]."""
        # A pair is in contact in a record if the pair's peak is not 0.
        # `total` is the sum of the forces over the substeps.
        # `self.bodies` [2, K] contains the indices of each pair's two bodies in ascending order.
        order = np.lexsort(self.bodies[::-1])  # sorts the pairs by lower body, then by higher body
        record, column = np.nonzero(peak[:, order])
        pair = order[column]  # the index of each contact's pair
        force, impulse = peak[record, pair], total[record, pair] * self.geoms.substep_s
        impulse[record == 0] = np.nan  # record 0 is a single instant, without impulses
        lower, higher = self.bodies[:, pair]
        # Only net forces are known, so `force_n` and `impulse_ns` get the values of `net_force_n` and `net_impulse_ns`.
        return ContactList(record, lower, higher, force, impulse, force, impulse)

    def gripped_bodies(self, force: Floats) -> NDArray[np.int64] | None:
        """Return the index of the held body in each record [R], from net forces [R, K]; None if `grips` is empty."""
        # A body is held if the body's pairs with both finger groups carry a force; −1 = no body is held.
        # If several bodies are held, return the body with the largest force.
        # If the forces are equal, return the body with the lowest index.
        # `grips` maps a body to two masks [K]: its pairs with each of the two finger groups.
        held, strongest = np.full(len(force), NOTHING, dtype=np.int64), np.zeros(len(force))
        for body, group_masks in sorted(self.grips.items()):
            # For each finger group, the largest force in each record [R] between the body and the group.
            group_forces = [force[:, mask].max(axis=1) for mask in group_masks]
            largest_force = np.maximum(*group_forces)
            is_stronger_grip = (np.minimum(*group_forces) > 0) & (largest_force > strongest)
            held[is_stronger_grip], strongest[is_stronger_grip] = body, largest_force[is_stronger_grip]
        return held if self.grips else None


def find_pairs(scene: SceneMap, pairs: Sequence[tuple[Shape, Shape]]) -> BodyPairs:
    """Return the declared pairs of a scene's shapes. Raises `HostError` if `BatchRecorder` cannot use the pairs."""
    # Pairs are invalid if a shape is unknown, both bodies of a pair are the same, or two pairs have the same bodies.
    # If the scene defines fingers, and pairs are declared, then some body must have pairs with both finger groups.
    # For each shape, `geoms` contains the index of the owning body (`place`), and the number of the finger group.
    geoms = scene.map_geoms()
    # For each pair: the indices of its two shapes, [2, K], and the sorted indices of the bodies that own the shapes.
    shapes = np.array([[scene.place_of(shape) for shape in pair] for pair in pairs], dtype=np.int64).reshape(-1, 2).T
    bodies = np.sort(geoms.place[shapes], axis=0).astype(np.int64)
    body_pairs = list(zip(*bodies.tolist()))
    for number, (a, b) in enumerate(body_pairs):
        if a == b or (a, b) in body_pairs[:number]:
            problem = f"the pair {pairs[number]!r} has only one body, or the same bodies as another pair"
            raise HostError(problem, remedy="Give each pair two different bodies that no other pair has.")
    grips = {} if geoms.fingers is None else _find_grip_masks(geoms, shapes, geoms.fingers[shapes])
    if pairs and geoms.fingers is not None and not grips:
        remedy = "Declare pairs of both finger groups with each body that they may hold, or leave `fingers` out."
        raise HostError("no body has a pair with each of the two finger groups", remedy=remedy)
    return BodyPairs(geoms, shapes, bodies, grips, *_find_contact_rules(geoms, shapes))


def _find_grip_masks(geoms: GeomMap, shapes: Ints, finger_group: Ints) -> dict[int, tuple[Bools, Bools]]:
    # For each body that can be held, return two masks [K]: its pairs with each of the two finger groups.
    # `shapes` [2, K] are the two shapes of each pair, and `finger_group` [2, K] is each shape's finger group, 1 or 2;
    # 0 = no finger. A body can be held if it has pairs with both groups and is not part of the robot.
    # For a pair with a finger, `touched_body` is the body that is not the finger.
    # For other pairs, `touched_body` is not used.
    touched_body = geoms.place[np.where(finger_group[0] > 0, shapes[1], shapes[0])]
    roles, pair_group = tuple(geoms.roles.values()), finger_group.sum(axis=0)
    masks_of_body = {
        int(body): ((touched_body == body) & (pair_group == 1), (touched_body == body) & (pair_group == 2))
        for body in touched_body
    }
    return {body: masks for body, masks in masks_of_body.items() if roles[body] != "robot" and all(map(np.any, masks))}


def _find_contact_rules(
    geoms: GeomMap, shapes: Ints
) -> tuple[Floats, frozenset[tuple[int, int]], frozenset[tuple[int, int]]]:
    # Return the last three fields of `BodyPairs`; `shapes` [2, K] are the pairs.
    # The first field, [2, K], is the number of substeps without contact that a pair needs before its contacts count.
    # The second field contains the body pairs whose contacts never count.
    # The third field contains the body pairs whose contacts are dropped if the pair touches in record 0.
    # To find the rules, ask two filters which contacts count. In record 0 of the first filter, no pair touches.
    # In record 0 of the second filter, all pairs touch. All contacts belong to one substep, which has the index 0.
    all_touch, none_touch = (
        MeasuredContacts(1, np.zeros_like(a), a, b, np.ones(len(a))) for a, b in (shapes, shapes[:, :0])
    )
    probed_geoms = replace(geoms, apart_substeps=1)
    filter_if_apart = ContactFilter(probed_geoms, none_touch)
    filter_if_touching = ContactFilter(probed_geoms, all_touch)
    # Pairs that are apart in record 0 count either at once or never.
    needed_if_apart = np.where(filter_if_apart.mark_counted(all_touch), 0, np.inf)
    counts_at_once = filter_if_touching.mark_counted(all_touch)
    filter_if_touching.mark_counted(none_touch)  # with `apart_substeps` 1, this substep releases the resting pairs
    needed_to_release = np.where(filter_if_touching.mark_counted(all_touch), geoms.apart_substeps, np.inf)
    needed_substeps = np.stack([needed_if_apart, np.where(counts_at_once, 0, needed_to_release)])
    return needed_substeps, frozenset(filter_if_apart.dropped), frozenset(filter_if_touching.dropped)


@dataclass(frozen=True, eq=False)
class EndedEpisode:
    """The ended episode of one world; `RunWriter.write` accepts it instead of a recorder."""

    world: int
    _scene: SceneMap
    _pairs: BodyPairs
    _rows: Mapping[str, Floats]  # maps the name of each array to its values in all R records, [R, size]
    _has_quat: Mapping[str, bool]  # maps each body with a pose to whether the pose includes a quaternion
    _subgoal_names: tuple[str, ...]
    _substep_counts: frozenset[int]  # the distinct numbers of substeps per control step
    episode_key: str = field(default_factory=lambda: uuid4().hex)  # as in `EpisodeRecorder.episode_key`

    def step_range_s(self) -> tuple[float, float]:
        """Return the durations in s of the shortest and the longest control step; (0, inf) without steps."""
        # The distinct numbers of substeps per control step, and the duration of a substep.
        return step_range_s(self._substep_counts, self._scene.substep_s)

    def dropped_pairs(self) -> tuple[tuple[str, str], ...]:
        """Return the sorted body pairs whose resting or mechanical contacts are left out; each pair is sorted."""
        if NOW not in self._rows:  # net forces are not recorded
            return ()
        is_touching = self._rows[NOW][0] > 0  # whether each pair touches in record 0
        touching_pairs = set(zip(*self._pairs.bodies[:, is_touching].tolist()))
        # Contacts of mechanical pairs never count.
        # Contacts of a resting pair are dropped if the pair touches in record 0.
        names, dropped = tuple(self._pairs.geoms.roles), self._pairs.mechanical | (self._pairs.resting & touching_pairs)
        return tuple((names[a], names[b]) for a, b in sorted(dropped))

    def build_recording(self, header: Mapping[str, object]) -> EpisodeArrays:
        """Return the episode with this header (fields: `HEADER_FIELDS`). Its `extra` lists the declared pairs."""
        pairs, geoms = self._pairs, self._pairs.geoms
        names = tuple(geoms.roles)  # the bodies' names by index
        records = len(next(iter(self._rows.values())))
        channels: dict[str, Any] = dict(self._rows)
        contacts = gripped = None
        extra: Mapping[str, object] = {}
        if NOW in channels:
            # For each record and pair: the peak, the sum and the last value of the net force over the substeps.
            contacts = pairs.peak_contacts(channels.pop(PEAK), channels.pop(SUM))
            gripped = pairs.gripped_bodies(channels.pop(NOW))
            declared_pairs = sorted((names[a], names[b]) for a, b in pairs.bodies.T.tolist())
            extra = add_header_field({}, "declared_pairs", declared_pairs)
        for name, size in _VECTOR_SIZES.items():  # split rows into one vector for each body or part
            if name in channels:
                channels[name] = channels[name].reshape(records, -1, size)
        if self._scene.parts:  # replace the world poses of the scene's parts by their motion since record 0
            part_positions, part_quats = channels.pop(_PART_POSITIONS), channels.pop(_PART_QUATERNIONS)
            geometry = Geometry(self._scene.parts, self._scene.hand, part_positions[0], part_quats[0])
            geoms = replace(geoms, geometry=geometry.text)
            channels[LINK_MOTION] = geometry.measure_motion(part_positions, part_quats)
        if self._subgoal_names:
            channels.update(subgoal_fields(self._subgoal_names, channels[SUBGOALS], extra))
        else:
            channels["extra"] = extra
        # No action leads to record 0, so its row is left out.
        channels["action"] = channels[_ACTION][1:] if records > 1 else np.empty((0, 0))
        channels["pos_bodies"] = [names.index(name) for name in self._has_quat]
        channels["quat_bodies"] = [names.index(name) for name, has_quat in self._has_quat.items() if has_quat]
        return assemble_recording(geoms, header, records, contacts, gripped, channels)


# Measurements of many worlds: NumPy arrays, or tensors that stay on their device until the episode ends


class BatchArrays:
    """Makes and reads arrays of `N` worlds. They are torch tensors on the device of the first sample outside host
    memory, or NumPy arrays if all `samples` are in host memory. Only the caller imports torch, never this module.
    """

    def __init__(self, samples: Sequence[Array], worlds: int) -> None:
        # `worlds` is the number of worlds, `N`.
        tensor = next((sample for sample in samples if is_on_device(sample)), None)
        self._worlds = worlds
        self.xp: Any = np if tensor is None else sys.modules["torch"]  # the module with the functions for these arrays
        self._options = {"dtype": self.xp.float64}
        if tensor is not None:
            self._options["device"] = tensor.device

    def make_zeros(self, sizes: Sequence[int]) -> Array:
        """Return an array of zeros with these sizes."""
        # `xp` is the module numpy or torch. The options are the dtype and, for a tensor, its device.
        return self.xp.zeros(tuple(sizes), **self._options)

    def share(self, values: Array) -> Array:
        """Return `values` as a float64 array or tensor, like `make_zeros`; share the memory of `values` if possible."""
        if hasattr(values, "detach"):  # a torch tensor
            values = copy_to_host(values) if self.xp is np else values.detach()
        return self.xp.asarray(values, **self._options)

    def read(self, name: str, values: Array, *sizes: int | None, or_vectors: bool = False) -> Array:
        """Return `values` as an array [N, *sizes]; the size None matches every size. If `or_vectors`, the shape
        [N, *sizes, 3] is also valid. Raises `HostError` for other shapes, and for values that are not real numbers.
        """
        # `sizes` are the lengths of the axes after the first. Error messages call the values `name`.
        array: Array = None  # None = the values are not real numbers
        with suppress(TypeError, ValueError, RuntimeError):
            is_complex = values.is_complex() if hasattr(values, "is_complex") else np.iscomplexobj(values)
            array = None if is_complex else self.share(values)
        shape = () if array is None else tuple(array.shape)
        wanted_shape = (self._worlds, *sizes)
        are_vectors = or_vectors and len(shape) > len(wanted_shape) and shape[-1] == 3
        shape_of_items = shape[:-1] if are_vectors else shape  # drop the last axis (x, y, z)
        are_sizes_equal = all(wanted in (None, size) for wanted, size in zip(wanted_shape, shape_of_items))
        if len(shape_of_items) != len(wanted_shape) or not are_sizes_equal:
            problem = "not an array of real numbers" if array is None else f"the shape is {list(shape)}"
            sizes_text = ", ".join("any" if size is None else str(size) for size in wanted_shape)
            vectors = f" or [{sizes_text}, 3]" if or_vectors else ""
            raise HostError(f"{name}: {problem}", remedy=f"Give numbers of the shape [{sizes_text}]{vectors}.")
        return array

    def read_norms(self, values: Array, pairs: int) -> Array:
        """Return the norms [N, K] of forces, given as norms or as vectors [N, K, 3]. Negative norms become NaN."""
        # `values` are the forces of `pairs` pairs in each world.
        force = self.read("the net forces", values, pairs, or_vectors=True)
        if len(force.shape) == 3:  # the forces are vectors
            force = self.xp.sqrt(force[..., 0] ** 2 + force[..., 1] ** 2 + force[..., 2] ** 2)
        return self.xp.where(force >= 0, force, np.nan)


def is_on_device(values: Array) -> bool:
    """Return whether `values` is a torch tensor outside host memory, which NumPy cannot read directly."""
    return hasattr(values, "detach") and values.device.type != "cpu"


def copy_to_host(values: Array) -> NDArray[Any]:
    """Return an array or tensor as a NumPy array. Values in host memory are not copied."""
    return np.asarray(values.detach().cpu().numpy() if hasattr(values, "detach") else values)


class StepTables:
    """Tables of values by name, with one row [N, F] per control step; `last` is the index of the newest row."""

    def __init__(self, arrays: BatchArrays, worlds: int) -> None:
        # `arrays` makes the tables' arrays, on the GPU or in host memory; `worlds` is the number of worlds.
        self._arrays, self._worlds = arrays, worlds
        self._blocks: list[dict[str, Array]] = [{}]  # each block contains tables by name, for `_BLOCK` successive rows
        self._reused_blocks = 0  # number of older blocks that are no longer in `_blocks`
        self.last = 0

    def write(self, name: str, table: Array, worlds: Sequence[int] | None = None) -> None:
        """Write `table` into the newest row: [W, F] for the `W` worlds in `worlds`, or [N, F] if `worlds` is None."""
        # A block contains arrays [_BLOCK, N, F] by name, for `_BLOCK` successive rows. `name` is the table's name.
        block, row = self._blocks[-1], self.last % _BLOCK
        if name not in block:
            block[name] = self._arrays.make_zeros((_BLOCK, self._worlds, table.shape[1]))
        block[name][row, slice(None) if worlds is None else worlds] = table

    def advance(self, oldest: int) -> None:
        """Begin a new row. Reuse the memory of a block of rows if all its rows are older than row `oldest`."""
        self.last += 1
        if self.last % _BLOCK:  # the newest block has room for this row
            return
        # The first block in `_blocks` has the number `_reused_blocks`.
        # If row `oldest` is in a later block, the first block is not needed any more, and is reused.
        if oldest // _BLOCK > self._reused_blocks:
            self._blocks.append(self._blocks.pop(0))
            self._reused_blocks += 1
        else:
            self._blocks.append({})

    def copy_rows(self, world: int, first: int) -> dict[str, Floats]:
        """Return a world's rows from `first` on as tables [R, F] in host memory."""
        # The result maps the name of each table to its rows from index `first` to index `last`.
        first_block, offset = divmod(first, _BLOCK)
        blocks = self._blocks[first_block - self._reused_blocks :]
        end = offset + self.last + 1 - first  # `offset` and `end` are counted from the first row of `blocks`
        pieces = {name: [block[name][:, world] for block in blocks] for name in blocks[-1]}
        tables = {name: self._arrays.xp.concatenate(tables) for name, tables in pieces.items()}
        return {name: copy_to_host(table[offset:end]) for name, table in tables.items()}
