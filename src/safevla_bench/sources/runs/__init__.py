"""The run folder: the description of a run (so that it can be repeated), its records, planned episodes and verdicts.

docs/reference/run-folder.md lists its files. While a run is unfinished, its episodes are in `raw/` (see `parts`).
"""
