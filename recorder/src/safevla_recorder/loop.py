"""Record your own evaluation loop: `record` attaches to an environment that your script makes and steps."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import EntryPoint, distributions
from multiprocessing.process import parent_process
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Sequence, TypeVar
from weakref import WeakMethod

from safevla_recorder import attachment
from safevla_recorder.attachment import EpisodeCutter, RecordableEnv
from safevla_recorder.errors import HostError, RunError, SafevlaError, get_logger, is_from_signal
from safevla_recorder.folder import (
    RunFolder,
    call_at_exit,
    claim_folder,
    describe_process,
    open_folder,
    require_policy_name,
)
from safevla_recorder.libero import find_libero
from safevla_recorder.mujoco.hook import Undo, hook_call, undo_all, wrap_method
from safevla_recorder.mujoco.speed import speed_up
from safevla_recorder.robocasa import find_robocasa
from safevla_recorder.simulator_versions import warn_once

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Env = TypeVar("Env")
_log = get_logger(__name__)
_LIBERO = "libero.libero.envs.env_wrapper"


class RecordingSession:
    """The recording of one environment by `record`: a context manager that yields the environment."""

    def __init__(self, env: Any, begin: Callable[[object], tuple[EpisodeCutter, RunFolder, Undo]]) -> None:
        """Begin recording now, or at the environment's first reset if this reset makes the simulator."""
        # `env` is the environment that the user passed, perhaps a wrapper. `begin` attaches hooks to a simulator.
        # `begin` returns the object that turns the simulator's events into episodes (the cutter),
        # the folder that the episodes are written into, and a function that removes the hooks.
        self._hooks: list[Undo] = []
        self.env, self._begin = env, begin
        # The result of `begin` for the current simulator; None before the first simulator and after the end.
        self._recording: tuple[EpisodeCutter, RunFolder, Undo] | None = None
        self._simulator = _find_simulator(env)
        self._process_id = os.getpid()  # a forked child must not end this recording
        is_made_by_reset = self._simulator is None and attachment.is_unmade(env)
        if not is_made_by_reset:
            self._attach(env)
        # A weak reference, because the handler must not keep a deleted environment alive until the process ends.
        self._hooks.append(call_at_exit(partial(_call_if_alive, WeakMethod(self._close_at_exit))))
        _watch_exit_code()
        is_wrapped = self._simulator is not None and self._simulator is not env
        if is_made_by_reset or is_wrapped:  # a reset of the wrapper may make a simulator
            with suppress(AttributeError, TypeError):  # the environment has no `reset`, or its attributes cannot be set
                self._hooks.append(wrap_method(env, "reset", self._watch_reset))

    def __del__(self) -> None:
        # The list of hooks is empty if the session was closed. A forked child must not end its parent's recording.
        if self._hooks and os.getpid() == self._process_id:
            self.close_quietly()  # the loop has deleted the environment without closing it

    def _attach(self, simulator: object) -> None:
        # Begin to record this simulator, or the simulator inside this wrapper.
        # The hooks on the simulator refer to the cutter, `_recording[0]`.
        self._recording = self._begin(simulator)
        self._recording[0].owner = self  # keeps this session alive as long as the environment

    def _watch_reset(self, original: Callable[..., object], *args: Any, **kwargs: Any) -> object:
        # Replaces `reset` of the wrapper that the user passed; `original` is the wrapper's own method.
        # The result of the wrapper's `reset` is returned unchanged. Records a simulator that the reset makes.
        if not known_kinds():
            with suppress(Exception):  # import the class now, to notice the instances that the reset makes
                importlib.import_module(_LIBERO)
        # During the reset, `_begin_with` is called with each new instance of LIBERO's and RoboCasa's environments.
        with attachment.watch_construction(known_kinds(), self._begin_with):
            result = original(*args, **kwargs)
        # `_begin_with` stores the simulator that it records. Warn if `env` now contains another simulator.
        simulator = _find_simulator(self.env)
        if simulator is not self._simulator and simulator is not None:
            self._simulator = simulator
            with suppress(Exception):
                _log.warning("a second simulator was made before the first was closed; the second one is not recorded")
        return result

    def _begin_with(self, simulator: object) -> None:
        # Record a simulator that a reset has made, unless the previously recorded simulator is still open.
        # An error in recording is logged, and does not reach the user's loop.
        if self._recording is not None and not self._recording[0].is_closed:
            return
        self._simulator = simulator
        try:
            self._end(is_last=False)
            self._attach(simulator)
        except Exception as error:  # the user's loop continues
            if is_from_signal(error):
                raise
            with suppress(Exception):  # a log handler may raise
                _log.warning("%s is not recorded: %s", type(simulator).__name__, error)

    def __enter__(self) -> Any:
        return self.env  # the recorded environment, for `with record(...) as env`

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # `kind` is the type of the error that ended the block; None = the block ended normally.
        self.close_quietly("" if kind is None else f"the block ended with {kind.__name__}")

    def close(self, reason: str = "") -> None:
        """End the recording and its running episode, as if the environment were closed. Further calls do nothing.

        With a `reason`, the episode is `stopped`, and run.json says that the run is not complete. Raises `FileError` if
        run.json cannot be written.
        """
        # After the first call, the list of hooks is empty and nothing is being recorded.
        if self._hooks and self._simulator is None and self._recording is None:
            _log.warning("no episode was recorded: the environment has not been reset")
        undo_all(self._hooks)
        self._end(reason)

    def close_quietly(self, reason: str = "") -> None:
        """Call `close`. If it raises an error, log a warning, so that the error does not disturb the user's loop."""
        try:
            self.close(reason)
        except Exception as error:
            with suppress(Exception):
                _log.warning("the recording could not be completed: %s", error)

    def _close_at_exit(self) -> None:
        # Called when the process ends. Marks the run as incomplete if the end interrupts an episode or is a failure.
        if os.getpid() != self._process_id:  # this process is a forked copy
            return
        is_running = self._recording is not None and self._recording[0].is_running
        is_interrupted = is_running or _is_process_failing()
        self.close_quietly("the process ended" if is_interrupted else "")

    def _end(self, reason: str = "", *, is_last: bool = True) -> None:
        # End the recording of the current simulator; `is_last` is false if another simulator follows.
        # `reason` says why the running episode is stopped; "" = the recording ends as if the environment were closed.
        if self._recording is None:
            return
        cutter, folder, undo = self._recording
        self._recording = None
        if reason:
            cutter.stop(reason)
        else:
            cutter.on_interruption()
        undo()  # `undo` removes the hooks
        # The run is complete only if it was not stopped and no episode was lost.
        folder.close_block(complete=not reason and not cutter.lost, is_last=is_last)


