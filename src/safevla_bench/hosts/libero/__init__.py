"""The host `libero`: LIBERO's suites and your own task files, in robosuite 1.4."""
