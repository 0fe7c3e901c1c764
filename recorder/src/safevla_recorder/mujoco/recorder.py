"""The recorder of one MuJoCo episode: poses, torques, grip and contacts, taken without touching the simulation.

It reads `mjData` after each physics substep and at the end of each control step, and writes nothing: no extra
forward pass, which would change the solver's warm start. So positions and contacts of a record belong to one instant,
the start of the last substep, where MuJoCo computed them; `sim_state` is the state at its end, from which the run can
be continued. Torques are sampled at that instant too; their peak is the largest magnitude over the substeps of the
control step, and at record 0, before which no substep is recorded, the magnitude there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from safevla_recorder.episode import Action, ContactList, Floats, Recording
from safevla_recorder.errors import HostError
from safevla_recorder.mujoco.contact_filter import ContactFilter
from safevla_recorder.mujoco.contacts import (
    NOTHING,
    ContactLog,
    SubstepContacts,
    contact_peaks,
    gripped_bodies,
    join_contacts,
)
from safevla_recorder.mujoco.hook import Undo, hook_after
from safevla_recorder.mujoco.scene import Scene
from safevla_recorder.mujoco.settling import warn_if_moving
from safevla_recorder.mujoco.state import state_views

if TYPE_CHECKING:
    import mujoco

_BLOCK = 32
"""Control steps whose contacts are decoded together; bounds the copies to a few megabytes."""


@dataclass(frozen=True)
class _State:
    """Copies of the simulator's arrays at the end of one control step."""

    site_pos: Floats
    site_mat: Floats
    pos: Floats
    com: Floats
    quat: Floats
    actuator: Floats
    sim_state: Floats


