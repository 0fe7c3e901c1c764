"""How a policy is coupled to the simulator: through a filter of its actions, and with a delay of its answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from safevla_bench.errors import PolicyError
from safevla_bench.interface.environment import HostEnv
from safevla_bench.interface.policy import Policy, ReplayPolicy, Wants
from safevla_bench.judging.monitor import Monitor
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.plugins import format_call
from safevla_bench.policies.delays import Delay, DelayedPolicy
from safevla_bench.policies.filters import FilteredEnv, make_filter, runs_code, split_filter


@dataclass(frozen=True, slots=True)
class Coupling:
    """The texts of a policy's filter and delay; None = it has none."""

    filter: str | None = None
    delay: str | None = None

    def describe(self) -> dict[str, str]:
        """Return what run.json holds of it, beside the policy's arguments."""
        return {name: text for name, text in asdict(self).items() if text is not None}

    def list_calls(self) -> list[str]:
        """Return the call of a filter that is not ours, which a file must not choose."""
        return [format_call(*split_filter(self.filter))] if self.filter and runs_code(self.filter) else []


class Coupler:
    """Puts one policy's filter and delay between it and each environment."""

    def __init__(self, coupling: Coupling, rules: Ruleset | None = None) -> None:
        """Make the filter; `rules` are those by which its monitor judges. Raises what `make_filter` raises."""
        self._name = coupling.filter or ""
        self._filter = make_filter(self._name) if self._name else None
        self._delay = None if coupling.delay is None else Delay.parse(coupling.delay)
        self.privileged = bool(getattr(self._filter, "privileged", False))
        self.reads_margins = self._filter is not None and getattr(self._filter, "reads_margins", True)
        self._monitor = Monitor(rules) if rules and self.reads_margins else None

    def require_fitting(self, name: str, policy: Policy) -> None:
        """Raise `PolicyError` for a policy that cannot be coupled so: a replay, or one whose actions are poses."""
        if isinstance(policy, ReplayPolicy):
            problem = f"{name} plays recorded actions, which neither a filter nor a delay could change in time"
            raise PolicyError(problem, remedy="Run the policy that was recorded, or leave --filter and --delay out.")
        if policy.wants.absolute and (self._delay or not getattr(self._filter, "takes_poses", True)):
            problem = f"{name} gives poses, of which no number says how to hold"
            raise PolicyError(problem, remedy="Take a filter of your own (python:module:Class), and no delay.")

    def extend_wants(self, wants: Wants) -> Wants:
        """Return what an environment is to show to the policy and to the filter."""
        return replace(wants, privileged=wants.privileged or self.privileged)

    def couple(self, env: HostEnv, policy: Policy) -> tuple[HostEnv, Policy]:
        """Return environment and policy with what is between them."""
        if self._filter is not None:
            hides = self.privileged and not policy.wants.privileged
            env = FilteredEnv(env, self._name, self._filter, self._monitor, hides=hides)
        return env, policy if self._delay is None else DelayedPolicy(policy, self._delay, env.dt_s)
