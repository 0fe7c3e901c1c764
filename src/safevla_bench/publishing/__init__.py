"""Results for others: boards, submissions, model cards, experiment trackers."""
