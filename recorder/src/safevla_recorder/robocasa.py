"""A RoboCasa kitchen that a user's script made: its hooks, its task, and the seed of each reset.

A goal (`robocasa_goals.json`) is a verb, followed by names of objects in the episode, or by names of the task's
attributes that contain fixtures. With the verbs `in`, `on` and `under`, the first object is the target. With `at`, the
goal is about the robot's position. With any other verb, the goal moves a fixture.
"""

from __future__ import annotations

import json
import re
import sys
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping, Sequence, Tuple

import numpy as np
from numpy.typing import ArrayLike

from safevla_recorder import attachment
from safevla_recorder.episode import ABSOLUTE, Action
from safevla_recorder.errors import HostError
from safevla_recorder.identity import read_identity
from safevla_recorder.mujoco import recorder
from safevla_recorder.mujoco.hook import Undo, hook_call, undo_all

if TYPE_CHECKING:
    from robocasa.environments.kitchen.kitchen import Kitchen

    import mujoco

Goal = Tuple[str, ...]
AT = "at"
_PUTS = ("in", "on", "under")
_OBJECTS_FOLDER = "/objects/"
BENCHMARK = "robocasa-365"
EMBODIMENT = "PandaOmron"
ASSETS_ENTRY, OFFICIAL, STANDIN = "robocasa-assets", "official", "stand-in"
STANDIN_MARK = "standin_assets"
_README = "README.txt"
_PACKAGES = ("mujoco", "praxis-robosuite", "robosuite", "praxis-robocasa", "robocasa", "numpy")
_GRIPPER_INDEX, _MODE_INDEX = 6, 11  # indices in an action: command of the gripper, choice of arm or base
_SEED_LIMIT = 2**63  # a seed must be below this number
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# Names of lists in RoboCasa's description of an episode. Their order differs between processes, but does not matter.
# RoboCasa 1.0.0 fills the lists from a Python set (`models/objects/kitchen_objects.py`, line 2962).
_UNORDERED = frozenset({"groups_containing_sampled_obj"})
DRAWING_OPTIONS = (
    "layout_and_style_ids", "obj_instance_split", "obj_registries", "generative_textures", "use_distractors",
    "randomize_cameras", "clutter_mode", "enable_fixtures", "update_fxtr_cfg_dict",
    "robot_spawn_deviation_pos_x", "robot_spawn_deviation_pos_y", "robot_spawn_deviation_rot",
)  # fmt: skip
"""Options of a `Kitchen` that affect the random draws of a reset. Each is also an attribute of the kitchen."""


def find_robocasa(env: object, goal: Sequence[str] | None = None) -> RecordableKitchen | None:
    """Return the RoboCasa kitchen in `env`, perhaps inside wrappers; None without a kitchen.

    `goal` is the task's success condition, in the format of `robocasa_goals.json`; it replaces the known goal. Raises
    `HostError` if the kitchen has a wrong robot, or if the task's goal is not known.
    """
    # A script that has not imported this module has no kitchen. `Kitchen` is the base class of RoboCasa's environments.
    module = sys.modules.get("robocasa.environments.kitchen.kitchen")
    kitchen = None if module is None else attachment.find_layer(env, module.Kitchen)
    return None if kitchen is None else RecordableKitchen(kitchen, goal)


