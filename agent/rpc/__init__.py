"""The outbound stream and the engines' sockets."""
