"""Shared by hosts that run MuJoCo: the recorder, and the viewer of recorded episodes."""
