"""The host `robosuite`: robosuite 1.5's tasks of one arm or two."""
