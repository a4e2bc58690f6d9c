"""Measurements of trio_grpc against other Python gRPC libraries: `python -m benchmarks --help`.

Nothing here is part of the distribution that users install, and nothing in `trio_grpc` may import it.
"""
