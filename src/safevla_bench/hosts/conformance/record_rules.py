"""Rules about what one record holds: its length, names, roles and units."""

from __future__ import annotations

import numpy as np
import pytest

from safevla_bench.errors import SafevlaError
from safevla_bench.hosts.conformance.base import Base, rule
from safevla_bench.hosts.conformance.trial import Tried, run
from safevla_bench.scoring import score
from safevla_bench.specs import library
from safevla_bench.tasks import registry

_TOO_FAST_M_PER_S = 50.0
_TOO_STRONG = 50.0
"""Multiple of the torque limits; newton millimetres give a thousandfold."""
_UNIT = 1e-6


class RecordingRules(Base):
    """A record is whole, says which episode it is, can be judged, and is in seconds, metres and newtons."""

    def test_n_actions_give_n_plus_1_records(self, tried: Tried) -> None:
        lengths: list[int] = []
        run(tried.env, self.seed, tried.actions, before=lambda _: lengths.append(int(tried.env.recorded().lengths[0])))
        for taken, records in enumerate([*lengths, int(tried.batch.lengths[0])]):
            rule(records == taken + 1, f"{tried}: after {taken} actions there are {records} records.")
        recorded = tried.batch.action.episode(0)
        rule(np.array_equal(recorded, tried.actions), f"{tried}: the recorded actions are not those that were given.")

    def test_the_header_says_which_episode_it_is(self, tried: Tried) -> None:
        header, task, seed = tried.batch.headers[0], tried.task, self.seed
        told = tried.env.reset(seed).instruction  # where an episode draws its objects, it names them itself
        found = (header.benchmark, header.task_id, header.instruction, header.init_state_index, header.env_seed)
        wanted = (task.benchmark, task.task_id, told, seed.init_state_index, seed.env_seed)
        rule(found == wanted, f"{tried}: the header says {found}, the episode was {wanted}.")
        rule(bool(header.torque_limit_nm), f"{tried}: no torque limits for the embodiment {header.embodiment!r}.")

    def test_exactly_the_targets_have_the_role_target(self, tried: Tried) -> None:
        primary = tried.batch.headers[0].target_object
        wanted = tried.trial.targets
        wanted = frozenset([primary] if primary else []) if wanted is None else wanted
        found = {name for name, role in tried.batch.bodies(0).items() if role == "target"}
        rule(found == wanted, f"{tried}: the role target is given to {sorted(found)}, not to {sorted(wanted)}.")

    def test_roles_are_complete(self, tried: Tried) -> None:
        roles = tried.batch.bodies(0)
        rule("robot" in roles.values(), f"{tried}: no body has the role robot.")
        for body, role in tried.trial.roles.items():
            rule(roles.get(body) == role, f"{tried}: {body} has the role {roles.get(body)!r}, not {role!r}.")

    def test_the_record_can_be_judged_with_every_signal_its_benchmark_promises(self, tried: Tried) -> None:
        try:
            score(tried.batch, library(), registry(self.registries), capabilities=self.capabilities)
        except SafevlaError as error:
            pytest.fail(f"{tried}: {error}", pytrace=False)

    def test_dt_is_the_time_between_two_records(self, tried: Tried) -> None:
        dt = tried.batch.headers[0].dt
        rule(1e-4 <= dt <= 2.0, f"{tried}: dt is {dt}; it is written in seconds.")
        rule(dt == tried.env.dt_s, f"{tried}: the record's dt {dt} is not the environment's {tried.env.dt_s}.")
        if self.state_begins_with_time and tried.batch.sim_state.present.all():
            passed = np.diff(tried.batch.sim_state.episode(0)[:, 0])
            off = np.flatnonzero(~np.isclose(passed, dt, rtol=1e-6))
            rule(not len(off), f"{tried}: {passed[off[:1]]} s pass between two records, dt says {dt}.")

    def test_positions_are_in_metres(self, tried: Tried) -> None:
        batch, dt = tried.batch, tried.batch.headers[0].dt
        bodies, positions = batch.body_pos_m.episode(0)
        named = {batch.name(int(body)): positions[:, k] for k, body in enumerate(bodies)}
        for name, path in {"the end effector": batch.eef_pos_m.episode(0), **named}.items():
            far = float(np.abs(path).max(initial=0))
            rule(far <= self.workspace_m, f"{tried}: {name} is {far:g} m from the origin; positions are in metres.")
        speed = np.linalg.norm(np.diff(batch.eef_pos_m.episode(0), axis=0), axis=1).max(initial=0) / dt
        rule(speed < _TOO_FAST_M_PER_S, f"{tried}: the end effector moves at {speed:g} m/s; positions are in metres.")

    def test_quaternions_are_of_unit_length(self, tried: Tried) -> None:
        rows = tried.batch.eef_quat_wxyz.episode(0), tried.batch.body_quat_wxyz.episode(0)[1]
        for name, quaternions in zip(("eef_quat_wxyz", "body_quat_wxyz"), rows, strict=True):
            off = float(np.abs(np.linalg.norm(quaternions, axis=-1) - 1).max(initial=0))
            rule(off < _UNIT, f"{tried}: the length of a quaternion of {name} is off 1 by {off:g}.")

    def test_contact_forces_are_finite_and_not_negative(self, tried: Tried) -> None:
        force = tried.batch.contacts.force_n
        rule(bool(np.all(np.isfinite(force) & (force >= 0))), f"{tried}: a contact force is negative or not finite.")

    def test_torques_are_in_newton_metres(self, tried: Tried) -> None:
        if not tried.batch.joint_torque_nm.present.all():
            return
        limits = np.array(tried.batch.headers[0].torque_limit_nm)
        ratio = float((np.abs(tried.batch.joint_torque_nm.episode(0)) / limits).max(initial=0))
        rule(ratio < _TOO_STRONG, f"{tried}: a torque is {ratio:g} times its limit; torques are in newton metres.")
