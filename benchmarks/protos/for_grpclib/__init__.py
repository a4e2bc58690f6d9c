"""Code generated for grpclib; it has a folder of its own because its file name is not."""
