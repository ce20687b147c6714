"""The placement decision: pure, measured, explained."""
