"""Self-test: one short episode recorded and judged, a simulator's in a process of its own.

    python -m safevla_bench.jobs.doctor.selftest HOST

Prints the result as JSON. The exit code is 2 for an error that the user can correct.
"""

from __future__ import annotations

import json
import subprocess
import sys

from safevla_bench import hosts
from safevla_bench.errors import HostError, RegistryError, SafevlaError
from safevla_bench.hosts.mujoco.environment import FAST
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.interface.environment import FastEnv, HostEnv
from safevla_bench.interface.policy import Wants
from safevla_bench.jobs.doctor.machine import Diagnosis, describe_failure, failed_check, last_line, passed_check
from safevla_bench.jobs.verify.replays import compare_records
from safevla_bench.judging.provenance_marks import STANDIN
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.policies.builtin import Noop, Random
from safevla_bench.rollout.episode import run_episode
from safevla_bench.rollout.plan import PlannedEpisode, plan_episodes
from safevla_bench.trajectory.batch import Batch

STEPS = 30
TIMEOUT_S = 300
USER_ERROR = 2


def check_judging(host: str) -> Diagnosis:
    """Roll out, record and judge an episode of this host in this process, and return the diagnosis."""
    try:
        summary = run_test_episode(host)
    except SafevlaError as problem:
        return failed_check("judging", problem.problem, problem.remedy or "Install the package again.")
    return passed_check("judging", f"works: {summary}")


def check_episode(host: str) -> Diagnosis:
    """Roll out and judge an episode of a host's first task in a process of its own, and return the diagnosis.

    A crash, an error, or no end within `TIMEOUT_S` is a failed check.
    """
    check = f"{host} episode"
    command = [sys.executable, "-m", "safevla_bench.jobs.doctor.selftest", host]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return failed_check(
            check, f"no episode of {STEPS} steps within {TIMEOUT_S} s", "Look at the load of this machine."
        )
    if process.returncode == USER_ERROR and process.stdout:
        problem = json.loads(process.stdout.splitlines()[-1])
        return failed_check(check, problem["problem"], problem["remedy"] or "See above.")
    if process.returncode:
        remedy = f"The whole story: {' '.join(command)}"
        return failed_check(check, describe_failure(process), remedy)
    return passed_check(check, json.loads(process.stdout.splitlines()[-1])["summary"])


def run_test_episode(host: str) -> str:
    """Run, record and judge one episode of the host's first task, and return a sentence about it.

    Raises what the host and the judge raise, and `HostError` if the episode crashed or its action was invalid.
    """
    built_host = hosts.make_host(host)
    task = built_host.tasks(built_host.suites()[0])[0]
    env = built_host.make(task, Wants())
    try:
        (planned,) = plan_episodes([task], 1, ["doctor"], load_protocol(), max_steps=STEPS)
        result = run_episode(env, Noop(), planned)
        speed = _check_speed(env, planned)
    finally:
        env.close()
    if result.batch is None or result.outcome == "invalid_action":
        raise HostError(last_line(result.reason or ""), remedy=f"The whole story:\n{result.reason}")
    judged = _describe_scores(result.batch, host)
    return f"{task.benchmark} {task.task_id}: {int(result.batch.lengths[0])} records, {judged}{speed}"


def _check_speed(env: HostEnv, planned: PlannedEpisode) -> str:
    """Say that an episode of random actions is the same where the simulator's code runs alone; "" if it does anyway.

    Raises `HostError` if it is another one.
    """
    if not isinstance(env, FastEnv):
        return ""
    batches = []
    for fast in (False, True):
        env.run_fast(fast)
        batches.append(run_episode(env, Random(), planned).batch)
    full, short = batches
    if full is None or short is None or compare_records(full, short)[0]:
        problem = "an episode that leaves out what the simulator repeats differs from the full one"
        raise HostError(problem, remedy=f"Set {FAST}=no, and tell us the versions above.")
    return ", the same bits as in full"


def _describe_scores(batch: Batch, host: str) -> str:
    try:
        scores = score(batch, load_ruleset(registry_files=hosts.registry_files(host)))
    except RegistryError:  # a plug-in's tags may come by --rules
        return "not judged: no registry has its tags"
    assets = f", with {STANDIN}" if scores.standin_suites else ""
    return f"judged by {len(scores.episode(0).active_specs)} specifications{assets}"


def main() -> int:
    """Test the host that the command line names, print the result as JSON, and return the exit code, 0 or 2."""
    try:
        print(json.dumps({"summary": run_test_episode(sys.argv[1])}))
    except SafevlaError as problem:
        print(json.dumps({"problem": problem.problem, "remedy": problem.remedy}))
        return USER_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
