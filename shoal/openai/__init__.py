"""OpenAI's request and response formats, once for the gateway and for a device's local API.

Parsing is written by hand rather than with a schema library: it is on the hot
path, its messages name the parameter and the remedy, and a device stays small.
"""
