"""Complete jobs in one call: `roll_out`, `judge`, and `evaluate_request`, which rolls out, judges and reports."""
