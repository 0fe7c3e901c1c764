"""One judged episode for a viewer: its timeline as a recording for Rerun, or as an MCAP file for Foxglove."""
