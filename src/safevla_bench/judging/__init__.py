"""From records to verdicts and scores: rules, verdicts, metrics, gates."""
