"""The recorder: poses, torques, grip and contacts of one MuJoCo episode, taken without touching the simulation.

It reads `mjData` after each physics substep and at the end of each control step, and writes nothing: no extra
forward pass, which would change the solver's warm start. So positions and contacts of a record belong to one instant,
the start of the last substep, where MuJoCo computed them; `sim_state` is the state at its end, from which the run can
be continued.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError
from safevla_bench.hosts.mujoco.contact_filter import PairFilter
from safevla_bench.hosts.mujoco.contacts import ContactLog, Floats, Touches, joined, peaks
from safevla_bench.hosts.mujoco.grip import NOTHING, gripped
from safevla_bench.hosts.mujoco.scene import Scene
from safevla_bench.hosts.mujoco.settling import warn_of_motion
from safevla_bench.interface import Action, Task
from safevla_bench.trajectory import ContactList, Header, Recording

if TYPE_CHECKING:
    import mujoco

_BLOCK = 32
"""Control steps whose contacts are judged together; bounds what is held back to a few megabytes."""


@dataclass(frozen=True, slots=True)
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

    Call `substep` after every physics substep and `step` at the end of every control step.
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
        self._place = scene.place_of_geom(model)
        self._robot = np.array([role == "robot" for role in scene.roles.values()])
        self._fingers = scene.finger_groups(model)
        self._warnings = data.warning.number  # a view of the simulator's own counts
        self._warned = self._warnings.tobytes()
        self._unstable = _unstable_steps(data)
        self._log = ContactLog(model)
        self._ends: list[int] = []  # substeps noted at the end of each record that is not judged yet
        self._contacts: list[ContactList] = []
        self._gripped: list[NDArray[np.int64]] = []
        self._actions: list[Action] = []
        self._states = [_read(data, scene)]
        self._first()

    def _first(self) -> None:
        self._log.note(self._data)
        touches = self._log.take()
        self._filter = PairFilter(self._place, self._robot, self._fingers, touches, self.scene.apart_substeps)
        self._judge(touches, np.array([1]), substep_s=None)

    def substep(self) -> None:
        """Note the contacts of the substep that has just ended."""
        self._log.note(self._data)

    def step(self, action: Action) -> None:
        """Close the control step that `action` [A] drove, with at least one substep noted: one more record.

        Raises:
            HostError: the simulation diverged during the step; MuJoCo has then reset its state by itself.
        """
        if self._warnings.tobytes() != self._warned and _unstable_steps(self._data) != self._unstable:
            problem = f"the simulation became unstable in control step {len(self._states)}"
            raise HostError(problem, remedy="The episode is lost; look for overlapping bodies or extreme actions.")
        self._states.append(_read(self._data, self.scene))
        self._actions.append(np.array(action, dtype=np.float64))
        self._ends.append(len(self._log))
        if len(self._ends) == _BLOCK:
            self._catch_up()

    def dropped_pairs(self) -> tuple[tuple[str, str], ...]:
        """Body pairs with resting or mechanical contacts that were left out, each pair and the whole sorted."""
        names = tuple(self.scene.roles)
        return tuple(sorted({_sorted_pair(names[a], names[b]) for a, b in self._filter.dropped}))

    def recording(self, header: Header) -> Recording:
        """The control steps closed so far as one episode under that header."""
        self._catch_up()
        action = np.stack(self._actions) if self._actions else np.empty((0, 0))
        return self._recorded(header, self._states, joined(self._contacts), np.concatenate(self._gripped), action)

    def latest(self, header: Header) -> Recording:
        """The newest record alone; asking for it changes nothing of the recording."""
        self._catch_up()
        newest, contacts = len(self._states) - 1, self._contacts[-1]
        here = contacts.record == newest
        listed = ContactList(*(getattr(contacts, name)[here] for name in ("record", "a", "b", "force_n", "impulse_ns")))
        alone = replace(listed, record=np.zeros_like(listed.record))
        return self._recorded(header, self._states[-1:], alone, self._gripped[-1][-1:], None)

    def _recorded(
        self,
        header: Header,
        states: Sequence[_State],
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
            eef_quat_wxyz=np.stack([_quaternion(state.site_mat) for state in states]),
            pos_bodies=[*quat_bodies, *(places[name] for name in scene.links)],
            body_pos_m=np.stack([np.concatenate([state.pos[objects], state.com[links]]) for state in states]),
            quat_bodies=quat_bodies,
            body_quat_wxyz=np.stack([state.quat[objects] for state in states]),
            contacts=contacts,
            joint_torque_nm=np.stack([state.actuator[list(scene.arm_dofs)] for state in states]),
            gripper_contact=gripped != NOTHING,
            gripped=gripped,
            action=action,
            sim_state=np.stack([state.sim_state for state in states]),
        )

    def _catch_up(self) -> None:
        """Judge the contacts of all records that are closed but not judged."""
        if self._ends:
            ends, self._ends = np.array(self._ends), []
            self._judge(self._log.take(), ends, substep_s=self._substep_s)

    def _judge(self, touches: Touches, ends: NDArray[np.int64], substep_s: float | None) -> None:
        judged = sum(len(block) for block in self._gripped)
        owner = judged + np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
        # Substeps after the last end belong to a control step that broke off: there is no record of it.
        which = np.flatnonzero(self._filter.counted(touches) & (touches.substep < ends[-1]))
        self._contacts.append(peaks(touches, which, owner, self._place, substep_s))
        self._gripped.append(gripped(touches, ends - 1, self._fingers, self._place, self._robot))


def _read(data: mujoco.MjData, scene: Scene) -> _State:
    site = scene.eef_site
    return _State(
        site_pos=data.site_xpos[site].copy(),
        site_mat=data.site_xmat[site].copy(),
        pos=data.xpos.copy(),
        com=data.xipos.copy(),
        quat=data.xquat.copy(),
        actuator=data.qfrc_actuator.copy(),
        sim_state=np.concatenate(((data.time,), data.qpos, data.qvel)),
    )


def attached(simulation: Any, method: str, scene: Scene, task: Task) -> tuple[Recorder, Callable[[], None]]:
    """A recorder of robosuite's `MjSim` with record 0 taken, called behind its `method`; and what takes it off.

    Logs which object still moves, if any does.
    """
    model, data = simulation.model._model, simulation.data._data
    warn_of_motion(model, data, scene.objects, task.task_id)
    recorder = Recorder(model, data, scene)
    return recorder, hook(simulation, method, recorder.substep)


def hook(simulation: object, method: str, after: Callable[[], None]) -> Callable[[], None]:
    """Call `after` behind every call of `simulation.method`, on this one instance; returns what undoes it.

    `simulation` is whatever advances physics by one substep in that method, such as robosuite's `MjSim`. robosuite
    makes a new one at each reset, so the hook goes with the old one and is set anew.
    """
    original = getattr(simulation, method)

    def stepped(*args: object, **kwargs: object) -> object:
        result = original(*args, **kwargs)
        after()
        return result

    def unhook() -> None:
        if vars(simulation).get(method) is stepped:
            delattr(simulation, method)

    setattr(simulation, method, stepped)
    return unhook


def _unstable_steps(data: mujoco.MjData) -> int:
    """How often MuJoCo found positions, velocities or accelerations unusable."""
    import mujoco

    kinds = mujoco.mjtWarning
    bad = (kinds.mjWARN_BADQPOS, kinds.mjWARN_BADQVEL, kinds.mjWARN_BADQACC)
    return sum(int(data.warning[kind].number) for kind in bad)


def _quaternion(matrix: Floats) -> Floats:
    import mujoco

    quat = np.empty(4)
    mujoco.mju_mat2Quat(quat, matrix)
    return quat


def _sorted_pair(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one <= other else (other, one)
