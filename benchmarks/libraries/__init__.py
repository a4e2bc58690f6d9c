"""One module per library: a server and a client that play every workload of `benchmarks.workloads`.

Each is run as a process of its own (`python -m benchmarks.libraries.NAME server|client`), by the Python that has
the library.  So nothing here may import more than the standard library, its own library and the generated code.
"""
