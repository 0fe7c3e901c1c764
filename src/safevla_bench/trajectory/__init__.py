"""The trajectory record: headers, batches of episodes in memory, single records, and validation."""
