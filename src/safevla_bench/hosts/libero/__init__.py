"""The host `libero`: LIBERO's suites, and task files of one's own, in robosuite 1.4."""
