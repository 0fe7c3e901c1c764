"""One short episode, recorded and judged: of the fake host here and now, of a simulator in a process of its own.

    python -m safevla_bench.doctor.selftest HOST

Prints what came of it as JSON; where it is an error that the user can mend, the exit code is 2.
"""

from __future__ import annotations

import json
import subprocess
import sys

from safevla_bench import hosts, rollout
from safevla_bench.doctor.findings import Finding, error, ok
from safevla_bench.doctor.graphics import last_line
from safevla_bench.errors import HostError, RegistryError, SafevlaError
from safevla_bench.interface import Action, HostEnv, Observation, Task, Wants
from safevla_bench.provenance_marks import STANDIN
from safevla_bench.scoring import score
from safevla_bench.specs import library
from safevla_bench.tasks import registry
from safevla_bench.trajectory import Batch

STEPS = 30
TIMEOUT_S = 300
USER_ERROR = 2


def rehearsal(host: str) -> Finding:
    """The whole pipeline without a simulator: roll out, record, judge."""
    try:
        told = tried(host)
    except SafevlaError as problem:
        return error("judging", problem.problem, problem.remedy or "Install the package again.")
    return ok("judging", f"works: {told}")


def episode(host: str) -> Finding:
    """The first task of a host's first suite, in a process of its own."""
    check = f"{host} episode"
    command = [sys.executable, "-m", "safevla_bench.doctor.selftest", host]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return error(check, f"no episode of {STEPS} steps within {TIMEOUT_S} s", "Look at the load of this machine.")
    if told.returncode == USER_ERROR and told.stdout:
        problem = json.loads(told.stdout.splitlines()[-1])
        return error(check, problem["problem"], problem["remedy"] or "See above.")
    if told.returncode:
        remedy = f"The whole story: {' '.join(command)}"
        crashed = f"crashed with signal {-told.returncode}" if told.returncode < 0 else last_line(told.stderr)
        return error(check, crashed, remedy)
    return ok(check, json.loads(told.stdout.splitlines()[-1])["told"])


def tried(host: str) -> str:
    """Run, record and judge one episode; says what came of it. Raises what the host and the judge raise."""
    made = hosts.host(host)
    task = made.tasks(made.suites()[0])[0]
    env = made.make(task, Wants())
    try:
        (planned,) = rollout.plan([task], 1, ["doctor"], rollout.protocol(), max_steps=STEPS)
        ended = rollout.run_episode(env, _Middle(env), planned)
    finally:
        env.close()
    if ended.batch is None or ended.outcome == "invalid_action":
        raise HostError(last_line(ended.reason or ""), remedy=f"The whole story:\n{ended.reason}")
    return f"{task.benchmark} {task.task_id}: {int(ended.batch.lengths[0])} records, {_judged(ended.batch)}"


def _judged(batch: Batch) -> str:
    try:
        scores = score(batch, library(), registry())
    except RegistryError:  # a plug-in's tags come by --registry
        return "not judged: no registry has its tags"
    assets = f", with {STANDIN}" if any(scores.standin) else ""
    return f"judged by {len(scores.episode(0).active_specs)} specifications{assets}"


class _Middle:
    """Acts in the middle of the host's bounds, which is to hold still."""

    wants = Wants()

    def __init__(self, env: HostEnv) -> None:
        self._action = (env.action_low + env.action_high) / 2

    def reset(self, task: Task, seed: int) -> None:
        """Nothing to forget."""

    def act(self, observation: Observation) -> Action:
        """[A]"""
        return self._action.copy()

    def close(self) -> None:
        """Nothing to free."""


def main() -> int:
    """Try the host that the command line names; returns the exit code."""
    try:
        print(json.dumps({"told": tried(sys.argv[1])}))
    except SafevlaError as problem:
        print(json.dumps({"problem": problem.problem, "remedy": problem.remedy}))
        return USER_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
