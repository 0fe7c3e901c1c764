"""Rules of judging as one value: a library of specifications, a registry of tasks, and options.

A `Ruleset` is loaded once and passed as a whole to all code that judges. Every output names the ruleset's `Provenance`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

import msgspec

from safevla_bench.errors import RegistryError, RunError, SpecError, require_choice
from safevla_bench.judging.scores import IntervalMethod
from safevla_bench.signals.signal import RecordFields
from safevla_bench.specs import loader as specs_loader
from safevla_bench.specs.file_formats import BUILT_IN
from safevla_bench.specs.loader import extend_library, is_built_in, set_thresholds
from safevla_bench.specs.spec import Library, Spec
from safevla_bench.specs.table_reader import RuleFile
from safevla_bench.tasks import add_suite_names, check_suites, confined_reason, inactive_reason, loader
from safevla_bench.tasks.entries import Registry
from safevla_bench.tasks.reasons import CAPABILITIES, SOME_PHASES, write_reason
from safevla_bench.text import append_unit, count_noun, display_unit, format_compact
from safevla_bench.trajectory.batch import Batch
from safevla_bench.version import __version__

MissingFields = Literal["error", "deactivate"]
ApplicabilityMode = Literal["on", "off", "phased"]
# Sentences show only this many letters of a digest. scores.json and the report have the whole digest.
_SHOWN_DIGEST_LETTERS = 12


NOT_PHASED = "the paper's results are not judged phase by phase"


class NamedDigest(msgspec.Struct, frozen=True):
    """The name of a library or registry, and the sha256 of its content."""

    name: str
    digest: str

    @property
    def label(self) -> str:
        """The name, or `another NAME` if the built-in library with this name has different content."""
        is_another = self.name in BUILT_IN and specs_loader.load_library(self.name).digest != self.digest
        return f"another {self.name}" if is_another else self.name

    def __str__(self) -> str:
        # Return the label and the first digits of the digest, as in `default (1a2b3c4d5e6f)`.
        return f"{self.label} ({self.digest[:_SHOWN_DIGEST_LETTERS]})"


class LostEpisodes(msgspec.Struct, frozen=True, kw_only=True):
    """Episodes lost in damaged files: at least `episodes` of them, the known ids, and the places of the damage."""

    episodes: int = 0
    more: bool = False  # True if an unknown number of further episodes was lost
    named: tuple[str, ...] = ()
    places: tuple[str, ...] = msgspec.field(default=(), name="damage")

    def __str__(self) -> str:
        # Return the number of lost episodes in words. Return "" if no damage and no id of a lost episode is known.
        # `more` means that an unknown number of further episodes was lost.
        if not (self.places or self.named):
            return ""
        if self.more:
            return f"more than {self.episodes} episodes lost" if self.episodes else "an unknown number of episodes lost"
        return f"{count_noun(self.episodes, 'episode')} lost"


class NamedRules(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rules of judging by name and digest."""

    library: NamedDigest
    registry: NamedDigest
    capabilities: tuple[str, ...]
    missing: MissingFields
    applicability: ApplicabilityMode
    phases: str = ""
    """The sha256 of the tasks' components, which determine phases. Empty, and not in the JSON, without phases."""

    @property
    def rules(self) -> tuple[object, ...]:
        """All digests and options that can change a verdict."""
        # `phases` is a digest, too; "" if episodes are not judged phase by phase.
        digests = self.library.digest, self.registry.digest, self.phases
        return *digests, self.capabilities, self.missing, self.applicability


