"""Rules that a host with wrong units, frames or quaternions cannot pass, and rules on motions that touch something."""

from __future__ import annotations

from contextlib import closing

import numpy as np
from scipy.spatial.transform import Rotation

from safevla_bench.hosts.conformance.base import (
    HostRules,
    TrialRun,
    call_hook,
    require,
    require_same,
    run_actions,
    skip_unless_repeatable,
)
from safevla_bench.interface.policy import Wants
from safevla_bench.trajectory.batch import Batch

GRAVITY_M_S2 = 9.81
_OFF, _LARGEST_IMPULSE = 0.05, 2.0
"""Share by which a net force at rest may miss the weight; multiple of the weight that the impulse may come to, since it
sums the norms of forces that lean against each other."""
_OFF_DEG = 2.0


class PhysicsRules(HostRules):
    """A newton is a newton, an angle an angle, and a motion that touches something repeats."""

    def test_what_rests_is_carried_by_its_weight(self) -> None:
        """Fail unless, after the hook `set_down`, the net force on the body at rest is its weight, within 5 %, and its
        impulse in a control step that weight times `dt`. A host without net forces has the impulse checked alone.
        """
        run = self.run_hook("set_down")
        (body, mass_kg), batch = run.result, run.batch
        weight_n, dt = mass_kg * GRAVITY_M_S2, batch.headers[0].dt
        net_n, impulse_ns = _sums_on(batch, body)
        require(impulse_ns > 0 or net_n > 0, f"{body} was put down, and no contact carries it in the last record.")
        if not np.isnan(net_n):
            off = abs(net_n / weight_n - 1)
            require(off <= _OFF, f"{body} weighs {weight_n:g} N, and at rest its net forces come to {net_n:g} N.")
        if not np.isnan(impulse_ns):
            share = impulse_ns / (weight_n * dt)
            fits = 1 - _OFF <= share <= _LARGEST_IMPULSE
            require(fits, f"{body} at rest has {share:g} times the impulse of its weight over a control step.")

    def test_a_body_that_was_turned_reads_so(self) -> None:
        """Fail unless, after the hook `turn_object`, the recorded orientation of the body has turned about the vertical
        by the angle that the hook returns, within 2 degrees.
        """
        run = self.run_hook("turn_object")
        (body, angle_deg), batch = run.result, run.batch
        posed, quaternions = batch.body_quat_wxyz.episode_poses(0)
        names = [batch.body_label(int(k)) for k in posed]
        require(body in names, f"{body} was turned, and its orientation is not recorded.")
        path = quaternions[:, names.index(body)]
        ends = Rotation.from_quat(np.roll(path[[0, -1]], -1, axis=1))
        expected = Rotation.from_euler("z", angle_deg, degrees=True)
        off = np.degrees((ends[1] * ends[0].inv() * expected.inv()).magnitude())
        wrong = "quaternions are w, x, y, z, in the world frame"
        require(
            off <= _OFF_DEG,
            f"{body} was turned by {angle_deg:g}° about the vertical; its record is {off:.1f}° off: {wrong}.",
        )

    def test_a_motion_that_touches_repeats(self, run: TrialRun) -> None:
        """Fail where the episode of the hook `hold` touches nothing, or differs in any bit in a new environment."""
        skip_unless_repeatable(run)
        held = self.run_hook("hold")
        require(len(held.batch.contacts.a) > 0, "hold() ends with both fingers on a body, and no contact is recorded.")
        again = self.run_elsewhere(self.trials[0].find_task(self.host()), Wants(privileged=True), held.actions)
        require_same(held.batch, again, "The motion of hold(), repeated in a new environment,")

    def test_no_contact_outlives_a_reset(self, run: TrialRun) -> None:
        """Fail where an episode begun after that of the hook `hold` differs in any bit from one in a new environment:
        some engines on a GPU clear their buffers of contacts at the next step alone.
        """
        skip_unless_repeatable(run)
        host = self.host()
        task = self.trials[0].find_task(host)
        with closing(host.make(task, Wants(privileged=True))) as env:
            actions = self.actions(env)[:2]
            call_hook(lambda: self.hold(env, self.seed), "hold")
            after = run_actions(env, self.seed, actions)
        require_same(self.run_elsewhere(task, Wants(privileged=True), actions), after, "An episode that follows a grip")


def _sums_on(batch: Batch, body: str) -> tuple[float, float]:
    """Return the sums of net forces [N] and impulses [N·s] of a body's contacts in the last record; NaN = unknown."""
    contacts = batch.contacts
    last = slice(contacts.starts[-2], contacts.starts[-1])
    own = [body in map(batch.body_label, pair) for pair in zip(contacts.a[last], contacts.b[last], strict=True)]
    return float(contacts.net_force_n[last][own].sum()), float(contacts.impulse_ns[last][own].sum())
