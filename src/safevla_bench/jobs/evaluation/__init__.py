"""Whole jobs as one call each: `roll_out`, `judge`, and `evaluate_request` = roll out, judge and report."""