class RecordableKitchen(attachment.RecordableEnv):
    """A `Kitchen` whose task has a known goal. Its model may not exist yet, because each reset makes a new one."""

    host = "robocasa"
    embodiment = EMBODIMENT
    wait_steps = 0  # RoboCasa's reset includes the settling
    action_size = 12

    def __init__(self, kitchen: Any, goal: Sequence[str] | None = None) -> None:
        """Read the kitchen's task, the task's goal, and the versions.

        Raises `HostError` if the kitchen's robot is not supported, or if the goal is not known.
        """
        # `goal` is a verb and names, such as ("in", "obj", "container"); None = the task's known goal.
        _require_robot(kitchen)
        name = type(kitchen).__name__
        super().__init__(kitchen, attachment.TaskLabel(BENCHMARK, name, name), installed_versions())
        self._goal = _find_goal(name, goal)
        # None = there is no array of initial states; the last two arguments name RoboCasa's package and its folder.
        self.identity = read_identity(type(kitchen), None, "robocasa", "environments")

    def set_init_states(self, init_states: ArrayLike) -> None:
        # RoboCasa has no list of initial states, so this always raises an error.
        remedy = "Omit init_states: the seed determines the start."
        raise HostError("RoboCasa draws the starts of episodes at random", remedy=remedy)

    def subscribe(self, cutter: attachment.EpisodeCutter) -> Undo:
        # Add hooks that report events to `cutter`, which forms episodes. Return a function that removes the hooks.
        # `cutter.guard()` turns an error in recording into a warning and a lost episode.
        kitchen = self._env
        state_hooks: list[Undo] = []

        def hook_state_setters() -> None:
            attachment.hook_state_setters(kitchen, cutter, state_hooks, lambda _: None)

        def before_reset() -> None:
            cutter.on_interruption()
            with cutter.guard():
                undo_all(state_hooks)  # the reset itself sets states that the user did not choose
                seed = fresh_seed(kitchen.rng)
                if seed is not None:
                    cutter.on_seed(seed)

        def after_reset(*_: object, **__: object) -> None:
            cutter.on_reset()
            with cutter.guard():
                hook_state_setters()

        # RoboCasa's reward is the result of `_check_success`, but a script may shape the reward.
        checks: list[bool] = []  # results of `_check_success` in the current step

        def is_success(_: object) -> bool:
            if not checks:
                problem = "a step did not check the task's success, because the environment's `reward` was replaced"
                raise HostError(problem, remedy="Let `reward` call `self._check_success()`.")
            return checks[-1]

        hook_state_setters()
        # The third argument of `hook_call` is called before the method, and the fourth after it.
        hooks: list[Undo] = [
            partial(undo_all, state_hooks),
            hook_call(kitchen, "reset", before_reset, after_reset),
            hook_call(kitchen, "_check_success", after=lambda result, *_, **__: checks.append(bool(result))),
            *attachment.subscribe_steps(kitchen, cutter, is_success),
            hook_call(kitchen, "step", checks.clear),
        ]
        return partial(undo_all, hooks)

    def start_recorder(self) -> tuple[recorder.Recorder, Undo]:
        # Attach a recorder, which takes record 0 now and copies each physics substep.
        # Return the recorder, and a function that detaches it.
        # `unstable_steps` is the number of times that MuJoCo reset an unstable state before the initial state was set.
        kitchen = self._env
        scene = read_scene(kitchen, goal_target(self._goal), moved_fixture(self._goal))
        # The method of robosuite's simulation that completes a substep; with `lite_physics`, a substep has two halves.
        method = "step2" if kitchen.lite_physics else "step"
        return recorder.attach_recorder(kitchen.sim, method, scene, self.task.task_id, self.unstable_steps)

    def fixture_roots(self) -> list[str]:
        roots = {fixture.root_body for fixture in self._env.fixtures.values()}
        # Keep only fixtures whose root body is in the current model.
        return sorted(roots & set(recorder.name_bodies(self._env.sim.model._model, {})))

    def is_still(self, action: Action) -> bool:
        # Return whether the action [A] moves neither the arm nor the base.
        # The command of the gripper and the choice of arm or base may have any value.
        return not np.any(np.delete(action, [_GRIPPER_INDEX, _MODE_INDEX]))

    def target_object(self) -> str | None:
        # Return the object that the goal places; None if the goal places no object.
        return goal_target(self._goal)

    def instruction(self) -> str:
        # Return RoboCasa's instruction for the current episode or, if it is empty, the task's name.
        return episode_meta(self._env)["lang"] or self.task.instruction

    def header_fields(self) -> dict[str, object]:
        """Return the facts that determine the kitchen, and `STANDIN_MARK` if placeholders replace its assets."""
        # The facts form one header field, named after the host. All values have JSON types.
        kitchen = self._env
        model = kitchen.sim.model._model
        joints = [str(model.joint(joint).name) for joint in range(model.njnt)]  # joints in the order of `sim_state`
        options = {name: to_plain(getattr(kitchen, name)) for name in DRAWING_OPTIONS if hasattr(kitchen, name)}
        description = {
            "layout": to_plain(kitchen.layout_id),
            "style": to_plain(kitchen.style_id),
            "joints": joints,
            "options": options,
            "ep_meta": episode_meta(kitchen),
        }
        fields: dict[str, object] = {self.host: description}
        # Actions are poses in the world if the script chose this for the arm's controller.
        controllers = getattr(getattr(kitchen.robots[0], "composite_controller", None), "part_controllers", {})
        if getattr(controllers.get("right"), "input_type", None) == "absolute":
            fields[ABSOLUTE] = True
        if self.versions[ASSETS_ENTRY] != OFFICIAL:
            fields[STANDIN_MARK] = True
        return fields


