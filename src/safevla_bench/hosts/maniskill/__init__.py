"""ManiSkill as a host."""
