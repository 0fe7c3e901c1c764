"""Reports of judged episodes: tables in several formats, figures, and one self-contained HTML page."""
