"""Rollouts of policies: the plan, one episode, and the engines that run them all (serial, worker pool, Ray)."""
