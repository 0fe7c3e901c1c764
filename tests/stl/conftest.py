"""Which comparisons run on this Python."""

import sys

collect_ignore = ["test_rtamt.py"] if sys.version_info >= (3, 13) else []  # rtamt does not import there
