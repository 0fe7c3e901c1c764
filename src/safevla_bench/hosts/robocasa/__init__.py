"""The host `robocasa`: RoboCasa-365's kitchens in robosuite 1.5."""
