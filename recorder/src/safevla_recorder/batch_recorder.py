"""A recorder for simulators that step many worlds as arrays: ManiSkill, Isaac Lab, MJX, MuJoCo Warp.

    recorder = BatchRecorder(scene, pairs=[("finger", "cube"), ("cube", "table")], num_envs=512)
    recorder.begin(net_force_n, poses={"cube": (position, quaternion)})  # [512, 2] or [512, 2, 3], [512, 3], [512, 4]
    while True:
        for _ in range(substeps):
            ...                                          # the simulator's own step, of all worlds
            recorder.substep(net_force_n)
        for episode in recorder.step(action, poses=..., done=done):
            writer.write(episode, success=bool(success[episode.world]))
        recorder.begin(net_force_n, poses=..., env_ids=done)  # record 0 of the worlds that were reset

Each world's records are those of an `EpisodeRecorder` that is told the net forces of the declared pairs alone. Arrays
are NumPy's, or torch tensors: what is on a GPU stays there until an episode ends, but for three truths of each world in
a control step. What else `numpy.asarray` takes, such as JAX's arrays, is copied.
"""

from __future__ import annotations

from typing import Mapping, Sequence, Tuple

import numpy as np

from safevla_recorder.batch_arrays import Array, BatchArrays, Timeline, copy_to_host
from safevla_recorder.batch_episode import NOW, PEAK, SUM, EndedEpisode, find_pairs
from safevla_recorder.channels import NET_FORCE
from safevla_recorder.episode import Bools
from safevla_recorder.errors import HostError
from safevla_recorder.recorder import SceneMap, Shape, check_substep

BatchPose = Tuple[Array, "Array | None"]
"""Positions [N, 3] in m and quaternions [N, 4], w first, in the frame of each world; None = positions alone."""
_READINGS, _ACTION = "readings", "action"
_TORQUES, _TORQUE_PEAK = "joint_torque_nm", "joint_torque_peak_nm"
_SUMS = (PEAK, SUM, NOW, _TORQUES, _TORQUE_PEAK)


