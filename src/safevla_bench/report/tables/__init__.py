"""Tables as values: each builder turns summaries into a `Table`, which `render` and the page print."""

from __future__ import annotations
