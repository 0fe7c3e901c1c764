"""Foreign text made safe and short: no control characters, no secrets, bounded length."""
