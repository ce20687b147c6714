"""Certificate authority, join tokens and API keys."""