def _is_process_failing() -> bool:
    """Return whether an exception ends this process. A `SystemExit` of the main process is not detected."""
    error = sys.exc_info()[1]  # None, except in a child of `multiprocessing` before Python 3.13
    if isinstance(error, SystemExit):
        return error.code not in (None, 0)
    # The interpreter sets `last_type` when an uncaught exception ends the main process.
    # `_exit_codes` contains the exit code of a `multiprocessing` child since Python 3.13.
    # After a failure, the exit code is not 0.
    return error is not None or getattr(sys, "last_type", None) is not None or any(_exit_codes)


_exit_codes: list[int] = []


def _watch_exit_code() -> None:
    """Store a `multiprocessing` child's exit code when it ends; since Python 3.13, exit handlers see no exception."""
    # The main process is not watched, because `sys.last_type` reports its exceptions.
    if parent_process() is not None and sys.version_info >= (3, 13):
        with suppress(Exception):  # without this private function of CPython, every end counts as normal
            threading._register_atexit(_note_exit_code)  # type: ignore[attr-defined]


def _note_exit_code() -> None:
    # Append this process's exit code to `_exit_codes`. `multiprocessing` has no public way to read it.
    frame = sys._getframe()
    # Go up the call stack to multiprocessing's `BaseProcess._bootstrap`; a local variable there stores the exit code.
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "_bootstrap":
            _exit_codes.append(frame.f_locals.get("exitcode", 0))


