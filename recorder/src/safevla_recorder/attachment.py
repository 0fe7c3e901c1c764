"""Attaching to an environment of somebody else's making: the protocols between it and the loop's recording.

A `RecordableEnv` reports what happens to its environment to an `EnvListener`, by hooks on that one instance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from numpy.typing import ArrayLike

from safevla_recorder.episode import Action
from safevla_recorder.errors import HostError
from safevla_recorder.mujoco.hook import Undo
from safevla_recorder.mujoco.recorder import Recorder


@dataclass(frozen=True)
class TaskLabel:
    """The names under which a task's episodes are recorded."""

    benchmark: str
    task_id: str
    instruction: str


class EnvListener(Protocol):
    """Receiver of an environment's events, in the order in which they happen."""

    def on_seed(self, seed: int) -> None:
        """Handle a seed given to the environment."""
        ...

    def on_interruption(self) -> None:
        """Handle that a reset, another state or the close follows. Often called twice; the second does nothing."""
        ...

    def on_reset(self) -> None:
        """Handle a reset that has succeeded. Must not raise: LIBERO's own reset would swallow it and try again."""
        ...

    def on_state_set(self, init_state_index: int | None) -> None:
        """Handle a state set from outside: the task's initial state of that index, or another one (None)."""
        ...

    def before_step(self, action: object) -> None:
        """Handle an action that the environment is about to take."""
        ...

    def after_step(self, success: bool) -> None:
        """Handle an action that was taken; `success` is the host's native one."""
        ...

    def on_error(self, error: BaseException) -> None:
        """Handle an exception that the step raised."""
        ...


class RecordableEnv(Protocol):
    """One environment of somebody else's making."""

    host: str
    task: TaskLabel
    wait_steps: int
    """Settling steps that loops around this simulator usually make."""
    action_size: int
    versions: dict[str, str]

    def set_init_states(self, init_states: ArrayLike) -> None:
        """Take these as the task's initial states, [count, state]."""
        ...

    def subscribe(self, listener: EnvListener) -> Undo:
        """Report what happens from now on to `listener`; returns what takes the hooks off."""
        ...

    def start_recorder(self) -> tuple[Recorder, Undo]:
        """Return a recorder of the present model, attached, with record 0 taken; and what detaches it."""
        ...

    def fixture_poses(self) -> dict[str, list[float]]:
        """Return where a reset has put what no simulator state holds: root body -> position [3] and wxyz [4]."""
        ...

    def is_still(self, action: Action) -> bool:
        """Return whether the action leaves the arm where it is, as settling actions do; the gripper may move."""
        ...

    def build_header(
        self, recorder: Recorder, *, success: bool, env_seed: int | None, index: int | None
    ) -> dict[str, object]:
        """Return the header of an episode, as far as the host knows it."""
        ...


def find_recordable(env: object) -> RecordableEnv:
    """Return the environment in the form in which it can be recorded.

    Raises:
        HostError: it is of no known simulator, or cannot be recorded; says why.
    """
    from safevla_recorder.libero.attachment import find_libero

    recordable = find_libero(env)
    if recordable is None:
        problem = f"an environment of type {type(env).__module__}.{type(env).__qualname__} cannot be recorded"
        remedy = (
            "Pass the simulator's own environment, or a wrapper that holds it by now: some make theirs at the first "
            "reset. Hosts that can record one: libero."
        )
        raise HostError(problem, remedy=remedy)
    return recordable