class Recorder:
    """Records one episode from the moment it is made: the settled state is record 0.

    Call `record_substep` after every physics substep and `record_step` at the end of every control step.
    """

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData, scene: Scene) -> None:
        """Take record 0.

        Raises:
            HostError: the model has soft bodies, whose contacts belong to no geom.
        """
        if getattr(model, "nflex", 0):
            raise HostError("the model has flexible bodies", remedy="Only contacts between geoms can be recorded.")
        self.scene = scene
        self._data, self._substep_s = data, float(model.opt.timestep)
        self._place = scene.geom_places(model)
        self._robot = np.array([role == "robot" for role in scene.roles.values()])
        self._fingers = scene.finger_groups(model)
        self._warnings = data.warning.number  # a view of the simulator's own counts
        self._warned = self._warnings.tobytes()
        self._unstable = _unstable_steps(data)
        self._log = ContactLog(model)
        self._ends: list[int] = []  # substeps copied until the end of each record that is not decoded yet
        self._contacts: list[ContactList] = []
        self._gripped: list[NDArray[np.int64]] = []
        self._actions: list[Action] = []
        self._arm = list(scene.arm_dofs)
        self._actuator = data.qfrc_actuator  # a view of the simulator's own array
        self._torques: list[Floats] = []  # of every substep since the last record
        self._state_views, self._time_s = state_views(model, data), data.time
        self._peaks = [np.abs(self._actuator[self._arm])]
        self._states = [_copy_state(data, scene, self._state_views)]
        self._record_first()

    def _record_first(self) -> None:
        self._log.add_substep(self._data)
        contacts = self._log.take_contacts()
        fixtures = self.scene.fixture_groups(self._place)
        self._filter = ContactFilter(
            self._place, self._robot, self._fingers, contacts, self.scene.apart_substeps, fixtures
        )
        self._decode_contacts(contacts, np.array([1]), substep_s=None)

    def record_substep(self) -> None:
        """Copy the contacts and torques of the substep that has just ended."""
        self._log.add_substep(self._data)
        self._torques.append(self._actuator.copy())

    def record_step(self, action: Action) -> None:
        """Add the record of the control step that `action` [A] drove, of which at least one substep was recorded.

        Raises:
            HostError: the simulation diverged during the step; MuJoCo has then reset its state by itself. Or more
                substeps passed than were recorded, whose forces nobody saw.
        """
        if self._warnings.tobytes() != self._warned and _unstable_steps(self._data) != self._unstable:
            problem = f"the simulation became unstable in control step {len(self._states)}"
            raise HostError(problem, remedy="The episode is lost; look for overlapping bodies or extreme actions.")
        self._check_substeps()
        self._states.append(_copy_state(self._data, self.scene, self._state_views))
        self._peaks.append(np.abs(np.array(self._torques)[:, self._arm]).max(axis=0))
        self._torques.clear()
        self._actions.append(np.array(action, dtype=np.float64))
        self._ends.append(len(self._log))
        if len(self._ends) == _BLOCK:
            self._decode_pending()

    def _check_substeps(self) -> None:
        recorded, time_s = len(self._torques), self._data.time
        passed, self._time_s = round((time_s - self._time_s) / self._substep_s), time_s
        if recorded < passed or not recorded:
            problem = f"{recorded} of {passed} physics substeps were recorded in control step {len(self._states)}"
            remedy = "Call record_substep after each; hook_substeps splits the calls of mj_step(model, data, nstep)."
            raise HostError(problem, remedy=remedy)

    def dropped_pairs(self) -> tuple[tuple[str, str], ...]:
        """Return the body pairs whose resting or mechanical contacts were left out; sorted, each pair too."""
        names = tuple(self.scene.roles)
        return tuple(sorted({_sorted_pair(names[a], names[b]) for a, b in self._filter.dropped}))

    def build_recording(self, header: Mapping[str, object]) -> Recording:
        """Return the records so far as one episode under that header, whose fields are `HEADER_FIELDS`."""
        self._decode_pending()
        action = np.stack(self._actions) if self._actions else np.empty((0, 0))
        contacts = join_contacts(self._contacts)
        return self._assemble(header, self._states, self._peaks, contacts, np.concatenate(self._gripped), action)

    def latest_record(self, header: Mapping[str, object]) -> Recording:
        """Return the newest record alone, as an episode of one record; the recording itself does not change."""
        self._decode_pending()
        contacts, names = self._contacts[-1], ("record", "a", "b", "force_n", "impulse_ns")
        is_newest = contacts.record == len(self._states) - 1
        newest = ContactList(*(getattr(contacts, name)[is_newest] for name in names))
        newest = replace(newest, record=np.zeros_like(newest.record))
        return self._assemble(header, self._states[-1:], self._peaks[-1:], newest, self._gripped[-1][-1:], None)

    def _assemble(
        self,
        header: Mapping[str, object],
        states: Sequence[_State],
        peaks: Sequence[Floats],
        contacts: ContactList,
        gripped: NDArray[np.int64],
        action: Floats | None,
    ) -> Recording:
        scene = self.scene
        places = {name: place for place, name in enumerate(scene.roles)}
        objects, links = list(scene.objects.values()), list(scene.links.values())
        quat_bodies = [places[name] for name in scene.objects]
        return Recording(
            header=header,
            roles=scene.roles,
            records=len(states),
            eef_pos_m=np.stack([state.site_pos for state in states]),
            eef_quat_wxyz=np.stack([_to_quaternion(state.site_mat) for state in states]),
            pos_bodies=[*quat_bodies, *(places[name] for name in scene.links)],
            body_pos_m=np.stack([np.concatenate([state.pos[objects], state.com[links]]) for state in states]),
            quat_bodies=quat_bodies,
            body_quat_wxyz=np.stack([state.quat[objects] for state in states]),
            contacts=contacts,
            joint_torque_nm=np.stack([state.actuator[self._arm] for state in states]),
            gripper_contact=gripped != NOTHING,
            gripped=gripped,
            action=action,
            sim_state=np.stack([state.sim_state for state in states]),
            further={"joint_torque_peak_nm": np.stack(peaks)},
        )

    def _decode_pending(self) -> None:
        """Decode the contacts of all records that are closed but not decoded."""
        if self._ends:
            ends, self._ends = np.array(self._ends), []
            self._decode_contacts(self._log.take_contacts(), ends, substep_s=self._substep_s)

    def _decode_contacts(self, contacts: SubstepContacts, ends: NDArray[np.int64], substep_s: float | None) -> None:
        decoded = sum(len(block) for block in self._gripped)
        owner = decoded + np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
        # Substeps after the last end belong to a control step that broke off: there is no record of it.
        which = np.flatnonzero(self._filter.mark_counted(contacts) & (contacts.substep < ends[-1]))
        self._contacts.append(contact_peaks(contacts, which, owner, self._place, substep_s))
        self._gripped.append(gripped_bodies(contacts, ends - 1, self._fingers, self._place, self._robot))


def _copy_state(data: mujoco.MjData, scene: Scene, state: Sequence[Floats]) -> _State:
    site = scene.eef_site
    return _State(
        site_pos=data.site_xpos[site].copy(),
        site_mat=data.site_xmat[site].copy(),
        pos=data.xpos.copy(),
        com=data.xipos.copy(),
        quat=data.xquat.copy(),
        actuator=data.qfrc_actuator.copy(),
        sim_state=np.concatenate(((data.time,), *state)),
    )


def attach_recorder(simulation: Any, method: str, scene: Scene, task_id: str) -> tuple[Recorder, Undo]:
    """Return a recorder of robosuite's `MjSim`, called behind each `method`, and what takes it off.

    Record 0 is taken. Logs which object still moves, if any does.
    """
    model, data = simulation.model._model, simulation.data._data
    warn_if_moving(model, data, scene.objects, task_id)
    recorder = Recorder(model, data, scene)
    return recorder, hook_after(simulation, method, recorder.record_substep)


def _unstable_steps(data: mujoco.MjData) -> int:
    """Return how often MuJoCo found positions, velocities or accelerations unusable."""
    import mujoco

    kinds = mujoco.mjtWarning
    bad = (kinds.mjWARN_BADQPOS, kinds.mjWARN_BADQVEL, kinds.mjWARN_BADQACC)
    return sum(int(data.warning[kind].number) for kind in bad)


def _to_quaternion(matrix: Floats) -> Floats:
    import mujoco

    quat = np.empty(4)
    mujoco.mju_mat2Quat(quat, matrix)
    return quat


def _sorted_pair(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a <= b else (b, a)
