"""OpenAI's API on a port of this device, by the gateway's own code, hub or no hub."""
