"""HTTP/2 and the gRPC wire. Private, and it knows no stub, servicer or protobuf: rooms are imported by their names."""