def _call_if_alive(reference: WeakMethod[Callable[[], None]]) -> None:
    # `reference` is a weak reference to a bound method. If the method's object still exists, call the method.
    method = reference()
    if method is not None:
        method()


def _find_simulator(env: object) -> object | None:
    # Return the outermost LIBERO or RoboCasa environment among `env` and the environments in it; None = there is none.
    for kind in known_kinds():
        layer: object | None = attachment.find_layer(env, kind)
        if layer is not None:
            return layer
    return None


def record(
    env: Any,
    policy: str,
    out: str | Path,
    *,
    wait_steps: int | None = None,
    horizon: int | None = None,
    seed: int | None = None,
    benchmark: str | None = None,
    task_id: str | None = None,
    init_states: ArrayLike | None = None,
    privileged: bool = False,
    worker: int | str | None = None,
    goal: Sequence[str] | None = None,
    fast: bool = False,
) -> RecordingSession:
    """Record every episode that your own loop runs in `env`, into the run folder `out`::

        with record(env, policy="mine", out="runs/mine") as env:
            for state in init_states:
                env.reset(); observation = env.set_init_state(state); ...

    Recording begins at once. It ends with the `with` block, with `close()` of the returned object, or with the process.
    The end of the process stops the running episode. `env` stays the same object, with hooks on it; what it returns and
    raises is unchanged, bit for bit. The records equal the records of `safevla eval` for the same seeds, initial states
    and actions: record 0 is the state just before the first step after settling, and the record of the first success is
    the last one. An episode ends at its first success, at `horizon`, or with the next reset, `set_init_state`, close,
    or the block's end. If an episode cannot be recorded, for example because the disk is full, a warning says so; the
    loop continues. Several `with` blocks of one process, such as one per task, may share `out`; an older folder is an
    error. If the block raises an error, the current episode is `stopped`, run.json says that the run is not complete,
    and the error propagates. At the end, a line on stderr says where the records are. If there are none, a warning says
    so, and the folder is removed.

    Args:
        env: a LIBERO `OffScreenRenderEnv` or other `ControlEnv`, a RoboCasa kitchen, or a wrapper that holds such an
            environment or makes it in its first reset. If a wrapper replaces a closed environment, recording continues.
        policy: the name under which the episodes are reported.
        out: the run folder to make.
        wait_steps: the number of settling steps that your loop makes after each reset or `set_init_state`; LIBERO's
            loops make 10, RoboCasa's none. These steps belong to no episode. If one moves the arm, the episode is lost.
        horizon: the number of steps after which your loop gives up. An episode that ends without success before a given
            `horizon` is `stopped`, and not part of the success rate. Any other such episode is a failure, `timeout`.
        seed: seed of the policy's randomness, which is recorded.
        benchmark: the benchmark's name in the records; None = from the task's BDDL file or class.
        task_id: the task's id in the records; None = from the task's BDDL file or class.
        init_states: the initial states of your loop, [count, state], if they differ from the task's own. The recorded
            index of an episode's initial state refers to them.
        privileged: whether the policy sees simulator state that no real robot has; reports mark such policies.
        worker: the name of this process if several processes record at once, each into its own `out`. This name is in
            the episodes' ids, so that the folders can be judged together.
        goal: the success condition of a RoboCasa task whose goal is not known. Examples: `("in", "obj", "container")`,
            in which the placed object is the target; `("open", "drawer")`, in which the goal moves the fixture.
        fast: whether to step faster until the block ends, with identical results (see `speed_up`).

    Raises:
        HostError: the environment or its model cannot be recorded, or `init_states` are given for RoboCasa.
        RunError: the folder already exists, or an argument is not valid.
        FileError: run.json cannot be written.
    """
    # The three stages: check the arguments, define how a simulator is recorded (`begin`), and start a session.
    # Make the path absolute now, because the loop may change the working directory.
    worker_name, folder_path = _check_worker_name(worker), Path(out).absolute()
    require_policy_name(policy)
    # Options with a whole number, and their smallest values. A record stores integers of 64 bits.
    numbers: tuple[tuple[str, Any, int], ...] = (
        ("wait_steps", wait_steps, 0),
        ("horizon", horizon, 1),
        ("seed", seed, -(2**63)),
    )
    for option, number, minimum in numbers:
        is_number = isinstance(number, Real) and not isinstance(number, bool)
        if number is not None and not (is_number and number % 1 == 0 and minimum <= number < 2**63):
            remedy = f"Give None, or a whole number from {minimum} to {2**63 - 1}."
            raise RunError(f"{option}={number!r} is not a valid number", remedy=remedy)
    names: tuple[tuple[str, Any], ...] = (("benchmark", benchmark), ("task_id", task_id))
    for option, name in names:
        if name is not None and not (isinstance(name, str) and name.strip()):
            remedy = "Give a text. Leave the argument out for tasks of LIBERO and RoboCasa, which are recognized."
            raise RunError(f"{option}={name!r} is not a name", remedy=remedy)
    rules = attachment.LoopRules(
        policy=policy,
        wait_steps=-1 if wait_steps is None else int(wait_steps),  # `begin` replaces -1 by the simulator's usual number
        horizon=None if horizon is None else int(horizon),
        seed=None if seed is None else int(seed),
        privileged=privileged,
        worker=worker_name,
    )

    def begin(simulator: object) -> tuple[EpisodeCutter, RunFolder, Undo]:
        # Attach hooks to a simulator. Return its cutter, the run folder, and a function that removes the hooks.
        recordable = find_recordable(simulator, goal)
        if recordable.is_recorded:
            raise HostError("the environment is being recorded already", remedy="Call record only once.")
        # The user's names replace the names that were derived from the environment.
        task = recordable.task
        recordable.task = replace(task, benchmark=benchmark or task.benchmark, task_id=task_id or task.task_id)
        if init_states is not None:
            recordable.set_init_states(init_states)
        warn_once(recordable.host, recordable.versions)
        env_rules = replace(rules, wait_steps=recordable.wait_steps) if wait_steps is None else rules
        folder = open_folder(folder_path, recordable, env_rules, describe_process())
        # A function that returns the number (from 0) of the policy's next episode of this task.
        take_number = partial(folder.take_number, policy, recordable.task)
        cutter = EpisodeCutter(recordable, env_rules, take_number, folder.write_episode)
        hooks = [speed_up(simulator)] if fast else []
        hooks.append(recordable.subscribe(cutter))
        return cutter, folder, partial(undo_all, hooks)

    return RecordingSession(env, begin)


