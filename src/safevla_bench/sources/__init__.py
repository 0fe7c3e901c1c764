"""Sources of records: run folders, robot logs, and recordings of other tools."""
