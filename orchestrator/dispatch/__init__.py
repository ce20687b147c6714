"""Where a request is served: the edge or a cloud backend."""
