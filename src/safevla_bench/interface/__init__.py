"""Protocols of hosts, environments and policies that the rollout loop uses, and the values they exchange."""
