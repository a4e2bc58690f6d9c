"""The reflection service's .proto as of v1alpha, and what is generated from it."""
