// grpc-go's own benchmark client and server, as a reference from another world: `python -m benchmarks setup` builds them.
module benchmarks

go 1.26.0

tool (
	google.golang.org/grpc/benchmark/client
	google.golang.org/grpc/benchmark/server
)

require (
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
	google.golang.org/grpc v1.85.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)
