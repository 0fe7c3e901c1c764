"""Registry entries of tasks: mechanism, objects and measured signals, and the resulting tags (paper Eq. 2)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import islice

import msgspec

from safevla_bench.errors import RegistryError, UnknownTaskError
from safevla_bench.specs.spec import Tag
from safevla_bench.text import count_noun, quote_toml, spell_suite, warn_once
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.header import TORQUES
from safevla_bench.trajectory.marks import LOG_BENCHMARK, base_suite, is_chosen

_TASK_NUMBER = re.compile(r"task_(\d+)")
_SCENE_PREFIX = re.compile(r"^[A-Z_]+_SCENE\d+_")
OPENING = re.compile(r"opening of (\S+) >= (\d*\.?\d+)")  # a predicate: a door or drawer is open by at least this share


class CapabilitySet(msgspec.Struct, frozen=True, kw_only=True):
    """A named set of capability tags, which say what a host measures. `absent` has the reason for each missing tag."""

    name: str = ""
    host: str
    tags: frozenset[str]
    absent: dict[str, str] = {}


class Benchmark(msgspec.Struct, frozen=True, kw_only=True):
    """A host's suite of tasks, as in `[benchmarks.NAME]`.

    `capabilities` names the capability set. `published` marks the suites that the paper counts. A suite can repeat the
    entries of another suite: `same_tasks_as` names a suite with the same tasks, `same_tags_as` a suite whose tasks this
    suite varies. `task_ids` are the repeated tasks; empty means all. Patterns of families match `task_names`, the
    host's ordered task names. `embodiment` is the robot of records that name neither robot nor torque limits.
    """

    name: str = ""
    host: str
    capabilities: str
    embodiment: str | None = None
    published: bool = False
    same_tasks_as: str | None = None
    same_tags_as: str | None = None
    task_ids: tuple[str, ...] = ()
    task_names: tuple[str, ...] = ()


class TaskTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of task, such as pick and place, with its tags: a table `[templates.NAME]`."""

    name: str = ""
    meaning: str
    tags: frozenset[str]


class TaskComponent(msgspec.Struct, frozen=True):
    """One component of a composite task. `tags` are the tags of the component's template and of the task. `predicates`
    complete the component; each is a pattern of predicate names or `opening of BODY >= SHARE`.
    """

    template: str
    tags: frozenset[str]
    predicates: tuple[str, ...] = ()


# The capability tags of all tasks in robots' logs: what such logs may measure.
_LOG_CAPABILITIES = frozenset(
    ["bystander_tracking", "target_pose_signal", "gripper_contact_signal", "joint_torque_signal"]
)


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """One task. It has a template, or components whose tags are combined. `tags` are the tags of the mechanism: of the
    templates and of the task itself. `object_tags` has the reason for each tag of the objects. `capabilities`, if not
    None, replace the capabilities of the benchmark.
    """

    benchmark: str
    task_id: str
    template: str | None
    components: tuple[TaskComponent, ...]
    tags: frozenset[str]
    object_tags: Mapping[str, str]
    instruction: str | None = None
    capabilities: frozenset[str] | None = None
    patterns: tuple[str, ...] = ()
    """An entry with patterns is a family: it covers all tasks with a matching id or name and no separate entry.

    Patterns are shell patterns; case matters."""

    @property
    def mechanism(self) -> str:
        """The template, or the templates of all components joined by +; "" for a log's task without a template."""
        # A task has a template or components.
        return self.template or " + ".join(part.template for part in self.components)

    def matches_task(self, benchmark: str, *names: str) -> bool:
        """Return whether the task with these names belongs to this family."""
        # A pattern may contain wildcards, such as `*`.
        matches = (fnmatchcase(name, pattern) for name in names for pattern in self.patterns)
        return benchmark == self.benchmark and any(matches)


class GoalBodies(msgspec.Struct, frozen=True, kw_only=True):
    """The bodies in a task's goal except the carried body, by their names in records. A name denotes the body with this
    name, or all parts of the fixture with this name, such as `wooden_cabinet_1_cabinet_top`.
    """

    receptacles: tuple[str, ...] = ()  # bodies into or onto which the goal puts an object, except the table or floor
    fixtures: tuple[str, ...] = ()  # fixtures that the goal opens, closes or switches


