"""The health service's .proto, and what is generated from it."""
