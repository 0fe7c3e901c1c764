"""Judged runs as training data: safety labels of every record, and datasets that LeRobot loads."""
