"""Text for people: numbers, and foreign strings without control characters, secrets or excess length."""
