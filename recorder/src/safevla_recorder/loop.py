"""Recording in one's own evaluation loop: `record` around an environment that the script made and steps itself."""

from __future__ import annotations

import atexit
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Iterator, Sequence, TypeVar

from safevla_recorder.attachment import EpisodeCutter, LoopRules, RecordableEnv
from safevla_recorder.errors import HostError, RunError, SafevlaError
from safevla_recorder.folder import facts_of_the_day, open_folder
from safevla_recorder.libero import find_libero
from safevla_recorder.mujoco.hook import wrap_method
from safevla_recorder.mujoco.speed import speed_up
from safevla_recorder.robocasa import find_robocasa
from safevla_recorder.simulator_versions import warn_once

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Env = TypeVar("Env")


@contextmanager
def record(
    env: Env,
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
) -> Iterator[Env]:
    """Record every episode that your own loop runs in `env`, into the run folder `out`::

        with record(env, policy="mine", out="runs/mine") as env:
            for state in init_states:
                env.reset(); observation = env.set_init_state(state); ...

    The environment is the same object, with hooks on it until the block ends; what it returns is its own, bit for bit.
    The records are those of `safevla eval` for the same seeds, initial states and actions: record 0 is the state
    just before the first step after settling, and the first success is the last record. An episode ends there, at
    `horizon`, or with the next reset, `set_init_state`, close, or the end of the block. Blocks of one process may share
    `out`, such as one for each task; an existing folder is refused. If the block raises, the episode it broke off is
    `stopped`, run.json says that the run is not complete, and the exception goes on. If no episode was recorded, a
    warning says so, and the folder is removed. It ends with a line on stderr that says where the records are.

    Args:
        env: a LIBERO `OffScreenRenderEnv` or other `ControlEnv`, a RoboCasa kitchen, or a wrapper that holds one.
        policy: the name under which the episodes are reported.
        out: the run folder to make.
        wait_steps: the number of still steps that your loop makes first, after each reset or `set_init_state`; LIBERO's
            loops make 10, RoboCasa's none. They are checked to be still, and belong to no episode.
        horizon: the number of steps after which your loop gives up. If given, an episode that ends sooner without
            success is `stopped`, outside SR; else it is a `timeout`, a failure.
        seed: that of the policy's randomness, for the record.
        benchmark: replaces the benchmark that the task's BDDL file says.
        task_id: replaces the task id likewise.
        init_states: the states that your loop starts from, [count, state], if they are not the task's own; a record
            tells their index.
        privileged: whether the policy sees simulator state that no robot has; reports mark it.
        worker: the name of this process among several that record at once, each into its own `out`. It goes into the
            episodes' ids, so that the folders can be judged together.
        goal: what success asks for, of a RoboCasa task whose goal is not known, such as `("in", "obj", "container")`:
            what is put somewhere is the target; or `("open", "drawer")`: the fixture that the goal moves.
        fast: whether to step faster until the block ends, with the same bits, as `speed_up` does.

    Raises:
        HostError: the environment or its model cannot be recorded, or `init_states` are given for RoboCasa; says why.
        RunError: the folder is in the way, `worker` is not a name, or the loop moves the arm while it should settle.
        FileError: run.json or an episode cannot be written.
    """
    recordable = find_recordable(env, goal)
    task = recordable.task
    recordable.task = replace(task, benchmark=benchmark or task.benchmark, task_id=task_id or task.task_id)
    if init_states is not None:
        recordable.set_init_states(init_states)
    warn_once(recordable.host, recordable.versions)
    rules = LoopRules(
        policy=policy,
        wait_steps=recordable.wait_steps if wait_steps is None else int(wait_steps),
        horizon=None if horizon is None else int(horizon),
        seed=None if seed is None else int(seed),
        privileged=privileged,
        worker=_worker_name(worker),
    )
    folder = open_folder(Path(out), recordable, rules, facts_of_the_day())
    cutter = EpisodeCutter(recordable, rules, lambda: folder.take_number(policy, recordable.task), folder.write_episode)
    slow_down = speed_up(env) if fast else None
    unsubscribe = recordable.subscribe(cutter)
    complete = False
    try:
        yield env
        cutter.on_interruption()
        if cutter.refusal is not None:  # the script's own `except` had swallowed it
            raise cutter.refusal
        complete = True
    except BaseException as error:
        cutter.stop(f"the block ended with {type(error).__name__}")
        raise
    finally:
        unsubscribe()
        if slow_down is not None:
            slow_down()
        folder.close_block(complete=complete)