def installed_versions() -> dict[str, str]:
    """Return the versions of the distributions that affect a trajectory, and the origin of RoboCasa's assets."""
    root = Path(sys.modules["robocasa.models"].assets_root)
    return {**attachment.package_versions(_PACKAGES), ASSETS_ENTRY: STANDIN if is_standin(root) else OFFICIAL}


def is_standin(root: Path) -> bool:
    """Return whether README.txt in the folder `root` says that placeholders replace RoboCasa's assets."""
    readme = root / _README
    return readme.is_file() and STANDIN in readme.read_text(encoding="utf-8", errors="replace")


def fresh_seed(generator: np.random.Generator) -> int | None:
    """Return the seed of a generator; None if it has already drawn numbers, or has no seed below 2**63.

    >>> generator = np.random.default_rng(7)
    >>> fresh_seed(generator)
    7
    >>> _ = generator.random()
    >>> fresh_seed(generator)
    """
    bit_generator: Any = generator.bit_generator
    # Old versions of NumPy have the attribute only under its private name.
    seed_sequence = getattr(bit_generator, "seed_seq", getattr(bit_generator, "_seed_seq", None))
    # The seed that the generator was made with. Without a seed, NumPy draws a random number of 128 bits.
    seed = getattr(seed_sequence, "entropy", None)
    if not isinstance(seed, (int, np.integer)) or not 0 <= int(seed) < _SEED_LIMIT:
        return None
    is_fresh = np.random.default_rng(int(seed)).bit_generator.state == bit_generator.state
    return int(seed) if is_fresh else None


def _find_goal(task: str, goal: Sequence[str] | None) -> Goal:
    # Return the given goal as a tuple, or else the known goal of RoboCasa's task.
    # A goal is a verb and names, such as ("open", "drawer"). Raise `HostError` for an invalid or unknown goal.
    goals = known_goals()
    if goal is not None:
        words = () if isinstance(goal, str) else tuple(goal)
        if len(words) < 2 or not all(isinstance(word, str) for word in words):
            remedy = 'Give a verb and names, such as goal=("in", "obj", "container") or goal=("open", "drawer").'
            raise HostError(f"{goal!r} is not a valid goal", remedy=remedy)
        return words
    if task not in goals:
        problem = f"targets and bystanders are unknown, because the goal of RoboCasa's task {task} is unknown"
        example = 'goal=("in", "obj", "container") or goal=("open", "drawer")'
        remedy = f"Pass the goal to record, such as {example}. These tasks have known goals: {', '.join(goals)}."
        raise HostError(problem, remedy=remedy)
    return goals[task]


def _require_robot(kitchen: Any) -> None:
    # Raise `HostError` unless the kitchen's only robot is RoboCasa's default, whose name is `EMBODIMENT`.
    names = [str(name) for name in kitchen.robot_names]
    if names != [EMBODIMENT]:
        remedy = f"Make the environment with one {EMBODIMENT}, RoboCasa's default."
        problem = f"the robot {', '.join(names)} is not {EMBODIMENT}, the only robot that can be recorded"
        raise HostError(problem, remedy=remedy)


# The scene (names, roles and tracked bodies), the task's goal, and RoboCasa's description of the episode


@lru_cache(maxsize=None)
def known_goals() -> dict[str, Goal]:
    """Return a mapping from RoboCasa's task names to the tasks' known goals. Cached."""
    goals = json.loads(Path(__file__).with_name("robocasa_goals.json").read_text(encoding="utf-8"))
    return {name: tuple(words) for name, words in goals.items()}


def goal_target(goal: Goal) -> str | None:
    """Return the object that the goal places; None if the goal places no object."""
    return goal[1] if goal[0] in _PUTS else None


def moved_fixture(goal: Goal) -> str | None:
    """Return the name of the task's attribute with the fixture that the goal moves; None = no fixture."""
    return goal[1] if goal[0] not in (*_PUTS, AT) else None


def episode_meta(kitchen: Kitchen) -> dict[str, Any]:
    """Return RoboCasa's own description of the episode as plain values. `set_ep_meta` rebuilds the kitchen from them.

    Paths of objects are relative to the folder `objects` of the assets, so that they are valid on any machine.
    """
    return {str(key): to_plain(value) for key, value in kitchen.get_ep_meta().items()}


