"""HTTP in, server-sent events out."""
