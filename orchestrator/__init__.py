"""The fleet's head: gateway, hubs, router, identity."""
