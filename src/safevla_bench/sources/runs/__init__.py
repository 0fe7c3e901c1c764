"""The run folder: what is needed to repeat a run, its records, its planned episodes, and the verdicts.

docs/reference/run-folder.md lists its files. While a run is unfinished, its episodes are in `raw/` (see `parts`).
"""
