"""The host `metaworld`: Meta-World's fifty tasks of a Sawyer arm on a table."""