def record_until_closed(
    env: Env, policy: str, out: str | Path, *, worker: int | str | None = None, **options: object
) -> Env:
    """Record `env` until it is closed or its process ends, and return it. Call this where environments are made, as in

    `SubprocVectorEnv([lambda: record_until_closed(make(), policy="mine", out="runs/mine") for _ in range(8)])`.

    Environments of one process share the run folder `out`. A process that `multiprocessing` started, as in a vector of
    environments, uses a folder `out/worker_NAME`. NAME is `worker` if it is given, else the first number 0, 1, ... that
    no other process of this run uses. NAME is part of the episodes' ids: `safevla score runs/mine/worker_*` judges all
    folders together. `options` are the other arguments of `record`. Raises the same errors as `record`.
    """
    # `folder` is the folder of this process, and `name` is the process's name in the ids of episodes (None = no name).
    folder, name = claim_folder(Path(out).absolute(), _check_worker_name(worker))
    recording = record(env, policy, folder, worker=name, **options)  # type: ignore[arg-type]
    # If a wrapper lacks `close`, or its attributes cannot be set, recording continues until the process ends.
    with suppress(AttributeError, TypeError):
        hook_call(env, "close", recording.close_quietly)  # `close_quietly` runs before the simulator is freed
    return env


ENVIRONMENTS = "safevla_recorder.environments"
"""Group of entry points that extend `record` to other environments. Each entry point is a function that returns a
`RecordableEnv` for an environment, or None for an environment that it does not support.
"""


