"""The servicers in which devices' streams and gateways' sessions end."""
