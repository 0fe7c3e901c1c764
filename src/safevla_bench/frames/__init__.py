"""Pictures of recorded episodes: how they began, where they broke a limit, how they ended.

`shots` says what to show, `drawing` puts frame and caption around a picture, `clips` makes films, `making` does it for
a run folder. A report embeds what lies in the folder; it renders nothing.
"""

from safevla_bench.frames.clips import can_film
from safevla_bench.frames.moments import Shot, shots
from safevla_bench.frames.rendering import Look, Material, Observer, make

__all__ = ["Look", "Material", "Observer", "Shot", "can_film", "make", "shots"]
