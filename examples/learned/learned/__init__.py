"""A small policy from pixels, learned from demonstrations, recorded, judged and compared: docs/howto/learned.md."""
