"""Explanations of judged episodes: signal against limit, bodies behind a value, one episode, an ad-hoc formula."""