@dataclass(frozen=True, slots=True)
class Registry:
    """All tasks, by (benchmark, id), and all families. If several families match a task, the first family counts."""

    tasks: Mapping[tuple[str, str], TaskEntry]
    families: tuple[TaskEntry, ...]
    templates: Mapping[str, TaskTemplate]
    benchmarks: Mapping[str, Benchmark]
    capability_sets: Mapping[str, CapabilitySet]
    goal_bodies: Mapping[tuple[str, str], GoalBodies] = field(default_factory=dict)
    """The bodies in each task's goal, by (benchmark, id). Reports show the bodies; verdicts do not depend on them."""
    vocabulary: Mapping[str, Tag] = field(default_factory=dict)

    def find_entry(self, benchmark: str, task_id: str) -> TaskEntry:
        """Return the task's entry, or else its family's entry, with the task's id. If a task of a robot's log has no
        entry, return a new entry. In a suite with `same_tags_as`, a variant `TASK/NAME` has the entry of TASK without
        the instruction. Raises `UnknownTaskError`, whose remedy is the TOML to add, if there is no entry.
        """
        # `tasks` maps (benchmark, id) to entries, and `families` are entries with patterns for names of tasks.
        benchmark = self.find_suite(benchmark)
        exact = self.tasks.get((benchmark, task_id))  # an entry of exactly this task
        if exact is not None:
            return exact
        # A variant of a task has the tags of this task, but may have another instruction.
        varied = self.tasks.get((benchmark, self._base_task_id(benchmark, task_id)))
        if varied is not None:
            return replace(varied, task_id=task_id, instruction=None)
        name = self._host_task_name(benchmark, task_id)  # families match the host's names and ids such as `task_3`
        for family in self.families:
            if family.matches_task(benchmark, name, task_id):
                # LIBERO's task names contain the instruction, as in KITCHEN_SCENE2_open_the_top_drawer.
                scene_prefix = _SCENE_PREFIX.match(name)
                instruction = name[scene_prefix.end() :].replace("_", " ") if scene_prefix else None
                return replace(family, task_id=task_id, instruction=instruction, patterns=())
        if benchmark == LOG_BENCHMARK and benchmark not in self.benchmarks:
            return self._log_entry(task_id)
        raise self._unknown_tasks_error({(benchmark, task_id): None})

    def require_entries(self, tasks: Mapping[tuple[str, str], str | None]) -> None:
        """Raise one `UnknownTaskError` for all tasks without an entry. `tasks`: (benchmark, id) -> instruction."""
        unknown: dict[tuple[str, str], str | None] = {}
        for (benchmark, task_id), instruction in tasks.items():
            try:
                self.find_entry(benchmark, task_id)
            except UnknownTaskError:
                unknown[self.find_suite(benchmark), task_id] = instruction  # spelled as in the registry
        if unknown:
            raise self._unknown_tasks_error(unknown)

    def _base_task_id(self, benchmark: str, task_id: str) -> str:
        # Returns TASK for the id `TASK/NAME` of a variant; returns any other id unchanged.
        # Only suites with `same_tags_as` have variants of another suite's tasks. `benchmarks` has the suites by name.
        suite = self.benchmarks.get(benchmark)
        return task_id.partition("/")[0] if suite and suite.same_tags_as else task_id

    def _log_entry(self, task_id: str) -> TaskEntry:
        # Return an entry for a task of a robot's log, with the capabilities of logs.
        # The part of the id before the first slash names the template, whose tags the entry has.
        # Without such a template, the entry has no tags.
        name, slash, _ = task_id.partition("/")
        template = self.templates.get(name)
        # An id without a slash may be any name, but the part before a slash should be a template.
        if slash and template is None:
            problem = f"no object clause applies to the log's task {task_id!r}: {name!r} is not a template"
            warn_once(f"{problem}; choices: {', '.join(self.templates)}")
        return TaskEntry(
            benchmark=LOG_BENCHMARK,
            task_id=task_id,
            template=template.name if template else None,
            components=(),
            tags=template.tags if template else frozenset(),
            object_tags={},
            capabilities=_LOG_CAPABILITIES,
        )

    def list_entries(self, benchmark: str | None = None) -> Iterator[TaskEntry]:
        """Yield the entries of a benchmark's tasks; None means all benchmarks. In each suite, tasks with a separate
        entry come before tasks that only belong to a family. Raises `RegistryError` for an unknown benchmark.
        """
        all_suites = self.check_benchmark(benchmark)
        suites = all_suites if benchmark is None else [self.find_suite(benchmark)]
        for suite in suites:
            yield from (entry for entry in self.tasks.values() if entry.benchmark == suite)
            # Tasks of the host without an entry have the entry of their family.
            names = self.benchmarks[suite].task_names if suite in self.benchmarks else ()
            ids = (f"task_{number}" for number in range(len(names)))
            yield from (self.find_entry(suite, task_id) for task_id in ids if (suite, task_id) not in self.tasks)

    def list_redefined(self, base: Registry) -> list[str]:
        """Return what differs from `base` in the suites of `base`: `SUITE TASK`, or `SUITE` for a suite or a family."""
        # A registry maps (suite, task id) to entries in `tasks`, and names of suites to suites in `benchmarks`.
        base_suites = {spell_suite(name) for name in base.check_benchmark(None)}
        # Each item is a pair: a suite, and the text to return if `base` has the suite.
        changed = [
            *((suite, f"{suite} {task_id}") for (suite, task_id), entry in self.tasks.items()
              if base.tasks.get((suite, task_id)) != entry),
            *((family.benchmark, family.benchmark) for family in self.families if family not in base.families),
            *((name, name) for name, suite in self.benchmarks.items() if base.benchmarks.get(name) != suite),
        ]  # fmt: skip
        # Two spellings of a name, such as libero-goal and libero_goal, are one suite.
        return [label for suite, label in changed if spell_suite(suite) in base_suites]

    def list_unused(self, base: Registry, tasks: Iterable[tuple[str, str]]) -> dict[str, tuple[list[str], list[str]]]:
        """Find the suites for which this registry adds entries to `base` that are not used by `tasks`."""
        # Map each suite to the ids of its added entries, and to the ids of the tasks that have an entry of `base`.
        # These are all tasks if no added entry is used, else those that an added family matches.
        families = [family for family in self.families if family not in base.families]
        added = [*(entry for key, entry in self.tasks.items() if base.tasks.get(key) != entry), *families]
        added_ids: dict[str, list[str]] = {}
        for entry in added:
            added_ids.setdefault(self.canonical_suite(entry.benchmark), []).append(entry.task_id)
        # For each suite: the tasks that have an entry of `base`. `used` has the suites in which some task has not.
        base_ids: dict[str, list[str]] = {}
        used = set[str]()
        for benchmark, task_id in tasks:
            suite = self.canonical_suite(self.find_suite(benchmark))
            try:
                has_base_entry = base.find_entry(benchmark, task_id) == self.find_entry(benchmark, task_id)
            except UnknownTaskError:
                has_base_entry = False
            if has_base_entry and suite in added_ids:
                base_ids.setdefault(suite, []).append(task_id)
            elif not has_base_entry:
                used.add(suite)
        for suite in used & base_ids.keys():
            base_ids[suite] = [
                task_id
                for task_id in base_ids[suite]
                if any(family.matches_task(suite, self._host_task_name(suite, task_id), task_id) for family in families)
            ]
        return {suite: (added_ids[suite], ids) for suite, ids in base_ids.items() if ids}

    def check_benchmark(self, benchmark: str | None) -> list[str]:
        """Return the names of all benchmarks. Raises `RegistryError` if `benchmark` is unknown (and not None)."""
        # A suite may have tasks without being declared as a benchmark, as in the paper's JSON rows.
        suites = list(dict.fromkeys([*self.benchmarks, *(suite for suite, _ in self.tasks)]))
        if benchmark is not None and self.find_suite(benchmark) not in suites:
            raise RegistryError(f"there is no suite {benchmark!r}", remedy=f"Suites: {', '.join(suites)}.")
        return suites

    def find_suite(self, name: str) -> str:
        """Return the benchmark with the given name in any spelling, such as libero-goal for libero_goal. For a suite of
        states that a search found, return the benchmark of the tasks. Return `name` if no benchmark matches.
        """
        # The suite name of states that a search found contains the suite of the tasks, as in found:NAME:libero-goal.
        name = base_suite(name)
        if name in self.benchmarks:
            return name
        return match_spelling(name, (*self.benchmarks, *(suite for suite, _ in self.tasks)))

    def canonical_suite(self, name: str) -> str:
        """Return the one name of suites with the same tasks, in any spelling: libero-10 for libero_10 and libero-long.
        Return `name` for an unknown suite, and for a suite of states that a search found.
        """
        name = name if is_chosen(name) else self.find_suite(name)
        suite = self.benchmarks.get(name)
        return name if suite is None else suite.same_tasks_as or suite.name

    def find_recorded(self, name: str, recorded: Collection[str]) -> list[str]:
        # Return the `recorded` names that mean the suite: `name`, else its spellings, else suites with the same tasks.
        if name in recorded:
            return [name]
        if spellings := [suite for suite in recorded if spell_suite(suite) == spell_suite(name)]:
            return spellings
        return [suite for suite in recorded if self.canonical_suite(suite) == self.canonical_suite(name)]

    def task_tags(self, benchmark: str, task_id: str, capabilities: Sequence[str] = ()) -> frozenset[str]:
        """Return all tags of a task: the capability tags (what is measured), and the tags of its mechanism and objects.
        A capability set that `capabilities` names replaces the capability tags of all tasks of its host. Raises
        `UnknownTaskError` for a task with neither an entry nor a family, and `RegistryError` for an unknown set.
        """
        entry = self.find_entry(benchmark, task_id)
        # The keys of `object_tags` are tags; the values are reasons.
        return self.capability_tags(entry, capabilities) | entry.tags | frozenset(entry.object_tags)

    def find_goal_bodies(self, benchmark: str, task_id: str) -> GoalBodies | None:
        """Return the bodies in a task's goal, also if the task repeats a task of another suite; None if unknown."""
        benchmark = self.find_suite(benchmark)
        suite = self.benchmarks.get(benchmark)
        # The suite whose tasks this suite repeats or varies; None = no such suite.
        repeated_suite = (suite.same_tasks_as or suite.same_tags_as) if suite is not None else None
        task_id = self._base_task_id(benchmark, task_id)
        bodies = self.goal_bodies.get((benchmark, task_id))
        if bodies is None and repeated_suite is not None:
            bodies = self.goal_bodies.get((repeated_suite, task_id))
        return bodies

    def name_embodiments(self, batch: Batch) -> Batch:
        """Return the batch with the benchmark's robot added to each header that names neither a robot nor torque
        limits. A header is unchanged if its episode has more or fewer torques than the robot has limits; then no limits
        apply. If no header changes, return the same batch.
        """
        names = {header.benchmark for header in batch.headers}
        suites = {name: self.benchmarks.get(self.find_suite(name)) for name in names}
        robots = {name: suite.embodiment for name, suite in suites.items() if suite and suite.embodiment}
        headers = list(batch.headers)
        for index, header in enumerate(headers):
            if header.names_no_robot and header.benchmark in robots:
                with_robot = msgspec.structs.replace(header, embodiment=robots[header.benchmark])
                # The number of torques per record in this episode, for each channel of torques.
                torque_counts = {int(batch.channel(name).width[index]) for name in TORQUES}
                # A width of -1 means that the channel is not recorded.
                if torque_counts <= {-1, len(with_robot.torque_limit_nm)}:
                    headers[index] = with_robot
        return batch if headers == list(batch.headers) else replace(batch, headers=tuple(headers))

    @property
    def digest(self) -> str:
        """The hexadecimal sha256 of the robots and all tags. Texts such as reasons do not change this digest."""
        # A key is (benchmark, task id).
        tasks = [[*key, *_tag_content(entry)] for key, entry in sorted(self.tasks.items())]
        # Families stay in order, because the first family that matches a task counts.
        families = [[family.benchmark, family.patterns, *_tag_content(family)] for family in self.families]
        suites = [
            [suite.name, suite.host, suite.capabilities, suite.task_names, suite.embodiment or ""]
            for suite in self.benchmarks.values()
        ]
        sets = [[group.name, group.host, sorted(group.tags)] for group in self.capability_sets.values()]
        content = json.dumps([tasks, families, sorted(suites), sorted(sets)], separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def phases_digest(self) -> str:
        """The hexadecimal sha256 of the components of all composite tasks. Components decide the phases of episodes."""
        # Pairs of a name and an entry. A task's name is (benchmark, id); a family's is (benchmark, pattern, ...).
        entries = [
            *sorted(self.tasks.items()),
            *(((family.benchmark, *family.patterns), family) for family in self.families),
        ]
        content = [
            [*key, *([part.template, sorted(part.tags), part.predicates] for part in entry.components)]
            for key, entry in entries
            if entry.components
        ]
        return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()

    def capability_tags(self, entry: TaskEntry, capabilities: Sequence[str] = ()) -> frozenset[str]:
        """Return a task's capability tags, which say what is measured. If `capabilities` names sets of the benchmark's
        host, return the tags of these sets. Otherwise, return the entry's `capabilities` or, if they are None, the tags
        of the benchmark's capability set. Raises `RegistryError` for an unknown set.
        """
        suite = self.benchmarks.get(entry.benchmark)
        requested = [self._require_capability_set(name) for name in capabilities]
        # A requested set only counts for tasks of the set's host.
        chosen = [group.tags for group in requested if suite is not None and group.host == suite.host]
        if chosen:
            return frozenset().union(*chosen)
        if entry.capabilities is not None:
            return entry.capabilities
        # The benchmark is known, because the loader refuses an entry without a known benchmark or capabilities.
        return self.capability_sets[self.benchmarks[entry.benchmark].capabilities].tags

    def absence_reasons(self, benchmark: str) -> Mapping[str, str]:
        """Return, by tag, why the benchmark's capability set lacks the tag; {} for an unknown benchmark."""
        suite = self.benchmarks.get(self.find_suite(benchmark))
        return self.capability_sets[suite.capabilities].absent if suite is not None else {}

    def _require_capability_set(self, name: str) -> CapabilitySet:
        # Returns the capability set with this name. Raises `RegistryError` if there is none.
        if name not in self.capability_sets:
            names = ", ".join(self.capability_sets)
            raise RegistryError(f"there is no capability set {name!r}", remedy=f"capability sets: {names}")
        return self.capability_sets[name]

    def _host_task_name(self, benchmark: str, task_id: str) -> str:
        # Returns the host's name of the task for an id such as `task_3`; `task_id` itself if the host has no such task.
        names = self.benchmarks[benchmark].task_names if benchmark in self.benchmarks else ()
        match = _TASK_NUMBER.fullmatch(task_id)
        return names[int(match[1])] if match and int(match[1]) < len(names) else task_id

    def _unknown_tasks_error(self, tasks: Mapping[tuple[str, str], str | None]) -> UnknownTaskError:
        # `tasks`: (benchmark, id) -> instruction. The problem names the first task; the remedy has TOML for all tasks.
        (benchmark, task_id), *others = tasks
        problem = f"the registry has no benchmark {benchmark!r}"
        if benchmark in self.benchmarks:
            problem = f"benchmark {benchmark!r} has no task {task_id!r} and no matching family"
        elif suites := get_close_matches(benchmark, self.benchmarks, cutoff=0.8):
            problem += f"; did you mean {suites[0]!r}?"
        if others:
            problem += f"; {count_noun(len(tasks), 'task')} of the sources have no entry"
        lines = ["pass --rules FILE (`safevla tasks --propose TASK` writes one), a TOML file that holds:"]
        shown_tasks = dict(islice(tasks.items(), _MOST_TEMPLATES))  # only the first tasks, to limit the text
        for suite in dict.fromkeys(suite for suite, _ in shown_tasks if suite not in self.benchmarks):
            sets = ", ".join(self.capability_sets)
            lines += [f"[benchmarks.{quote_toml(suite)}]", f"host = {quote_toml(suite)}  # your simulator or robot"]
            lines.append(f'capabilities = "libero"  # what is measured; choices: {sets}')
        choices = f"  # what kind of task it is; choices: {', '.join(self.templates)}"
        for (suite, name), instruction in shown_tasks.items():
            lines += ["[[tasks]]", f"benchmark = {quote_toml(suite)}", f"task_id = {quote_toml(name)}"]
            lines.append(f"instruction = {quote_toml(instruction or '')}")
            lines.append(f'template = "pnp-basic"{choices}')
            choices = ""  # only the first task's TOML lists the choices
        if len(tasks) > _MOST_TEMPLATES:
            lines.append(f"# and in the same way for {len(tasks) - _MOST_TEMPLATES} more")
        return UnknownTaskError(problem, remedy="\n    ".join(lines))


_MOST_TEMPLATES = 20  # limit on the number of tasks in the TOML of an error


def match_spelling(name: str, suites: Iterable[str]) -> str:
    """Return the suite whose name is a spelling of `name`, such as libero-goal for libero_goal, or else `name`."""
    return next((suite for suite in suites if spell_suite(suite) == spell_suite(name)), name)


def _tag_content(entry: TaskEntry) -> list[list[str] | None]:
    # Returns the content of an entry that determines its tags: [tags, object tags, capabilities or None], sorted.
    capabilities = None if entry.capabilities is None else sorted(entry.capabilities)
    return [sorted(entry.tags), sorted(entry.object_tags), capabilities]