def to_plain(value: object) -> Any:
    """Convert a value to JSON types, recursively: mappings to dicts with text keys, arrays and sets to lists.

    The result is the same in every process: sets are sorted, and so are RoboCasa's lists that were made from sets. A
    text with `/objects/` is cut to the part after the last `/objects/`. An object of any other type becomes the value
    of its attribute `name`, or else its text without memory addresses.
    """
    if isinstance(value, Mapping):
        plain = {str(key): to_plain(inner) for key, inner in value.items()}
        for key in _UNORDERED:
            if isinstance(plain.get(key), list):
                plain[key].sort(key=repr)
        return plain
    if isinstance(value, (set, frozenset)):
        return sorted(map(to_plain, value), key=repr)
    if isinstance(value, (list, tuple)):
        return [to_plain(inner) for inner in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return to_plain(value.tolist())
    if isinstance(value, str):
        return value.rpartition(_OBJECTS_FOLDER)[2]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return to_plain(getattr(value, "name", _ADDRESS.sub("", str(value))))


LID = "lid"  # the blender's lid: recorded as an object, because robots handle it
_GRIP_SITE = "gripper0_right_grip_site"
_ROBOT = "robot0_base"


def read_scene(kitchen: Kitchen, target: str | None, moved_fixture: str | None) -> recorder.Scene:
    """Return names and roles in the kitchen's current model.

    The bodies of an object have RoboCasa's name of the object; other bodies have MuJoCo's names. A body that is fixed
    to a moving link, such as the handle of a door, has the link's name. Links of articulated fixtures
    are tracked unless the goal moves the fixture (docs/explanation/fidelity.md, bystanders).
    """
    # `target` is the object that the goal places; None = no object.
    # `moved_fixture` names the attribute of the kitchen that holds the fixture to be moved; None = no fixture.
    model = kitchen.sim.model._model  # MuJoCo's own `MjModel`
    objects = _find_objects(kitchen, target)
    robot_bodies = recorder.subtree_bodies(model, int(model.body(_ROBOT).id))
    moving_bodies = {*recorder.moving_links(model, 0)} - {*robot_bodies}  # 0 is the world, the root of all bodies
    names = recorder.name_bodies(model, objects)
    # `body_weldid` maps a fixed body to the moving body (or the world) that carries it, and any other body to itself.
    body_name = tuple(
        names[root] if root in moving_bodies else name for name, root in zip(names, model.body_weldid.tolist())
    )
    # Names of bodies that are not tracked as links: objects, which are tracked in another way, and the moved fixture.
    not_links = {*objects, *(body_name[body] for body in _moved_bodies(kitchen, moved_fixture, model))}
    links = {body_name[body]: body for body in sorted(moving_bodies) if body_name[body] not in not_links}
    targets = [target] if target else []
    roles = recorder.assign_roles(model, body_name, objects=objects, links=links, targets=targets, robot=robot_bodies)
    finger_geoms = kitchen.robots[0].gripper["right"].important_geoms
    left, right = (recorder.geom_ids(model, finger_geoms[name]) for name in ("left_finger", "right_finger"))
    return recorder.Scene(
        body_name=body_name,
        roles=roles,
        objects=objects,
        links=links,
        fingers=(left, right),
        eef_site=int(model.site(_GRIP_SITE).id),
        arm_dofs=tuple(int(model.joint(f"robot0_joint{k}").dofadr[0]) for k in range(1, 8)),
        # The value is the number of substeps in a control step. After each step, RoboCasa sets joints of some fixtures.
        # Two overlapping fixtures may then lose contact for a few substeps, and touch again.
        apart_substeps=round(kitchen.control_timestep / kitchen.model_timestep),
    )


def _find_objects(kitchen: Kitchen, target: str | None) -> dict[str, int]:
    # Return a mapping from each object's name to the id of its root body in MuJoCo.
    # RoboCasa does not list the blender's lid; the lid is an object here only as the `target`, which the goal places.
    objects = {str(name): int(body) for name, body in kitchen.obj_body_id.items()}
    if target == LID:
        lid = kitchen.blender.blender_lid
        objects[LID] = int(kitchen.sim.model._model.body(lid.root_body).id)
    return objects


def _moved_bodies(kitchen: Kitchen, moved_fixture: str | None, model: mujoco.MjModel) -> tuple[int, ...]:
    # Return the MuJoCo ids of all bodies of the fixture that the goal moves; () = the goal moves no fixture.
    # `moved_fixture` is the name of the kitchen's attribute with this fixture; None = the goal moves no fixture.
    if moved_fixture is None:
        return ()
    fixture = getattr(kitchen, moved_fixture)
    return recorder.subtree_bodies(model, int(model.body(fixture.root_body).id))
