"""Pictures of recorded episodes: their initial state, each violation, and their final state.

`moments` selects what to show, `stage` sets an episode up in its host and checks what it shows, `pictures` adds border
and caption, makes films and sets pictures out in rows, `rendering` writes the pictures of a run folder. `replay3d`
packs an episode's scene and poses for the report's player, with meshes that `decimation` made simpler. A report embeds
the pictures of the folder and renders none.
"""
