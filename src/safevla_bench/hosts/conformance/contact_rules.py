"""Rules about contacts: resting contacts are left out, and a grip takes two fingers."""

from __future__ import annotations

from safevla_bench.hosts.conformance.base import HostRules, call_hook, require
from safevla_bench.hosts.conformance.trial import TrialRun
from safevla_bench.interface import Wants
from safevla_bench.trajectory import Batch


class ContactRules(HostRules):
    """Resting and mechanical contacts are excluded, and a grip needs two fingers."""

    def test_no_resting_contact_is_in_record_0(self, run: TrialRun) -> None:
        batch, roles = run.batch, run.batch.body_roles(0)
        for a, b in contact_pairs(batch, 0):
            robots = [roles[name] == "robot" for name in (a, b)]
            require(any(robots), f"{run}: {a} and {b} rest on each other in record 0, and the contact is recorded.")
            require(not all(robots), f"{run}: the robot's {a} and {b} touch at rest, and the contact is recorded.")

    def test_mechanical_contacts_are_in_no_record(self, run: TrialRun) -> None:
        roles, dropped = run.batch.body_roles(0), run.batch.headers[0].dropped_pairs or ()
        mechanical = {pair for pair in dropped if all(roles.get(name) == "robot" for name in pair)}
        touching = {
            tuple(sorted(pair)) for k in range(int(run.batch.lengths[0])) for pair in contact_pairs(run.batch, k)
        }
        both = sorted(mechanical & touching)
        require(not both, f"{run}: robot links listed in dropped_pairs are recorded as touching: {both}.")

    def test_what_both_fingers_hold_is_named(self) -> None:
        body, batch = self._run_hook("hold")
        gripped = batch.body_label(int(batch.gripped[-1])) if batch.gripped[-1] >= 0 else None
        require(bool(batch.gripper_contact[-1]), f"Both fingers hold {body}, and gripper_contact is false.")
        require(gripped == body, f"The fingers hold {body}, and gripped_body is {gripped}.")

    def test_a_gripper_closed_on_nothing_holds_nothing(self) -> None:
        _, batch = self._run_hook("close_on_nothing")
        require(not batch.gripper_contact.any(), "The gripper is closed on nothing, and gripper_contact is true.")
        require(bool((batch.gripped < 0).all()), "The gripper is closed on nothing, and gripped_body names a body.")
        roles = batch.body_roles(0)
        for a, b in (pair for k in range(int(batch.lengths[0])) for pair in contact_pairs(batch, k)):
            require({roles[a], roles[b]} != {"robot"}, f"The fingers close on each other, recorded as {a} against {b}.")

    def test_one_finger_is_no_grip(self) -> None:
        body, batch = self._run_hook("touch_with_one_finger")
        last, roles = int(batch.lengths[0]) - 1, batch.body_roles(0)
        touched = any(
            body in pair and "robot" in (roles[pair[0]], roles[pair[1]]) for pair in contact_pairs(batch, last)
        )
        require(touched, f"A finger touches {body}, and no contact with the robot is recorded.")
        require(not batch.gripper_contact[-1], f"One finger touches {body}, and gripper_contact is true.")

    def _run_hook(self, hook: str) -> tuple[str, Batch]:
        host = self.host()
        env = host.make(self.trials[0].find_task(host), Wants(privileged=True))
        try:
            body = call_hook(lambda: getattr(self, hook)(env, self.seed), hook)
            return body, env.recorded()
        finally:
            env.close()


def contact_pairs(batch: Batch, record: int) -> list[tuple[str, str]]:
    """Return the body pairs in contact in one record of a batch of one."""
    contacts = batch.contacts
    rows = slice(contacts.starts[record], contacts.starts[record + 1])
    return [
        (batch.body_label(int(a)), batch.body_label(int(b)))
        for a, b in zip(contacts.a[rows], contacts.b[rows], strict=True)
    ]
