"""The run folder of a script that records: open as long as the process lives, whole after each `record` block.

A script makes an environment a task, and so records several times into one folder. Blocks of one process add to the
folder that the first of them made; a folder that was there before is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from safevla_bench.hosts.attachment import Watched
from safevla_bench.interface import Task
from safevla_bench.own_loop.episodes import Ended, Rules
from safevla_bench.runs import RUN, EpisodeRow, GrowingRun
from safevla_bench.version import __version__

_OPEN: dict[Path, Folder] = {}


def opened(out: Path, watched: Watched, rules: Rules, volatile: Mapping[str, object]) -> Folder:
    """The run folder, for the episodes of one more environment.

    Raises:
        RunError: the folder holds something that this process did not put there.
    """
    place = out.resolve()
    folder = _OPEN.get(place)
    if folder is None or not (place / RUN).exists():  # removed meanwhile: begin anew
        folder = Folder(out, volatile)
    folder.add(watched, rules)
    _OPEN[place] = folder
    return folder


class Folder:
    """A run folder that episodes of several environments and policies go to."""

    def __init__(self, out: Path, volatile: Mapping[str, object]) -> None:
        self.path = out
        self._volatile = volatile
        self._writer: GrowingRun | None = None
        self._host = ""
        self._versions: dict[str, str] = {}
        self._tasks: dict[str, Task] = {}
        self._rules: list[Rules] = []
        self._begun: Counter[tuple[str, str, str]] = Counter()
        self._rows: list[EpisodeRow] = []
        self._blocks = self._whole = 0

    def add(self, watched: Watched, rules: Rules) -> None:
        """Take one more environment in; run.json says from now on that the run is not complete."""
        task = watched.task
        self._host, self._versions = watched.host, watched.versions
        self._tasks[f"{task.benchmark}/{task.task_id}"] = task
        self._rules.append(rules)
        self._blocks += 1
        if self._writer is None:
            self._writer = GrowingRun(self.path, self._description())
        else:
            self._writer.finish(self._rows, self._description())

    def next_number(self, policy: str, task: Task) -> int:
        """The number of the policy's next episode of a task, from 0; it is taken by asking."""
        key = (policy, task.benchmark, task.task_id)
        self._begun[key] += 1
        return self._begun[key] - 1

    def keep(self, ended: Ended) -> None:
        """Write an episode that is over."""
        assert self._writer is not None
        if ended.batch is not None:
            self._writer.append(ended.batch)
        self._rows.append(ended.row)

    def close(self, *, whole: bool) -> None:
        """End a block, which nothing broke off if it is `whole`; a folder without any episode is removed."""
        assert self._writer is not None
        self._whole += whole
        if self._rows:
            self._writer.finish(self._rows, self._description())
            return
        self._writer.discard()
        del _OPEN[self.path.resolve()]

    def told(self) -> str:
        """How many episodes ended how, most frequent first."""
        counts = Counter(row.outcome for row in self._rows)
        return ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())

    def _description(self) -> dict[str, object]:
        suites = dict.fromkeys(task.benchmark for task in self._tasks.values())
        policies = {rules.policy: {"policy": rules.policy, "privileged": rules.privileged} for rules in self._rules}
        return {
            "schema_version": 1,
            "host": self._host,
            "suites": list(suites),
            "tasks": list(self._tasks),
            "policies": list(policies.values()),
            "protocol": {
                "name": "own loop",
                "wait_steps": sorted({rules.wait_steps for rules in self._rules}),
                "horizons": sorted({rules.horizon for rules in self._rules if rules.horizon}),
            },
            "versions": {"safevla-bench": __version__, **self._versions},
            "complete": self._whole == self._blocks,
            "volatile": dict(self._volatile),
        }
