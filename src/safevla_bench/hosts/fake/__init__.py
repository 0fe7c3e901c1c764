"""The host `fake`: a simulator in a few lines of NumPy, to test everything except physics."""
