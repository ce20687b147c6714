"""HTTP in, JSON and server-sent events out."""
