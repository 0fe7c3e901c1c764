"""The search for unsafe successes: starts from which a policy succeeds and breaks a limit."""
