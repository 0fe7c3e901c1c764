"""Interfaces of hosts, environments and policies for the rollout loop, and the values that they exchange."""
