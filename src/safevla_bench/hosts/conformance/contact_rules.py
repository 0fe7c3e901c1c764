"""Rules about contacts: what rests is left out, and holding takes two fingers."""

from __future__ import annotations

from safevla_bench.hosts.conformance.base import Base, rule, written
from safevla_bench.hosts.conformance.trial import Tried
from safevla_bench.interface import Wants
from safevla_bench.trajectory import Batch


class TouchingRules(Base):
    """Record 0 rests on nothing, mechanical contacts never show, and one finger is no grip."""

    def test_no_resting_contact_is_in_record_0(self, tried: Tried) -> None:
        batch, roles = tried.batch, tried.batch.bodies(0)
        for a, b in pairs(batch, 0):
            robots = [roles[name] == "robot" for name in (a, b)]
            rule(any(robots), f"{tried}: {a} and {b} rest on each other in record 0, and the contact is recorded.")
            rule(not all(robots), f"{tried}: the robot's {a} and {b} touch at rest, and the contact is recorded.")

    def test_mechanical_contacts_are_in_no_record(self, tried: Tried) -> None:
        roles, dropped = tried.batch.bodies(0), tried.batch.headers[0].dropped_pairs or ()
        mechanical = {pair for pair in dropped if all(roles.get(name) == "robot" for name in pair)}
        found = {tuple(sorted(pair)) for k in range(int(tried.batch.lengths[0])) for pair in pairs(tried.batch, k)}
        both = sorted(mechanical & found)
        rule(not both, f"{tried}: robot links listed in dropped_pairs are recorded as touching: {both}.")

    def test_what_both_fingers_hold_is_named(self) -> None:
        body, batch = self._driven("hold")
        found = batch.name(int(batch.gripped[-1])) if batch.gripped[-1] >= 0 else None
        rule(bool(batch.gripper_contact[-1]), f"Both fingers hold {body}, and gripper_contact is false.")
        rule(found == body, f"The fingers hold {body}, and gripped_body is {found}.")

    def test_a_gripper_closed_on_nothing_holds_nothing(self) -> None:
        _, batch = self._driven("close_on_nothing")
        rule(not batch.gripper_contact.any(), "The gripper is closed on nothing, and gripper_contact is true.")
        rule(bool((batch.gripped < 0).all()), "The gripper is closed on nothing, and gripped_body names a body.")
        roles = batch.bodies(0)
        for a, b in (pair for k in range(int(batch.lengths[0])) for pair in pairs(batch, k)):
            rule({roles[a], roles[b]} != {"robot"}, f"The fingers close on each other, recorded as {a} against {b}.")

    def test_one_finger_is_no_grip(self) -> None:
        body, batch = self._driven("touch_with_one_finger")
        last, roles = int(batch.lengths[0]) - 1, batch.bodies(0)
        touched = any(body in pair and "robot" in (roles[pair[0]], roles[pair[1]]) for pair in pairs(batch, last))
        rule(touched, f"A finger touches {body}, and no contact with the robot is recorded.")
        rule(not batch.gripper_contact[-1], f"One finger touches {body}, and gripper_contact is true.")

    def _driven(self, hook: str) -> tuple[str, Batch]:
        host = self.host()
        env = host.make(self.trials[0].task(host), Wants(privileged=True))
        try:
            body = written(lambda: getattr(self, hook)(env, self.seed), hook)
            return body, env.recorded()
        finally:
            env.close()


def pairs(batch: Batch, record: int) -> list[tuple[str, str]]:
    """The body pairs in contact in one record of a batch of one."""
    contacts = batch.contacts
    here = slice(contacts.starts[record], contacts.starts[record + 1])
    return [(batch.name(int(a)), batch.name(int(b))) for a, b in zip(contacts.a[here], contacts.b[here], strict=True)]
