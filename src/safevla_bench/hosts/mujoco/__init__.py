"""Code shared by MuJoCo hosts: the recorder and the viewer of recorded episodes."""
