"""The work behind each command: evaluation, search, verification, diagnosis, browsing, the demo."""
