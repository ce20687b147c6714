"""The fleet's model files, and which device is to serve which."""