class BatchRecorder:
    """Records the episodes of N worlds that step together: `begin`, then `substep` and `step`.

    Of the arrays it keeps those rows that episodes still need, in blocks.
    """

    def __init__(self, scene: SceneMap, pairs: Sequence[tuple[Shape, Shape]], num_envs: int) -> None:
        """Keep the scene of every world and the pairs of its shapes whose net forces will be told, in that order.

        Two bodies that are not a pair never touch in the records: declare all that a clause is about. Raises
        `HostError` if the scene's `forces` are not `net_force_n` alone, a shape is not in the scene, or two pairs are
        of the same two bodies.
        """
        if tuple(scene.forces) != (NET_FORCE,):
            problem = f"many worlds tell net forces, and the scene's forces are {list(scene.forces)}"
            raise HostError(problem, remedy=f'Give the SceneMap forces=("{NET_FORCE}",).')
        self.num_envs = num_envs
        self._pairs = find_pairs(scene, pairs)
        self._running = np.zeros(num_envs, dtype=np.bool_)
        self._first_row = np.zeros(num_envs, dtype=np.int64)  # of the episode of each world
        self._restart(())

    def _restart(self, samples: Sequence[Array]) -> None:
        """Forget all rows, and which families there are."""
        self._arrays = BatchArrays(samples, self.num_envs)
        self._timeline = Timeline(self._arrays, self.num_envs)
        self._bodies: dict[str, bool] = {}
        self._sizes: dict[str, int] = {}  # numbers of each reading of a record, in the order of a row
        self._action_size: int | None = None
        self._substeps = 0
        self._sums: dict[str, Array] = {}  # over the substeps of this control step
        # Substeps that each pair must be apart before it counts, see `BodyPairs`, and those that are left, [N, K].
        self._needed, self._left = (self._arrays.make_zeros((self.num_envs, self._pairs.count)) for _ in range(2))

    def begin(
        self,
        net_force_n: Array | None,
        *,
        poses: Mapping[str, BatchPose],
        eef: BatchPose | None = None,
        torques_nm: Array | None = None,
        state: Array | None = None,
        env_ids: Array | None = None,
    ) -> None:
        """Take record 0, the settled state, of some worlds, between two control steps; other rows are not read.

        An episode of theirs that has begun before is dropped, even if this raises. The families and their sizes are
        those of the first `begin`, until no world is in an episode.

        Args:
            net_force_n: net forces of the declared pairs [N]: vectors [N, K, 3] in the world frame or norms [N, K];
                None = no pair is declared, and contacts are not recorded. A pair with zero force does not touch.
            poses: of the tracked bodies by name.
            eef: of the end effector.
            torques_nm: of the arm's joints [N, J], base first [N·m]; then every substep tells them.
            state: whatever fixes a world's state, [N, S].
            env_ids: the worlds, by number or as a mask [N]; None = all.

        Raises:
            HostError: a body, world, family or size is not as it should be, a number is not finite, or other worlds
                are in the middle of a control step.
        """
        worlds = self._read_worlds(env_ids)
        if not worlds:
            return
        self._running[worlds] = False
        if not self._running.any():
            readings = (*poses.values(), (net_force_n, torques_nm, state), eef or ())
            self._restart([values for group in readings for values in group])
        elif self._substeps:
            remedy = "Call begin between step and the next substep."
            raise HostError("worlds begin while others are in the middle of a control step", remedy=remedy)
        arrays = self._arrays.choose(worlds)
        rows = self._read_poses(arrays, poses, eef, state)
        norms = self._read_norms(arrays, net_force_n)
        if norms is not None:
            apart, touching = map(arrays.share, self._pairs.needed_substeps)
            self._needed[worlds] = self._left[worlds] = arrays.xp.where(norms > 0, touching, apart)
            counted = norms * (self._needed[worlds] == 0)
            rows.update({PEAK: counted, SUM: counted, NOW: norms})
        if torques_nm is not None:
            torques = arrays.read("the torques", torques_nm, None)
            rows.update({_TORQUES: torques, _TORQUE_PEAK: abs(torques)})
        table = self._lay_out(rows)
        remedy = "Look for overlapping bodies, reset these worlds, and begin them."
        self._check_finite(_READINGS, table, ~arrays.are_finite(table), worlds, remedy)
        self._timeline.write(_READINGS, table, worlds)
        self._clear_sums()
        self._running[worlds], self._first_row[worlds] = True, self._timeline.last

    def substep(self, net_force_n: Array | None = None, torques_nm: Array | None = None) -> None:
        """Take the net forces of the pairs, as `begin` does, and the arm's torques [N, J], N·m, of the substep that has
        just ended in all worlds; those in no episode are not recorded.

        Raises `HostError` if no world has begun, or families or sizes are not those of record 0; what the substep did
        is then lost, so that all worlds must begin again. Numbers that are not finite are found by `step`.
        """
        if not self._running.any():
            raise HostError("no world has begun", remedy="Call begin first, after settling.")
        running, self._running = self._running, np.zeros_like(self._running)  # until this substep is taken
        norms, sums, xp = self._read_norms(self._arrays, net_force_n), self._sums, self._arrays.xp
        check_substep("torques", torques_nm is not None, _TORQUES in self._sizes)
        if torques_nm is not None:
            torques = self._arrays.read("the torques", torques_nm, self._sizes[_TORQUES]) + 0.0
            sums.update({_TORQUES: torques, _TORQUE_PEAK: xp.maximum(sums[_TORQUE_PEAK], abs(torques))})
        if norms is not None:
            counted = self._count_forces(norms)
            sums.update({PEAK: xp.maximum(sums[PEAK], counted), SUM: sums[SUM] + counted, NOW: norms})
        self._substeps += 1
        self._running = running

    def _count_forces(self, norms: Array) -> Array:
        """Return the forces of pairs that count, and zero for others, [N, K]; see `ContactFilter`."""
        rests = (norms > 0) & (self._left > 0)
        self._left = self._arrays.xp.where(rests, self._needed, (self._left - 1).clip(0))
        return norms * (self._left == 0)

    def step(
        self,
        action: Array,
        *,
        done: Array,
        poses: Mapping[str, BatchPose],
        eef: BatchPose | None = None,
        state: Array | None = None,
        active: Array | None = None,
    ) -> list[EndedEpisode]:
        """Add the record of the control step that `action` [N, A] drove, read right after its last physics step and
        before any reset; return the episodes that end with it, where `done` [N] is true, in order of world.

        `active` [N] is true for the worlds that are in an episode; None = all are. Raises `HostError` if that is not
        so, no substep was recorded since the last record, bodies, families or sizes are not those of record 0, or a
        number is not finite. That loses the episodes of the worlds it names alone: the same call without them goes on.
        """
        self._check_active(active)
        if not self._substeps:
            problem = "no physics substep was recorded in this control step"
            raise HostError(problem, remedy="Call substep after each of the simulator's steps.")
        readings = self._lay_out({**self._read_poses(self._arrays, poses, eef, state), **self._sums})
        tables = {_READINGS: readings, _ACTION: self._arrays.read("the action", action, self._action_size)}
        ended, worlds = self._read_mask("done", done), range(self.num_envs)
        remedy = "Call step again with `active` false there; then reset these worlds, and begin them."
        for name, table in tables.items():
            wrong = ~self._arrays.are_finite(table) & self._running
            self._check_finite(name, table, wrong, worlds, remedy)
        self._action_size = int(tables[_ACTION].shape[1])
        self._timeline.advance(int(self._first_row[self._running].min(initial=self._timeline.last)))
        for name, table in tables.items():
            self._timeline.write(name, table)
        self._clear_sums()
        return self.end(ended)

    def end(self, env_ids: Array | None = None) -> list[EndedEpisode]:
        """End the episodes of these worlds, by number or as a mask [N], with their newest records, and return them in
        order of world; None = all worlds. Worlds in no episode are left out.
        """
        worlds = [world for world in self._read_worlds(env_ids) if self._running[world]]
        self._running[worlds] = False
        return [self._copy_episode(world) for world in worlds]

    def _copy_episode(self, world: int) -> EndedEpisode:
        tables = self._timeline.copy_rows(world, int(self._first_row[world]))
        ends = np.cumsum(list(self._sizes.values()))[:-1]
        readings = dict(zip(self._sizes, np.split(tables.pop(_READINGS), ends, axis=1)))
        return EndedEpisode(world, self._pairs, {**readings, **tables}, self._bodies)

    def _clear_sums(self) -> None:
        zeros, sizes = self._arrays.make_zeros, self._sizes
        self._sums = {name: zeros((self.num_envs, sizes[name])) for name in _SUMS if name in sizes}
        self._substeps = 0

    def _read_norms(self, arrays: BatchArrays, net_force_n: Array | None) -> Array:
        """Return the norms of the pairs' net forces [W, K]; None = no pair is declared."""
        pairs = self._pairs.count
        if (net_force_n is None) != (pairs == 0):
            problem = f"{pairs} pairs are declared, and {'no ' if net_force_n is None else ''}net forces are told"
            raise HostError(problem, remedy="Declare the pairs whose net forces are told, and tell them each time.")
        return None if net_force_n is None else arrays.read_norms(net_force_n, pairs)

    def _read_poses(
        self, arrays: BatchArrays, poses: Mapping[str, BatchPose], eef: BatchPose | None, state: Array | None
    ) -> dict[str, Array]:
        bodies = {name: quat is not None for name, (_, quat) in poses.items()}
        unknown = sorted(set(bodies) - set(self._pairs.geoms.roles))
        if unknown:
            raise HostError(f"{unknown[0]} has a pose and no role", remedy="Name its role in the scene's `roles`.")
        if self._sizes and bodies != self._bodies:
            name = sorted(set(bodies.items()) ^ set(self._bodies.items()))[0][0]
            raise _refuse_family(f"the pose of {name}")
        self._bodies = self._bodies or bodies
        read, xp = arrays.read, arrays.xp
        places = [read(f"the position of {name}", poses[name][0], 3) for name in self._bodies]
        turns = [
            read(f"the orientation of {name}", poses[name][1], 4) for name, has_quat in self._bodies.items() if has_quat
        ]
        hand, turn = eef or (None, None)
        rows = {
            "body_pos_m": xp.concatenate(places, 1) if places else None,
            "body_quat_wxyz": xp.concatenate(turns, 1) if turns else None,
            "eef_pos_m": None if hand is None else read("the position of the end effector", hand, 3),
            "eef_quat_wxyz": None if turn is None else read("the orientation of the end effector", turn, 4),
            "sim_state": None if state is None else read("the state", state, None),
        }
        return {name: values for name, values in rows.items() if values is not None}

    def _lay_out(self, rows: Mapping[str, Array]) -> Array:
        """Return the readings of each world as one row [W, F], in the order of record 0, whose families they have."""
        sizes = {name: int(values.shape[1]) for name, values in rows.items()}
        if not sizes:
            raise HostError("nothing is recorded", remedy="Tell net forces, poses, torques or the state.")
        self._sizes = self._sizes or sizes
        if sizes != self._sizes:
            raise _refuse_family(sorted(set(sizes.items()) ^ set(self._sizes.items()))[0][0])
        return self._arrays.xp.concatenate([rows[name] for name in self._sizes], 1)

    def _check_finite(self, name: str, table: Array, wrong: Bools, worlds: Sequence[int], remedy: str) -> None:
        """Raise `HostError` if rows of a table [W, F] of these worlds are `wrong`: these are in no episode then."""
        faulty = np.flatnonzero(wrong)
        if len(faulty):
            listed = [worlds[row] for row in faulty.tolist()]
            self._running[listed] = False
            column = int(np.isfinite(copy_to_host(table[int(faulty[0])])).argmin())
            names = [reading for reading, size in self._sizes.items() for _ in range(size)]
            problem = f"a number of {names[column] if name == _READINGS else name} is one that no record may have"
            raise HostError(f"worlds {', '.join(map(str, listed))}: {problem}", remedy=remedy)

    def _check_active(self, active: Array | None) -> None:
        wanted = np.ones(self.num_envs, dtype=np.bool_) if active is None else self._read_mask("active", active)
        differs = np.flatnonzero(wanted != self._running)
        if len(differs):
            problem = f"world {differs[0]} is {'in no' if wanted[differs[0]] else 'in an'} episode, against `active`"
            remedy = "Begin each world after its reset, all after a refused substep; `active` [N] leaves others out."
            raise HostError(problem, remedy=remedy)

    def _read_mask(self, name: str, values: Array) -> Bools:
        mask = copy_to_host(values)
        if mask.shape != (self.num_envs,):
            remedy = f"Give one truth for each of the {self.num_envs} worlds."
            raise HostError(f"{name}: the shape is {list(mask.shape)}", remedy=remedy)
        return mask.astype(np.bool_)

    def _read_worlds(self, env_ids: Array | None) -> list[int]:
        """Return the numbers of worlds, ascending; a mask is read too."""
        ids = np.arange(self.num_envs) if env_ids is None else copy_to_host(env_ids)
        if ids.dtype == np.bool_:
            ids = np.flatnonzero(self._read_mask("env_ids", ids))
        named = set(ids.reshape(-1).tolist())
        worlds = [world for world in range(self.num_envs) if world in named]
        if ids.ndim != 1 or len(worlds) != len(ids):
            remedy = f"Give different numbers from 0 to {self.num_envs - 1}, or a mask [{self.num_envs}] of truths."
            raise HostError(f"env_ids: {ids.tolist()} are not worlds", remedy=remedy)
        return worlds


def _refuse_family(name: str) -> HostError:
    remedy = "Every record of every world holds the same bodies and families, of the same sizes."
    return HostError(f"{name}: not as in record 0", remedy=remedy)
