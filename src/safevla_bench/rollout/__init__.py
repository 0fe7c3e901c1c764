"""Rollouts of policies: the plan, the loop that runs an episode, and the engines (serial, worker pool, Ray)."""
