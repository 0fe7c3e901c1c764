"""The run folder: everything that repeats a run, its records, its planned episodes, and what the judge said.

run.json          what was asked and with which versions; facts of the day only under `volatile`
archive/part-*    the trajectory records, parts in plan order (a folder of safevla-recorder keeps raw/ instead)
episodes.parquet  every planned episode and its outcome
manifest.json     schema version, and the sha256 of each part and of the files beside the archive
scores.json, scores.parquet, report.html   written by the judge

While a run is unfinished its episodes are in `raw/` (see the module `parts`), and run.json says `"complete": false`.
"""
