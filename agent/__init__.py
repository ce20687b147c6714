"""The process on a device: identity, capability report, engine supervision, the outbound stream."""
