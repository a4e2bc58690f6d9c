"""Code generated for purerpc; it has a folder of its own because its file name is not."""
