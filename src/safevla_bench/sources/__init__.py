"""Where records come from: runs, logs of robots, recordings of other tools."""
