"""The host `robosuite`: robosuite 1.5's tasks for one or two arms."""
