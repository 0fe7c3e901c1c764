"""The host `robosuite`: robosuite 1.5's own tasks of one Panda arm."""