def record_until_closed(env: Env, policy: str, out: str | Path, *, worker: int | str, **options: object) -> Env:
    """Return `env`, recorded until it is closed or its process ends: one line where a vector's environments are made:

    `SubprocVectorEnv([lambda i=i: record_until_closed(make(), "mine", "runs/mine", worker=i) for i in range(8)])`.

    For vectors whose workers make their environments, such as LIBERO's and Gymnasium's, where no `with` can reach. Each
    worker has the run folder `out/worker_NAME`; `safevla score runs/mine/worker_*` judges them together. `options` are
    the other arguments of `record`, whose errors it raises; the close raises what the end of a block would.
    """
    folder = Path(out) / f"worker_{_worker_name(worker)}"
    block = record(env, policy, folder, worker=worker, **options)  # type: ignore[arg-type]
    block.__enter__()
    left = [block]

    def leave() -> None:
        if left:
            left.pop().__exit__(None, None, None)

    def close(original: Callable[..., object], *args: object, **kwargs: object) -> object:
        leave()  # before the simulator goes
        return original(*args, **kwargs)

    wrap_method(env, "close", close)
    atexit.register(leave)
    with suppress(ImportError):
        from multiprocessing.util import Finalize

        Finalize(None, leave, exitpriority=10)  # a worker process ends without what `atexit` keeps
    return env


ENVIRONMENTS = "safevla_recorder.environments"
"""Group of the entry points that attach `record` to further environments: each names a function of an environment that
returns a `RecordableEnv`, or None for an environment that it does not know.
"""


def find_recordable(env: object, goal: Sequence[str] | None = None) -> RecordableEnv:
    """Return the environment in the form in which it can be recorded; `goal` as `find_robocasa` takes it.

    LIBERO is looked for before RoboCasa, in `env` itself and in what `env` wraps, then what the entry points of
    `ENVIRONMENTS` know. Raises `HostError` if the environment is of no known simulator, or cannot be recorded; the
    message says why, and names the entry points that failed.
    """
    recordable: RecordableEnv | None = find_libero(env) or find_robocasa(env, goal)
    failures: list[str] = []
    for owner, entry in () if recordable else list_attachments():
        try:
            found = entry.load()(env)
            if not isinstance(found, (RecordableEnv, type(None))):
                raise TypeError(f"it returned {type(found).__name__}, not RecordableEnv or None")
        except SafevlaError:
            raise
        except Exception as error:  # it can fail in any way, and hides no other
            failures.append(f"{entry.name} of {owner} failed: {type(error).__name__}: {error}")
            continue
        recordable = recordable or found
    if recordable is None:
        raise _refuse_env(env, failures)
    return recordable


def list_attachments() -> list[tuple[str, EntryPoint]]:
    """Return the entry points of `ENVIRONMENTS`, each with the name of its distribution, sorted by it."""
    # `entry_points()` has another form in each Python up to 3.10, and before that tells no distribution.
    installed = {str(dist.metadata["Name"]): dist for dist in reversed(list(distributions()))}  # the first counts
    entries = [(name, entry) for name, dist in sorted(installed.items()) for entry in dist.entry_points]
    return [(owner, entry) for owner, entry in entries if entry.group == ENVIRONMENTS]


def _refuse_env(env: object, failures: Sequence[str]) -> HostError:
    if any(kind.__name__.endswith(("VectorEnv", "VecEnv")) for kind in type(env).__mro__):
        remedy = "Record where a worker makes its environment: record_until_closed(env, policy, out, worker=N)."
        return HostError("a vector of environments cannot be recorded: its workers are out of reach", remedy=remedy)
    problem = f"an environment of type {type(env).__module__}.{type(env).__qualname__} cannot be recorded"
    remedy = (
        "Pass the simulator's own environment, env.unwrapped, or a wrapper that holds it by now: some make theirs at "
        f"the first reset. record() knows libero, robocasa and what entry points of {ENVIRONMENTS} know; "
        "any other simulator is recorded by docs/another-engine.md."
    )
    return HostError("\n  ".join([problem, *failures]), remedy=remedy)


def _worker_name(worker: int | str | None) -> str | None:
    """Return the name of a worker as it stands in ids and paths; raises `RunError` for other characters than letters,
    digits, - and _.
    """
    name = None if worker is None else str(worker)
    if name is not None and not (name.isascii() and name.replace("-", "").replace("_", "").isalnum()):
        raise RunError(f"{name!r} cannot name a worker", remedy="Use a number, or letters, digits, - and _.")
    return name
