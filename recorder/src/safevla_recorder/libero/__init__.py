"""Recording of LIBERO environments in robosuite 1.4."""
