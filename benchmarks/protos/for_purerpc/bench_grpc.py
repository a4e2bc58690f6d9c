import purerpc
import benchmarks.protos.bench_pb2 as benchmarks_dot_protos_dot_bench__pb2


class BenchServicer(purerpc.Servicer):
    async def Unary(self, input_message):
        raise NotImplementedError()

    async def ServerStream(self, input_message):
        raise NotImplementedError()

    async def ClientStream(self, input_messages):
        raise NotImplementedError()

    async def Bidi(self, input_messages):
        raise NotImplementedError()

    @property
    def service(self) -> purerpc.Service:
        service_obj = purerpc.Service(
            "bench.Bench"
        )
        service_obj.add_method(
            "Unary",
            self.Unary,
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_UNARY,
                benchmarks_dot_protos_dot_bench__pb2.Message,
                benchmarks_dot_protos_dot_bench__pb2.Message,
            )
        )
        service_obj.add_method(
            "ServerStream",
            self.ServerStream,
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_STREAM,
                benchmarks_dot_protos_dot_bench__pb2.StreamRequest,
                benchmarks_dot_protos_dot_bench__pb2.Message,
            )
        )
        service_obj.add_method(
            "ClientStream",
            self.ClientStream,
            purerpc.RPCSignature(
                purerpc.Cardinality.STREAM_UNARY,
                benchmarks_dot_protos_dot_bench__pb2.Message,
                benchmarks_dot_protos_dot_bench__pb2.Message,
            )
        )
        service_obj.add_method(
            "Bidi",
            self.Bidi,
            purerpc.RPCSignature(
                purerpc.Cardinality.STREAM_STREAM,
                benchmarks_dot_protos_dot_bench__pb2.Message,
                benchmarks_dot_protos_dot_bench__pb2.Message,
            )
        )
        return service_obj


class BenchStub:
    def __init__(self, channel):
        self._client = purerpc.Client(
            "bench.Bench",
            channel
        )
        self.Unary = self._client.get_method_stub(
            "Unary",
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_UNARY,
                benchmarks_dot_protos_dot_bench__pb2.Message,
                benchmarks_dot_protos_dot_bench__pb2.Message,
            )
        )
        self.ServerStream = self._client.get_method_stub(
            "ServerStream",
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_STREAM,
                benchmarks_dot_protos_dot_bench__pb2.StreamRequest,
                benchmarks_dot_protos_dot_bench__pb2.Message,
            )
        )
        self.ClientStream = self._client.get_method_stub(
            "ClientStream",
            purerpc.RPCSignature(
                purerpc.Cardinality.STREAM_UNARY,
                benchmarks_dot_protos_dot_bench__pb2.Message,
                benchmarks_dot_protos_dot_bench__pb2.Message,
            )
        )
        self.Bidi = self._client.get_method_stub(
            "Bidi",
            purerpc.RPCSignature(
                purerpc.Cardinality.STREAM_STREAM,
                benchmarks_dot_protos_dot_bench__pb2.Message,
                benchmarks_dot_protos_dot_bench__pb2.Message,
            )
        )