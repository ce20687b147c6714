"""Model files that the fleet sent: where they lie, which go when room is needed."""
