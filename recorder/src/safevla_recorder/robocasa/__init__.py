"""Recording of RoboCasa kitchens in robosuite 1.5."""
