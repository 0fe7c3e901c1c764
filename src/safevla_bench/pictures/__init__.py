"""Pictures of recorded episodes: frames, films and files for viewers."""
