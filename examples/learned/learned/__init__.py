"""A small policy from pixels, learned from scripted demonstrations, recorded, judged and compared: docs/learned.md."""
