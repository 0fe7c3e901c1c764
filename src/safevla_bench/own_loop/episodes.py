"""What happens to an environment in somebody's own loop, cut into episodes as `rollout` would have recorded them.

An episode starts at the first step after settling; record 0 is the state just before it. It ends at the native
success, at the horizon where one is told, or at the next reset, state set from outside, close, or end of recording.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from safevla_bench.errors import RunError, SafevlaError
from safevla_bench.hosts.attachment import Undo, Watched
from safevla_bench.hosts.mujoco.recorder import Recorder
from safevla_bench.interface import Action
from safevla_bench.runs import EpisodeRow
from safevla_bench.trajectory import Batch, Header, from_recording, marked_privileged

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What only the loop's owner knows of it; None = unknown, and it stays so in the record."""

    policy: str
    wait_steps: int
    horizon: int | None = None
    seed: int | None = None
    privileged: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """An episode that is over: its row, and its record unless it crashed."""

    row: EpisodeRow
    batch: Batch | None


@dataclass(slots=True)
class _Running:
    recorder: Recorder
    detach: Undo
    number: int
    env_seed: int | None
    index: int | None
    steps: int = 0


class Episodes:
    """Follows one environment (a `Watcher`) and hands each episode to `keep` as soon as it is over.

    `number` gives the number of the next episode of this task.
    """

    def __init__(
        self, watched: Watched, rules: Rules, number: Callable[[], int], keep: Callable[[Ended], None]
    ) -> None:
        self._watched, self._rules, self._number, self._keep = watched, rules, number, keep
        self._running: _Running | None = None
        self._over = False  # between an episode's end and the next reset, steps belong to nobody
        self._waited = 0
        self._seeded: int | None = None  # since the last reset
        self._env_seed: int | None = None  # of the last reset
        self._index: int | None = None
        self._action: Action | None = None
        self.refused: RunError | None = None

    def seeded(self, seed: int) -> None:
        """The seed holds for the next reset only: after it, the generator has gone on."""
        self._seeded = seed

    def ending(self) -> None:
        """End the episode that runs, if any: without success its time is up, unless the horizon says otherwise."""
        if self._running is None:
            return
        steps, horizon = self._running.steps, self._rules.horizon
        if horizon is None or steps >= horizon:
            self._end("timeout")
        else:
            self._end("stopped", f"ended without success after {steps} of {horizon} steps")

    def stop(self, reason: str) -> None:
        """End the episode that runs, if any, as `stopped`: what broke it off was not the policy."""
        if self._running is not None:
            self._end("stopped", reason)

    def reset(self) -> None:
        """Settling begins anew."""
        self._over, self._waited, self._index = False, 0, None
        self._env_seed, self._seeded = self._seeded, None

    def placed(self, init_state_index: int | None) -> None:
        """Settling begins anew, from that initial state."""
        self._over, self._waited, self._index = False, 0, init_state_index

    def stepping(self, action: object) -> None:
        """Take record 0 where settling is over; end the episode where the action must not reach a simulator.

        Raises:
            RunError: the arm moves although it should be settling.
        """
        if self._over:
            return
        taken = np.array(action, dtype=np.float64)  # before the simulator gets its hands on it
        if self._waited < self._rules.wait_steps:
            self._require_still(taken)
            return
        if self._running is None:
            self._begin(taken)
        problem = self._unusable(taken)
        if problem is not None:
            self._end("invalid_action", problem)
        self._action = taken

    def stepped(self, success: bool) -> None:
        """Close the control step; success ends the episode."""
        if self._over:
            return
        running = self._running
        if running is None:
            self._waited += 1
            return
        assert self._action is not None
        try:
            running.recorder.step(self._action)
        except SafevlaError as error:  # it diverged; the loop goes on as it would have, without this episode
            self._crash(str(error))
            return
        running.steps += 1
        if success:
            self._end("success")
        elif running.steps == self._rules.horizon:
            self._end("timeout")

    def failed(self, error: BaseException) -> None:
        """End the episode as crashed, or as stopped by whoever interrupted."""
        if self._running is None:
            return
        if isinstance(error, Exception):
            self._crash("".join(traceback.format_exception(error)))
        else:
            self.stop(f"interrupted by {type(error).__name__}")

    def _require_still(self, action: Action) -> None:
        if self._watched.holds(action):
            return
        number, announced = self._waited + 1, self._rules.wait_steps
        problem = f"step {number} after the reset moves the arm, but the first {announced} steps should settle"
        remedy = f"Pass record(..., wait_steps={self._waited}), or how many still steps your loop makes first."
        self.refused = RunError(problem, remedy=remedy)
        raise self.refused

    def _begin(self, action: Action) -> None:
        if self._watched.holds(action):
            problem = "%s: the first step after %d settling steps is a still one too and counts as the policy's; "
            remedy = "if your loop settles for longer, pass record(..., wait_steps=N)"
            _log.warning(problem + remedy, self._watched.task.task_id, self._rules.wait_steps)
        recorder, detach = self._watched.begin()
        self._running = _Running(recorder, detach, self._number(), self._env_seed, self._index)
        self._env_seed = None  # another state set without a reset would not start from this seed

    def _unusable(self, action: Action) -> str | None:
        if action.shape != (self._watched.action_size,):
            return f"an action of shape {action.shape}; it takes {self._watched.action_size} numbers"
        return None if np.isfinite(action).all() else f"the action {action.tolist()} is not finite"

    def _end(self, outcome: str, reason: str | None = None) -> None:
        running = self._finish()
        recorder, rules = running.recorder, self._rules
        known = self._watched.header(
            recorder, success=outcome == "success", env_seed=running.env_seed, index=running.index
        )
        header = msgspec.structs.replace(
            known,
            episode_id=self._episode_id(running),
            policy=rules.policy,
            seed=rules.seed,
            horizon=rules.horizon,
            outcome=outcome,
        )
        try:
            batch = _batch(recorder, header, rules.privileged)
        except SafevlaError as error:
            self._keep(Ended(self._row(running, "crashed", str(error)), None))
            return
        self._keep(Ended(self._row(running, outcome, reason), batch))

    def _crash(self, reason: str) -> None:
        running = self._finish()
        _log.warning("%s crashed: %s", self._episode_id(running), reason.strip().splitlines()[-1])
        self._keep(Ended(self._row(running, "crashed", reason), None))

    def _finish(self) -> _Running:
        assert self._running is not None
        running, self._running, self._over = self._running, None, True
        running.detach()
        return running

    def _episode_id(self, running: _Running) -> str:
        task = self._watched.task
        return f"{self._rules.policy}/{task.benchmark}/{task.task_id}/ep_{running.number:03d}"

    def _row(self, running: _Running, outcome: str, reason: str | None) -> EpisodeRow:
        task = self._watched.task
        return EpisodeRow(
            episode_id=self._episode_id(running),
            policy=self._rules.policy,
            benchmark=task.benchmark,
            task_id=task.task_id,
            episode=running.number,
            init_state_index=running.index,
            env_seed=running.env_seed,
            seed=self._rules.seed,
            policy_seed=None,
            horizon=self._rules.horizon,
            outcome=outcome,
            steps=running.steps,
            reason=reason,
        )


def _batch(recorder: Recorder, header: Header, privileged: bool) -> Batch:
    batch = from_recording(recorder.recording(header))
    (extra,) = batch.extra
    return replace(batch, extra=(marked_privileged(extra),)) if privileged else batch
