"""Recording in one's own evaluation loop: `record` around an environment that the script made and steps itself."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from numpy.typing import ArrayLike

from safevla_bench.hosts.attachment import Watched, watched
from safevla_bench.own_loop.episodes import Episodes, Rules
from safevla_bench.own_loop.folder import Folder, opened
from safevla_bench.text.redaction import redacted

__all__ = ["record"]

Env = TypeVar("Env")
_log = logging.getLogger(__name__)


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
) -> Iterator[Env]:
    """Record every episode that your own loop runs in `env`, into the run folder `out`.

    >>> with record(env, policy="mine", out="runs/mine") as env:      # doctest: +SKIP
    ...     for state in init_states:
    ...         env.reset(); observation = env.set_init_state(state); ...

    The environment is the same object, with hooks on it until the block ends; what it returns is its own, bit for bit.
    The records are those of `safevla rollout` for the same seeds, initial states and actions: record 0 is the state
    just before the first step after settling, and the first success is the last record. An episode ends there, at
    `horizon`, or with the next reset, `set_init_state`, close, or the end of the block. Blocks of one process may share
    `out`, such as one for each task; an existing folder is refused. If the block raises, the episode it broke off is
    `stopped`, run.json says that the run is not complete, and the exception goes on.

    Args:
        env: a LIBERO `OffScreenRenderEnv` or other `ControlEnv`, or a wrapper that holds one.
        policy: the name under which the episodes are reported.
        out: the run folder to make.
        wait_steps: how many still steps your loop makes first, after each reset or `set_init_state`; LIBERO's loops
            make 10. They are checked to be still, and belong to no episode.
        horizon: after how many steps your loop gives up. Known, an episode that ends sooner without success is
            `stopped` and counts nowhere; unknown, it is a `timeout`, a failure.
        seed: that of the policy's randomness, for the record.
        benchmark: in the place of the one that the task's BDDL file says.
        task_id: likewise.
        init_states: the states that your loop starts from, [count, state], where they are not the task's own; a
            record tells their index.
        privileged: whether the policy sees simulator state that no robot has; reports mark it.

    Raises:
        HostError: the environment cannot be recorded; says why.
        RunError: the folder is in the way, or the loop moves the arm while it should settle.
    """
    found = _named(watched(env), benchmark, task_id, init_states)
    rules = Rules(
        policy=policy,
        wait_steps=found.wait_steps if wait_steps is None else wait_steps,
        horizon=horizon,
        seed=seed,
        privileged=privileged,
    )
    folder = opened(Path(out), found, rules, _facts_of_the_day())
    episodes = Episodes(found, rules, lambda: folder.next_number(policy, found.task), folder.keep)
    unwatch = found.watch(episodes)
    whole = False
    try:
        yield env
        episodes.ending()
        if episodes.refused is not None:  # the script's own `except` had swallowed it
            raise episodes.refused
        whole = True
    except BaseException as error:
        episodes.stop(f"the block ended with {type(error).__name__}")
        raise
    finally:
        unwatch()
        folder.close(whole=whole)
        _tell(folder)


def _named(found: Watched, benchmark: str | None, task_id: str | None, init_states: ArrayLike | None) -> Watched:
    task = found.task
    found.task = replace(task, benchmark=benchmark or task.benchmark, task_id=task_id or task.task_id)
    if init_states is not None:
        found.start_from(init_states)
    return found


def _facts_of_the_day() -> dict[str, object]:
    return {"command": redacted(shlex.join(sys.argv)), "started": datetime.now(UTC).isoformat(timespec="seconds")}


def _tell(folder: Folder) -> None:
    told, place = folder.told(), shlex.quote(str(folder.path))
    if told:
        _log.info("Records: %s (%s). Next: safevla score %s --out %s", place, told, place, place)
    else:
        _log.warning("no episode was recorded, so there is no %s", place)
