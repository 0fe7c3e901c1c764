"""Rules about a host before an episode's first record: tasks, versions, missing libraries, settling."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from safevla_bench.errors import HostError
from safevla_bench.hosts.conformance.base import (
    HostRules,
    TrialRun,
    first_difference,
    require,
    run_actions,
    skip_unless_repeatable,
)
from safevla_bench.hosts.conformance.missing_dependency import run_without


class TaskRules(HostRules):
    """The host lists its tasks, and names the libraries that it lacks."""

    def test_tasks_are_well_formed(self) -> None:
        host = self.host()
        suites = host.suites()
        require(bool(host.name) and bool(suites), "The host has no name or no suites.")
        require(len(set(suites)) == len(suites), f"A suite is listed twice: {suites}.")
        for suite in suites:
            tasks = host.tasks(suite)
            require(bool(tasks), f"{suite} has no tasks.")
            require([task.index for task in tasks] == list(range(len(tasks))), f"{suite}: indices do not count from 0.")
            require(len({task.task_id for task in tasks}) == len(tasks), f"{suite}: two tasks have one task_id.")
            for task in tasks:
                require(all((task.benchmark, task.task_id, task.name)), f"{suite}: a task lacks a name: {task}.")
                require(bool(task.instruction.strip()), f"{suite} {task.task_id} has no instruction.")
                require(task.init_states is None or task.init_states > 0, f"{suite} {task.task_id} cannot start.")

    def test_tasks_are_the_same_each_time_they_are_listed(self) -> None:
        host, other = self.host(), self.host()
        for suite in host.suites():
            again = host.tasks(suite), other.tasks(suite)
            require(again == (host.tasks(suite),) * 2, f"The tasks of {suite} differ each time they are listed.")

    def test_an_unknown_suite_is_an_error_that_lists_the_suites(self) -> None:
        try:
            self.host().tasks("no-such-suite")
        except HostError as error:
            require(self.host().suites()[0] in str(error), f"The error about an unknown suite lists none: {error}")
        else:
            pytest.fail("A suite that does not exist has tasks.", pytrace=False)

    def test_versions_of_what_the_simulation_depends_on_are_listed(self, run: TrialRun) -> None:
        versions = self.host().versions()
        require(bool(versions), "The host lists no versions: two records could not be told apart by their simulator.")
        require(all(versions.values()), f"A version is empty: {versions}.")
        require(
            run.batch.headers[0].versions == versions,
            f"{run}: the record does not hold the host's versions.",
        )

    def test_the_still_action_is_one_of_the_environment_s(self, run: TrialRun) -> None:
        still, low, high = np.array(run.task.still), run.env.action_low, run.env.action_high
        fits = still.shape == low.shape
        require(fits, f"{run}: `Task.still` has {still.size} numbers, an action {low.size}.")
        require(
            bool(np.all((low <= still) & (still <= high))), f"{run}: `Task.still` lies outside the actions' bounds."
        )

    def test_settling_is_by_the_action_that_the_seed_names(self, run: TrialRun) -> None:
        skip_unless_repeatable(run)
        if len(run.task.still) != len(run.env.action_low):
            return  # another rule
        own, named, other = (
            run_actions(run.env, replace(self.seed, wait_steps=2, wait_action=action), run.actions[:0])
            for action in (None, run.task.still, tuple(run.env.action_high))
        )
        difference = first_difference(own, named)
        require(not difference, f"{run}: settling by `Task.still` differs from the host's own in {difference}.")
        require(bool(first_difference(own, other)), f"{run}: settling is the same, whatever `wait_action` says.")

    def test_making_the_host_imports_no_simulator(self) -> None:
        if not self.needs:
            return
        ended = run_without(self.factory, self.needs, None)
        report = f"{ended.outcome}: {ended.message}"
        require(ended.outcome == "worked", f"The host cannot be made or list its suites without {self.needs}: {report}")

    def test_a_missing_library_is_a_host_error_that_says_what_to_do(self) -> None:
        task = self.trials[0].find_task(self.host())
        for needed in self.needs:
            ended = run_without(self.factory, [needed], task)
            sentence = f"Without {needed} it must raise a HostError, and {ended.outcome} happened: {ended.message}"
            require(ended.outcome == "host_error", sentence)
            require("\n" in ended.message, f"Without {needed} the HostError has no remedy: {ended.message}")
