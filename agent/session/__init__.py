"""Pure: connection and engine supervision as state machines."""
