"""Publication of results: boards, leaderboard submissions, model cards, experiment trackers."""
