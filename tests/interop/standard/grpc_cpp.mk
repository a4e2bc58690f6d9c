# Builds the interop client and server of a gRPC C++ source tree against the libraries that Debian has of it.
# Called in the tree's root.

CXXFLAGS := -std=c++17 -O0 -w -I. -Ibuilt -Iinclude
# Not all of Abseil's libraries come with a .pc file.
FLAGS_LIBRARIES := $(patsubst lib%.so,-l%,$(notdir $(wildcard /usr/lib/*-linux-gnu/libabsl_flags*.so)))
LIBRARIES := $(shell pkg-config --libs grpc++ protobuf) $(FLAGS_LIBRARIES) \
	-labsl_failure_signal_handler -labsl_symbolize -labsl_examine_stack

PROTOS := empty messages test
SHARED := $(PROTOS:%=built/src/proto/grpc/testing/%.pb) built/src/proto/grpc/testing/test.grpc.pb \
	test/core/util/test_config test/core/util/build test/core/util/stack_tracer test/core/event_engine/test_init \
	test/cpp/util/test_config_cc test/cpp/util/test_credentials_provider \
	$(addprefix test/core/end2end/data/, client_certs server1_cert server1_key test_root_cert)
CLIENT := test/cpp/interop/client test/cpp/interop/client_helper test/cpp/interop/interop_client \
	test/core/security/oauth2_utils test/core/util/histogram test/cpp/util/create_test_channel \
	test/cpp/util/string_ref_helper
SERVER := test/cpp/interop/interop_server test/cpp/interop/interop_server_bootstrap test/cpp/interop/server_helper

all: interop-client interop-server

interop-client: $(CLIENT:%=%.o) $(SHARED:%=%.o)
	$(CXX) -o $@ $^ $(LIBRARIES)

interop-server: $(SERVER:%=%.o) $(SHARED:%=%.o)
	$(CXX) -o $@ $^ $(LIBRARIES)

%.o: %.cc built/.generated
	$(CXX) $(CXXFLAGS) -c -o $@ $<

built/src/proto/grpc/testing/%.cc: built/.generated ;

built/.generated:
	mkdir -p built
	protoc -I. --cpp_out=built --grpc_out=built --plugin=protoc-gen-grpc=$$(command -v grpc_cpp_plugin) \
		$(PROTOS:%=src/proto/grpc/testing/%.proto)
	touch $@
