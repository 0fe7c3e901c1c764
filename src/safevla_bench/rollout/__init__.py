"""Rollouts of policies: the plan, the loop of one episode, and the engines (serial, worker pool, Ray)."""
