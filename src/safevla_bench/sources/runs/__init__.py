"""The run folder: everything that repeats a run, its records, its planned episodes, and what the judge said.

docs/reference/run-folder.md lists its files. While a run is unfinished its episodes are in `raw/` (see `parts`).
"""
