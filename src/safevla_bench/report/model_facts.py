"""Facts about a model that no record holds, from a TOML file: for model cards and leaderboards of others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from safevla_bench.errors import Place, RunError
from safevla_bench.judged import Judged
from safevla_bench.metrics import Summary

_Text = Annotated[str, Meta(min_length=1)]
_Percent = Annotated[float, Meta(ge=0, le=100)]
_Positive = Annotated[int, Meta(ge=1)]


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of them are optional; None = not known."""

    model_name: _Text | None = None
    """Without it, the policy's name in the run."""
    source_url: _Text | None = None
    """Where the run folder, or a report of it, can be looked at."""
    hub_dataset: Annotated[str, Meta(pattern="^[^/]+/[^/]+$")] | None = None
    """The benchmark dataset of the model hub whose leaderboard the results belong to, OWNER/NAME."""
    policy_family: _Text | None = None
    date: Annotated[str, Meta(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}$")] | None = None
    submission_source: Literal["internal", "external"] = "external"
    code_url: _Text | None = None
    commit_hash: _Text | None = None
    checkpoint_url: _Text | None = None
    paper_link: _Text | None = None
    open_source: Literal["yes", "no"] | None = None
    wandb: _Text | None = None
    batch_size: _Positive | None = None
    num_training_steps: _Positive | None = None
    composite_seen_success: _Percent | None = None
    """Of RoboCasa365's splits that are evaluated elsewhere, in percent."""
    composite_unseen_success: _Percent | None = None
    notes: _Text | None = None


def read_facts(path: Path | None) -> ModelFacts:
    """Return the facts of a TOML file; none without a file.

    Raises:
        RunError: it cannot be read, or holds what is no such fact.
    """
    if path is None:
        return ModelFacts()
    try:
        return msgspec.toml.decode(path.read_bytes(), type=ModelFacts)
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        remedy = f"It is TOML with keys of {', '.join(ModelFacts.__struct_fields__)}."
        raise RunError(f"cannot be read: {reason}", remedy=remedy, place=Place(file=str(path))) from None


def publishable_cells(judged: Judged) -> list[Summary]:
    """Return the cells of the one policy that was judged.

    Raises:
        RunError: there are several policies or none, or a simulator ran with stand-ins for its own assets.
    """
    cells = judged.summarize_scores()[0]
    policies = list(dict.fromkeys(cell.policy or "a policy without a name" for cell in cells))
    if len(policies) != 1:
        problem = f"this describes one model, and here are {len(policies)} policies: {', '.join(policies) or 'none'}"
        raise RunError(problem, remedy="Name sources of one policy.")
    for cell in cells:
        if cell.standin_assets:
            problem = f"{cell.suite} was simulated with stand-ins for its own assets, which is no result on it"
            raise RunError(problem, remedy="Run it with the official assets.")
    return list(cells)
