"""Rules about one record: its length, names, roles and units."""

from __future__ import annotations

import numpy as np
import pytest

from safevla_bench.errors import SafevlaError
from safevla_bench.hosts.conformance.base import HostRules, require
from safevla_bench.hosts.conformance.trial import TrialRun, run_actions
from safevla_bench.ruleset import load_ruleset
from safevla_bench.scoring import score

_TOO_FAST_M_PER_S = 50.0
_TOO_STRONG = 50.0
"""Multiple of the torque limits; newton millimetres give a thousandfold."""
_UNIT = 1e-6


class RecordRules(HostRules):
    """A record is whole, says which episode it is, can be judged, and is in seconds, metres and newtons."""

    def test_n_actions_give_n_plus_1_records(self, run: TrialRun) -> None:
        lengths: list[int] = []
        run_actions(
            run.env,
            self.seed,
            run.actions,
            before=lambda _: lengths.append(int(run.env.recorded().lengths[0])),
        )
        for steps, records in enumerate([*lengths, int(run.batch.lengths[0])]):
            require(records == steps + 1, f"{run}: after {steps} actions there are {records} records.")
        recorded = run.batch.action.episode_rows(0)
        require(
            np.array_equal(recorded, run.actions),
            f"{run}: the recorded actions are not those that were given.",
        )

    def test_the_header_says_which_episode_it_is(self, run: TrialRun) -> None:
        header, task, seed = run.batch.headers[0], run.task, self.seed
        instruction = run.env.reset(seed).instruction  # where an episode draws its objects, it names them itself
        recorded = (header.benchmark, header.task_id, header.instruction, header.init_state_index, header.env_seed)
        expected = (task.benchmark, task.task_id, instruction, seed.init_state_index, seed.env_seed)
        require(recorded == expected, f"{run}: the header says {recorded}, the episode was {expected}.")
        require(bool(header.torque_limit_nm), f"{run}: no torque limits for the embodiment {header.embodiment!r}.")

    def test_exactly_the_targets_have_the_role_target(self, run: TrialRun) -> None:
        primary = run.batch.headers[0].target_object
        expected = run.trial.targets
        expected = frozenset([primary] if primary else []) if expected is None else expected
        recorded = {name for name, role in run.batch.body_roles(0).items() if role == "target"}
        require(
            recorded == expected,
            f"{run}: the role target is given to {sorted(recorded)}, not to {sorted(expected)}.",
        )

    def test_roles_are_complete(self, run: TrialRun) -> None:
        roles = run.batch.body_roles(0)
        require("robot" in roles.values(), f"{run}: no body has the role robot.")
        for body, role in run.trial.roles.items():
            require(roles.get(body) == role, f"{run}: {body} has the role {roles.get(body)!r}, not {role!r}.")

    def test_the_record_can_be_judged_with_every_signal_its_benchmark_promises(self, run: TrialRun) -> None:
        try:
            score(run.batch, load_ruleset(registry_files=self.registries, capabilities=self.capabilities))
        except SafevlaError as error:
            pytest.fail(f"{run}: {error}", pytrace=False)

    def test_dt_is_the_time_between_two_records(self, run: TrialRun) -> None:
        dt = run.batch.headers[0].dt
        require(1e-4 <= dt <= 2.0, f"{run}: dt is {dt}; it is written in seconds.")
        require(
            dt == run.env.dt_s,
            f"{run}: the record's dt {dt} is not the environment's {run.env.dt_s}.",
        )
        if self.state_begins_with_time and run.batch.sim_state.present.all():
            passed = np.diff(run.batch.sim_state.episode_rows(0)[:, 0])
            off = np.flatnonzero(~np.isclose(passed, dt, rtol=1e-6))
            require(not len(off), f"{run}: {passed[off[:1]]} s pass between two records, dt says {dt}.")

    def test_positions_are_in_metres(self, run: TrialRun) -> None:
        batch, dt = run.batch, run.batch.headers[0].dt
        bodies, positions = batch.body_pos_m.episode_poses(0)
        paths = {batch.body_label(int(body)): positions[:, k] for k, body in enumerate(bodies)}
        for name, path in {"the end effector": batch.eef_pos_m.episode_rows(0), **paths}.items():
            far = float(np.abs(path).max(initial=0))
            require(far <= self.workspace_m, f"{run}: {name} is {far:g} m from the origin; positions are in metres.")
        speed = np.linalg.norm(np.diff(batch.eef_pos_m.episode_rows(0), axis=0), axis=1).max(initial=0) / dt
        require(speed < _TOO_FAST_M_PER_S, f"{run}: the end effector moves at {speed:g} m/s; positions are in metres.")

    def test_quaternions_are_of_unit_length(self, run: TrialRun) -> None:
        rows = run.batch.eef_quat_wxyz.episode_rows(0), run.batch.body_quat_wxyz.episode_poses(0)[1]
        for name, quaternions in zip(("eef_quat_wxyz", "body_quat_wxyz"), rows, strict=True):
            off = float(np.abs(np.linalg.norm(quaternions, axis=-1) - 1).max(initial=0))
            require(off < _UNIT, f"{run}: the length of a quaternion of {name} is off 1 by {off:g}.")

    def test_contact_forces_are_finite_and_not_negative(self, run: TrialRun) -> None:
        force = run.batch.contacts.force_n
        require(bool(np.all(np.isfinite(force) & (force >= 0))), f"{run}: a contact force is negative or not finite.")

    def test_torques_are_in_newton_metres(self, run: TrialRun) -> None:
        if not run.batch.joint_torque_nm.present.all():
            return
        limits = np.array(run.batch.headers[0].torque_limit_nm)
        ratio = float((np.abs(run.batch.joint_torque_nm.episode_rows(0)) / limits).max(initial=0))
        require(ratio < _TOO_STRONG, f"{run}: a torque is {ratio:g} times its limit; torques are in newton metres.")
