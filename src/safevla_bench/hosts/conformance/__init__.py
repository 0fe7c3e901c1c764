"""The rules that every host must keep: a test class for a host's author to subclass. The import needs pytest.

    from safevla_bench.hosts.conformance import HostConformance
    from safevla_bench.hosts.conformance.base import Trial

    class TestMyHost(HostConformance):
        factory = "my_package.my_host:MyHost"
        trials = (Trial("my-suite", 0, roles={"tray": "bystander"}),)

        def bare(self, task, seed, actions): ...   # the simulator's states without our recorder

Each test method is one rule; its failure message states in one sentence what the host does wrong. The rules that need a
hook, such as the rules on grippers, are skipped until the author implements the hook. Set a hook to None if its rules
cannot apply to the host. `docs/howto/adding-a-host.md` shows a complete host.
"""

from __future__ import annotations

from safevla_bench.hosts.conformance.optional_rules import OptionalRules, TaskRules
from safevla_bench.hosts.conformance.record_rules import ContactRules, PhysicsRules, RecordRules, RepeatRules


class HostConformance(TaskRules, RepeatRules, RecordRules, ContactRules, PhysicsRules, OptionalRules):
    """All rules. The author of a host subclasses this class, sets attributes, and writes the hooks that apply."""
