"""Publication of results: boards, submissions, model cards, experiment trackers."""
