"""Policies behind servers: connections, codecs, dialects, and the clients that use them."""
