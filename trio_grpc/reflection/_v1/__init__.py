"""The reflection service's .proto as of v1, and what is generated from it."""
