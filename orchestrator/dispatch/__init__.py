"""Where a request goes: the edge through a hub, or a cloud endpoint.

Backends speak the wire's own sequence updates, the same at every hop, so that a
token is not repacked on its way.
"""
