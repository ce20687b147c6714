"""Companion servers: any OpenAI-compatible server on the device behind the engine's contract.

`settings` says what one is, `serve` is the process that stands in an engine's place: it starts
the server through `keeper` (`server`), asks it over HTTP (`upstream`), runs requests in slots
(`relay`, accounts in `busy`), measures it (`selftest`) and speaks the contract (`service`).
"""
