"""The host `fake`: a simulator of a few lines of NumPy, for tests of everything but physics."""
