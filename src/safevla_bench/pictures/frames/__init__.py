"""Pictures of recorded episodes: their initial state, each violation, and their final state.

`moments` selects what to show, `stage` sets an episode up in its host and checks what it shows, `pictures` adds border
and caption, makes films and sets pictures out in rows, `rendering` writes the pictures of a run folder. `replay3d`
packs an episode's scene and poses for the report's player, with meshes that `decimation` made simpler. A report embeds
the pictures of the folder and renders none.
"""

from safevla_bench.pictures.frames.moments import Shot, select_shots
from safevla_bench.pictures.frames.pictures import can_film, sheet_form, write_sheet
from safevla_bench.pictures.frames.rendering import (
    FrameStyle,
    ProgressCallback,
    RecordedRun,
    render_frames,
)
from safevla_bench.pictures.frames.stage import build_replay3d, open_stage, render_checked

__all__ = [
    "FrameStyle",
    "ProgressCallback",
    "RecordedRun",
    "Shot",
    "build_replay3d",
    "can_film",
    "open_stage",
    "render_checked",
    "render_frames",
    "select_shots",
    "sheet_form",
    "write_sheet",
]
