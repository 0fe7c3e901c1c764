"""Explanations of judged episodes: signals and their limits, the bodies behind a value, causes, ad-hoc formulas."""
