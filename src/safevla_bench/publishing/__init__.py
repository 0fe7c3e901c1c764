"""What leaves the machine: boards, submissions, model cards, experiment trackers."""
