"""OpenAI's endpoints over HTTP, once for the gateway and for a device's local API.

Needs starlette, which the extras `agent` and `orchestrator` bring: nothing else of
`shoal` imports this package, and an agent loads it only when its local API is on.
"""