class Provenance(NamedRules, frozen=True, kw_only=True, omit_defaults=True):
    """The field `judged_by` of scores.json: the rules, this package's version, and the episodes that were left out."""

    skipped: tuple[str, ...]
    """A text for each invalid episode that was left out: what is invalid in the episode."""
    version: str
    lost: LostEpisodes | None = None
    """Episodes lost in damaged files; omitted from the JSON if no file is damaged."""
    intervals: IntervalMethod = "default"
    """Method for the confidence intervals of severities; omitted from the JSON if it is the default."""
    as_written: bool = False
    """True if scores were read from files and combined, without judging the records again."""

    def describe_rules(self, *, digests: bool = True) -> str:
        """Describe the rules. Omit options with default values."""
        # `str` of a library or registry gives the name with the digest; `label` is only the name.
        library, registry = (str(named) if digests else named.label for named in (self.library, self.registry))
        # Text that describes an option -> whether the option is set
        has_option = {
            "missing signals deactivate specifications": self.missing == "deactivate",
            "applicability off": self.applicability == "off",
            f"phase by phase ({self.phases[:_SHOWN_DIGEST_LETTERS]})": bool(self.phases),
            "the paper's bootstrap intervals": self.intervals == "paper",
        }
        capabilities = [f"capabilities {name}" for name in self.capabilities]
        options = [text for text, is_set in has_option.items() if is_set]
        return ", ".join([f"library {library}", f"registry {registry}", *capabilities, *options])

    def to_sentence(self, *, digests: bool = True) -> str:
        """Return the line that is shown below every table and gate. It names the rules, with or without digests."""
        sentence = f"Judged by safevla-bench {self.version}: {self.describe_rules(digests=digests)}."
        return f"Scores as written, not judged again. {sentence}" if self.as_written else sentence


