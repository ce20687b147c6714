"""The command line: a client of the gateway's API and a starter of processes."""