def find_recordable(env: object, goal: Sequence[str] | None = None) -> RecordableEnv:
    """Return `env` as a `RecordableEnv`; `goal` is passed to `find_robocasa`.

    Looks for LIBERO, then RoboCasa, in `env` and in the environments that it wraps, and then asks the entry points of
    `ENVIRONMENTS`. Raises `HostError` if the simulator is unknown or the environment cannot be recorded; the message
    gives the reason. For an unknown simulator, it also names entry points that failed.
    """
    # `goal` is the success condition of a RoboCasa task, such as ("open", "drawer"); None = the task's known goal.
    recordable: RecordableEnv | None = find_libero(env) or find_robocasa(env, goal)
    failures: list[str] = []
    attachments = [] if recordable else list_attachments()
    for owner, entry in attachments:  # `owner` is the name of a distribution
        try:
            result = entry.load()(env)
            if not isinstance(result, (RecordableEnv, type(None))):
                raise TypeError(f"the result is neither RecordableEnv nor None, but {type(result).__name__}")
        except SafevlaError:
            raise
        except Exception as error:  # an entry point may raise any error; call the next one
            failures.append(f"{entry.name} of {owner} failed: {type(error).__name__}: {error}")
            continue
        recordable = recordable or result  # the first result counts
    if recordable is None:
        raise _unsupported_error(env, failures)
    return recordable


def known_kinds() -> list[type]:
    """Return the environment classes of LIBERO and RoboCasa that the process has imported."""
    # Each pair is a module and a class. A module that was not imported has no instances, so it is not imported here.
    names = ((_LIBERO, "ControlEnv"), ("robocasa.environments.kitchen.kitchen", "Kitchen"))
    return [getattr(sys.modules[module], name) for module, name in names if module in sys.modules]


def list_attachments() -> list[tuple[str, EntryPoint]]:
    """Return pairs (distribution's name, entry point) for the entry points of `ENVIRONMENTS`, sorted by these names."""
    # `entry_points()` is not suitable: its result depends on the Python version, and may not name the distributions.
    # If several distributions share a name, Python uses the first one.
    # In reversed order, the first distribution replaces later ones with the same name in the dict.
    installed = {str(dist.metadata["Name"]): dist for dist in reversed(list(distributions()))}
    entries = [(name, entry) for name, dist in sorted(installed.items()) for entry in dist.entry_points]
    return [(owner, entry) for owner, entry in entries if entry.group == ENVIRONMENTS]


def _unsupported_error(env: object, failures: Sequence[str]) -> HostError:
    # Return the error for an environment that cannot be recorded.
    # `failures` are sentences about entry points that raised errors; the sentences are added to the message.
    problem = f"an environment of type {type(env).__module__}.{type(env).__qualname__} cannot be recorded"
    remedy = (
        "Import the simulator, then pass its own environment (`env.unwrapped`) or a wrapper of this environment. "
        f"record() supports libero, robocasa and environments with entry points in the group {ENVIRONMENTS}. "
        "For any other simulator, see docs/howto/another-engine.md."
    )
    if any(kind.__name__.endswith(("VectorEnv", "VecEnv")) for kind in type(env).__mro__):
        problem = "a vector of environments cannot be recorded as a whole"
        remedy = "Record each single environment where it is made: lambda: record_until_closed(make(), policy, out)."
    return HostError("\n  ".join([problem, *failures]), remedy=remedy)


def _check_worker_name(worker: int | str | None) -> str | None:
    # Return the name of a recording process as a text; None = no name was given.
    # Raise `RunError` unless the text fits into names and ids: only ASCII letters, digits, - and _ are allowed.
    name = None if worker is None else str(worker)
    if name is not None and not (name.isascii() and name.replace("-", "").replace("_", "").isalnum()):
        raise RunError(f"invalid worker name {name!r}", remedy="Use a number, or letters, digits, - and _.")
    return name