class RulesetRecipe(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The arguments of `load_ruleset`, with the texts of all files, so that another machine can load the same rules."""

    library: str | RuleFile = "default"
    specs: tuple[RuleFile, ...] = ()
    registry: tuple[RuleFile, ...] = ()
    capabilities: tuple[str, ...] = ()
    missing: MissingFields = "error"
    applicability: ApplicabilityMode = "on"
    thresholds: tuple[str, ...] = ()
    host_registry: tuple[RuleFile, ...] = ()
    """Tags that hosts provide for their own tasks; run.json contains these tags, too."""

    @property
    def is_default(self) -> bool:
        """True if every field except `host_registry` has its default value."""
        # `host_registry` comes from simulators, not from options.
        return msgspec.structs.replace(self, host_registry=()) == RulesetRecipe()

    def describe(self) -> str:
        """Return the options that differ from the default, as on the command line, or "the default rules"."""
        # `specs` and `registry` are files given with `--rules`, and `thresholds` are texts such as `joint_torque=1.5`.
        options = [
            *([] if self.library == "default" else [f"--library {self.library}"]),
            *(f"--rules {file}" for file in (*self.specs, *self.registry)),
            *(f"--set capabilities={name}" for name in self.capabilities),
            *([] if self.missing == "error" else [f"--set missing={self.missing}"]),
            *([] if self.applicability == "on" else [f"--set applicability={self.applicability}"]),
            *(f"--set {change}" for change in self.thresholds),
        ]
        return " ".join(options) or "the default rules"

    def load(self) -> Ruleset:
        """Load the ruleset again from the stored texts.

        Raises the same errors as `load_ruleset`, `RunError` if the library is neither built in nor stored, and
        `RegistryError` if a host's tags redefine tasks of the built-in registry.
        """
        # `library` is the name of a built-in library, or a stored file with its text.
        if isinstance(self.library, str) and self.library not in BUILT_IN:
            raise RunError(
                f"the library {self.library!r} is not built in", remedy="Pass the library's file with --library."
            )
        if redefined := loader.load_registry(self.host_registry).list_redefined(loader.load_registry()):
            problem = f"the host's own tags redefine {redefined[0]} of the built-in registry"
            raise RegistryError(
                problem, remedy="Remove these tasks from the host's file; --rules FILE can replace tags."
            )
        loaded = load_ruleset(
            self.library,
            spec_files=self.specs,
            registry_files=(*self.host_registry, *self.registry),
            capabilities=self.capabilities,
            missing=self.missing,
            applicability=self.applicability,
            thresholds=self.thresholds,
        )
        # Keep this recipe, because the recipe of `loaded` does not separate the host's files from the user's files.
        return replace(loaded, recipe=self)


@dataclass(frozen=True)
class Ruleset:
    """Rules by which episodes are judged.

    `missing` says what happens if a record lacks fields that an active specification of the safe tier reads: `error`
    raises an error, `deactivate` makes the specification inactive. In other tiers, it always becomes inactive.
    `applicability="off"` is an ablation: it judges every specification whose fields are recorded, as if tasks had no
    tags. Actions that a task requires then count as violations. With `phased`, a specification that a component's tag
    makes inactive is still judged in the phases of components without such a tag (docs/explanation/phases.md).
    """

    library: Library
    registry: Registry
    capabilities: tuple[str, ...] = ()
    missing: MissingFields = "error"
    applicability: ApplicabilityMode = "on"
    registry_files: tuple[Path | RuleFile, ...] = ()
    intervals: IntervalMethod = "default"
    """Method for confidence intervals of severities. The default method is valid for any distribution on [0, 1]."""
    recipe: RulesetRecipe | None = field(default=None, compare=False)
    """The inputs of `load_ruleset`; None if the ruleset was constructed directly, or got another library or registry by
    `dataclasses.replace`."""
    loaded: tuple[Library, Registry] | None = field(default=None, compare=False, repr=False)
    """The library and the registry that `recipe` loads."""

    def __post_init__(self) -> None:
        # Raise `RunError` if the value of an option is not one of the option's choices.
        # Adapt the recipe to the new fields, because `dataclasses.replace` copies it.
        require_choice("missing", self.missing, get_args(MissingFields))
        require_choice("applicability", self.applicability, get_args(ApplicabilityMode))
        require_choice("intervals", self.intervals, get_args(IntervalMethod))
        if self.recipe is not None:
            library, registry = self.loaded or (None, None)
            options = {name: getattr(self, name) for name in ("capabilities", "missing", "applicability")}
            is_described = library is self.library and registry is self.registry
            recipe = msgspec.structs.replace(self.recipe, **options) if is_described else None
            object.__setattr__(self, "recipe", recipe)  # the class is frozen

    @property
    def is_ablation(self) -> bool:
        """True if applicability is off."""
        return self.applicability == "off"

    def tags(self, benchmark: str, task_id: str) -> frozenset[str]:
        """Return all tags of a task. Raises the same errors as `Registry.task_tags`."""
        # Tags say what a task involves, and decide which specifications apply.
        # `capabilities` are names of tag sets that replace the tag sets of the host.
        return self.registry.task_tags(benchmark, task_id, self.capabilities)

    def read_fields(self, batch: Batch) -> RecordFields:
        """Return the fields from which signals are derived, including the registry's torque limits of robots."""
        # `name_embodiments` adds the benchmark's robot to records that name neither a robot nor torque limits.
        return RecordFields(self.registry.name_embodiments(batch))

    def inactive_reasons(self, benchmark: str, task_id: str) -> dict[str, str]:
        """Map each spec id to the reason why the task's tags make it inactive, or "". Raises the errors of `tags`.

        If the specification would be active with the host's own capabilities, the reason begins with `CAPABILITIES`. If
        applicability is off, a specification is inactive only if its limits are for other suites.
        """
        # Warn of specifications that have limits for a suite that the registry lacks.
        check_suites(self.library, self.registry)
        if self.is_ablation:
            suite = self.registry.find_suite(benchmark)
            return {spec.spec_id: confined_reason(spec, suite) for spec in self.library.specs}
        tags = self.tags(benchmark, task_id)
        # The task's tags if the option `capabilities` did not replace the host's own capabilities
        host_tags = self.registry.task_tags(benchmark, task_id) if self.capabilities else tags
        suite, by_capabilities = self.registry.find_suite(benchmark), write_reason(CAPABILITIES, *self.capabilities)
        reasons = {}
        for spec in self.library.specs:
            reason = inactive_reason(spec, tags, suite)
            is_by_capabilities = reason and not inactive_reason(spec, host_tags, suite)
            reasons[spec.spec_id] = f"{by_capabilities};{reason}" if is_by_capabilities else reason
        return reasons

    def barring_components(self, benchmark: str, task_id: str) -> Mapping[str, frozenset[int]]:
        """Find the specifications that are judged only in some phases of a composite task. Map each spec id to the
        components (indices) whose tags bar the spec. Return {} if phases are not judged. Raises the errors of `tags`.
        """
        if self.applicability != "phased":
            return {}
        entry = self.registry.find_entry(benchmark, task_id)
        if not entry.components:
            return {}
        tags, suite = self.tags(benchmark, task_id), self.registry.find_suite(benchmark)
        # Tags for capabilities and objects belong to the whole task, so add them to the tags of every component.
        shared_tags = (tags - entry.tags) | entry.object_tags.keys()
        tags_by_component = [shared_tags | component.tags for component in entry.components]
        barring_by_spec = {}
        for spec in self.library.specs:
            # Phases matter only for specifications that would be active without `invalid_if_any`.
            invalid = set(spec.invalid_if_any)
            if invalid & tags and not inactive_reason(replace(spec, invalid_if_any=()), tags, suite=suite):
                barring = frozenset(k for k, own_tags in enumerate(tags_by_component) if invalid & own_tags)
                # If all components bar the specification, it applies in no phase.
                if len(barring) < len(entry.components):
                    barring_by_spec[spec.spec_id] = barring
        return barring_by_spec

    def reasons_of_phases(self, benchmark: str, task_id: str) -> dict[str, str]:
        """Find the specifications that are judged only in some phases of a task. Map each spec id to the reason why
        other phases are excluded. Raises the errors of `tags`.
        """
        barring = self.barring_components(benchmark, task_id)
        components = self.registry.find_entry(benchmark, task_id).components if barring else ()
        # For each specification: the distinct templates (kinds) of the components that bar it
        templates_by_spec = {
            spec_id: dict.fromkeys(components[k].template for k in sorted(barring_components))
            for spec_id, barring_components in barring.items()
        }
        return {spec_id: write_reason(SOME_PHASES, *templates) for spec_id, templates in templates_by_spec.items()}

    def describe_changes(self) -> str:
        """Return the options by which limits differ from the defaults, such as `--set joint_torque=1.5`. Return "" if
        there are none, or if the ruleset was constructed directly.
        """
        if self.recipe is None:
            return ""
        # Keep only the options that change limits.
        recipe = RulesetRecipe(library=self.recipe.library, specs=self.recipe.specs, thresholds=self.recipe.thresholds)
        return "" if recipe.is_default else recipe.describe()

    def own_specs(self) -> list[Spec]:
        """Return the specifications that the built-in library of these rules lacks or, if the rules use a library file,
        those that the built-in library `default` lacks. Return [] if the ruleset was constructed directly.
        """
        # A ruleset that was constructed directly has no recipe, the inputs of `load_ruleset`.
        if self.recipe is None:
            return []
        return [spec for spec in self.library.specs if spec not in self._built_in_specs()]

    def changed_specs(self) -> list[Spec]:
        """Return `own_specs`. If these rules use a built-in library that contains all of `default`, put this library's
        other specifications first.
        """
        default_specs, built_in_specs = specs_loader.load_library().specs, self._built_in_specs()
        # The specifications that are not in the built-in library
        own_specs = self.own_specs()
        if self.recipe is None or not all(spec in built_in_specs for spec in default_specs):
            return own_specs
        added_specs = [spec for spec in self.library.specs if spec in built_in_specs and spec not in default_specs]
        return [*added_specs, *own_specs]

    def describe_moved_limits(self, spec: Spec) -> str:
        """Describe how `--set` changed limits of `spec`: `limit 5 to 20 mm, severe 10 to 50 mm`; "" if unchanged."""
        # `--set` adds `@` and the new limit to the id of a specification.
        base_id, at_sign, _ = spec.spec_id.partition("@")
        base_by_id = {other.spec_id: other for other in self._built_in_specs()}
        if not at_sign or base_id not in base_by_id:
            return ""
        base = base_by_id[base_id]
        # `factor` converts values from the specification's unit to the displayed unit.
        unit, factor = display_unit(spec.unit, spec.threshold)
        old_and_new = {"limit": (base.threshold, spec.threshold), "severe": (base.severe, spec.severe)}
        return ", ".join(
            f"{name} {format_compact(factor * old)} to {append_unit(format_compact(factor * new), unit)}"
            for name, (old, new) in old_and_new.items()
            if old is not None and new is not None
        )

    def _built_in_specs(self) -> Sequence[Spec]:
        # Return the specifications of the built-in library that these rules use, or of `default` if they use a file.
        name = self.recipe.library if self.recipe is not None and isinstance(self.recipe.library, str) else "default"
        return specs_loader.load_library(name).specs

    def load_other_library(self, name: str) -> Library:
        """Load another built-in library, and add the specifications and limits of these rules to it.

        Raises:
            RunError: the ruleset was constructed directly.
            SpecError: an added specification or limit does not suit the other library. For instance, a changed limit
            needs the same unit in the two libraries.
        """
        if self.recipe is None:
            problem = "the specifications and limits of a ruleset that was constructed directly are not known"
            raise RunError(problem, remedy="Use `load_ruleset`.")
        other = msgspec.structs.replace(self.recipe, library=name).load().library
        # The unit of each specification of these rules. The key is the id up to `@`, without the changed limit.
        units = {spec.spec_id.partition("@")[0]: spec.unit for spec in self.library}
        for spec in other:
            base_id, at_sign, _ = spec.spec_id.partition("@")
            if at_sign and units.get(base_id, spec.unit) != spec.unit:
                its_units = f"`{units[base_id]}` in {self.library.name}, but `{spec.unit}` in {name}"
                problem = f"the new limit of {base_id} does not suit both libraries: its unit is {its_units}"
                raise SpecError(problem, remedy="leave out the change of this limit")
        return other

    def require_tags(self) -> None:
        """Raise `RunError` if applicability is off or phased. A monitor needs tags, and cannot know phases."""
        if self.is_ablation:
            raise RunError("a monitor needs the tasks' tags", remedy="Keep applicability on to stop on violations.")
        why = "monitors, filters and --stop-on-violation judge during an episode, but phases are known only at its end"
        # Raises an error if applicability is phased.
        self.require_whole(why, "Leave the option out here, and pass it when you judge the records.")

    def require_whole(self, why: str, remedy: str) -> None:
        """Raise a `RunError` that contains the reason `why` if these rules judge phase by phase."""
        if self.applicability == "phased":
            raise RunError(f"--set applicability=phased is not possible here: {why}", remedy=remedy)

    def with_host_registry(self, files: Sequence[RuleFile]) -> Ruleset:
        """Reload the rules with the tags in `files`, which hosts provide. Return `self` if no file is new, or if the
        ruleset was constructed directly. Raises `RegistryError` if new tags contradict known tags, and the errors of
        `RulesetRecipe.load`.
        """
        recipe = self.recipe
        if recipe is None:
            return self
        known_texts = {file.text for file in (*recipe.host_registry, *recipe.registry)}
        new_files = {file.text: file for file in files if file.text not in known_texts}  # without duplicates
        if not new_files:
            return self
        extended = msgspec.structs.replace(recipe, host_registry=(*recipe.host_registry, *new_files.values()))
        # The recipe does not store `intervals`.
        return replace(extended.load(), intervals=self.intervals)

    def provenance(self, skipped: Sequence[str] = (), lost: LostEpisodes | None = None) -> Provenance:
        """Return the names and digests of these rules, and the left-out episodes that `skipped` and `lost` describe."""
        registry_name = "+".join(["built-in", *(path.stem for path in self.registry_files)])
        # `skipped` has a text for each invalid episode, and `lost` counts episodes lost in damaged files.
        return Provenance(
            library=NamedDigest(self.library.name, self.library.digest),
            registry=NamedDigest(registry_name, self.registry.digest),
            capabilities=self.capabilities,
            missing=self.missing,
            applicability=self.applicability,
            skipped=tuple(skipped),
            version=__version__,
            lost=lost,
            intervals=self.intervals,
            phases=self.registry.phases_digest if self.applicability == "phased" else "",
        )


def load_ruleset(
    library: str | Path | RuleFile = "default",
    *,
    spec_files: Sequence[Path | RuleFile] = (),
    registry_files: Sequence[Path | RuleFile] = (),
    capabilities: Sequence[str] = (),
    missing: MissingFields = "error",
    applicability: ApplicabilityMode = "on",
    intervals: IntervalMethod = "default",
    thresholds: Sequence[str] = (),
) -> Ruleset:
    """Load a library and a registry and combine them with the options of judging.

    Args:
        library: the name of a built-in library, such as `default` or `paper-text`, or a file.
        spec_files: files whose specifications are added to the library.
        registry_files: files whose tasks, templates and benchmarks are added to the built-in registry.
        capabilities: names of capability sets that replace the host's sets; judging a task checks the names.
        missing: `error` raises if a record lacks a field that a scored specification needs, `deactivate` leaves the
            specification out of that episode.
        applicability: `off` judges as if tasks had no tags; `phased` judges composite tasks phase by phase.
        intervals: method for intervals of severities: `default`, or `paper` for the paper's bootstrap.
        thresholds: changes of thresholds, each as `SPEC=VALUE` with an optional unit: `joint_torque=1.5`.

    Raises:
        RunError: an option has an unknown value, or an argument is a text instead of a list.
        SpecError: a library or file of specifications is missing or contradicts itself, or a threshold cannot be set.
        RegistryError: a registry file cannot be read, contradicts itself, or contradicts another registry file.
    """
    lists = {"spec_files": spec_files, "registry_files": registry_files, "thresholds": thresholds}
    for name, value in {**lists, "capabilities": capabilities}.items():
        if isinstance(value, str | Path):
            raise RunError(f"{name} is a single text: {str(value)!r}", remedy=f"Pass a list: {name}=[...].")
    combined_library = specs_loader.load_library(library)
    for path in spec_files:
        combined_library = extend_library(combined_library, path)
    combined_library = set_thresholds(combined_library, thresholds)
    # The recipe has all texts and options except `intervals`, so that the same rules can be loaded without the files.
    recipe = RulesetRecipe(
        # Intern the name, because msgspec omits a field only if value and default value are the same object.
        library=sys.intern(str(library)) if is_built_in(library) else RuleFile.read(library),
        specs=tuple(map(RuleFile.read, spec_files)),
        registry=tuple(map(RuleFile.read, registry_files)),
        capabilities=tuple(capabilities),
        missing=missing,
        applicability=applicability,
        thresholds=tuple(thresholds),
    )
    combined_registry = loader.load_registry(tuple(registry_files))
    combined_library = add_suite_names(combined_library, combined_registry)
    return Ruleset(
        library=combined_library,
        registry=combined_registry,
        capabilities=tuple(capabilities),
        missing=missing,
        applicability=applicability,
        registry_files=tuple(registry_files),
        intervals=intervals,
        recipe=recipe,
        loaded=(combined_library, combined_registry),
    )
