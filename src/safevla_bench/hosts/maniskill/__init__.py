"""The host `maniskill`: table-top tasks of ManiSkill 3."""
