"""Reports: tables as values, their text and Markdown, and one self-contained page."""
