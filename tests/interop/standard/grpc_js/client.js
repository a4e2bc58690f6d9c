'use strict';
// A client of the standard interoperability tests on grpc-js: node client.js --server_port=8080 --test_case=large_unary

const assert = require('assert');
const fs = require('fs');
const grpc = require('@grpc/grpc-js');
const { testing, flags, ECHO_INITIAL, ECHO_TRAILING } = require('./common');

const PATIENCE_MS = 30000;
const UPLOADS = [27182, 8, 1828, 45904];
const DOWNLOADS = [31415, 9, 2653, 58979];
const GZIP = { 'grpc.default_compression_algorithm': 2 };

function open(options = {}, Service = testing.TestService) {
  const tls = flags.use_tls === 'true';
  const credentials = tls
    ? grpc.credentials.createSsl(fs.readFileSync(flags.ca_file))
    : grpc.credentials.createInsecure();
  const override = flags.server_host_override ? { 'grpc.ssl_target_name_override': flags.server_host_override } : {};
  // By default clients of one target share connections.
  return new Service(`${flags.server_host}:${flags.server_port}`, credentials, {
    'grpc.use_local_subchannel_pool': 1,
    ...override,
    ...options,
  });
}

const soon = () => ({ deadline: Date.now() + PATIENCE_MS });

// What came of a unary call or a client stream.
function unary(client, method, request, metadata = new grpc.Metadata(), options = soon()) {
  return new Promise((resolve, reject) => {
    const seen = {};
    const call = client[method](request, metadata, options, (error, response) => {
      seen.response = response;
      seen.error = error;
    });
    call.on('metadata', (initial) => {
      seen.initial = initial;
    });
    call.on('status', (status) => {
      seen.trailing = status.metadata;
      setImmediate(() => (seen.error ? reject(seen.error) : resolve(seen)));
    });
  });
}

// A stream whose responses are awaited one by one.
class Stream {
  constructor(call) {
    this.call = call;
    this.status = new Promise((resolve) => call.on('status', resolve));
    this.initial = new Promise((resolve) => call.on('metadata', resolve));
    this.responses = call[Symbol.asyncIterator]();
  }

  async receive() {
    const { value, done } = await this.responses.next();
    return done ? null : value;
  }
}

const duplex = (client, metadata = new grpc.Metadata(), options = soon()) =>
  new Stream(client.FullDuplexCall(metadata, options));

const largeRequest = (fields = {}) => ({ response_size: 314159, payload: { body: Buffer.alloc(271828) }, ...fields });
const outputRequest = (upload, ...sizes) => ({
  response_parameters: sizes.map((size) => ({ size })),
  payload: { body: Buffer.alloc(upload) },
});
const checkLarge = ({ response }) => assert.ok(response.payload.body.equals(Buffer.alloc(314159)), 'payload');

async function fails(promise, code, message) {
  let error = null;
  try {
    await promise;
  } catch (caught) {
    error = caught;
  }
  assert.ok(error, `ended with OK instead of ${code}`);
  assert.strictEqual(error.code, code, String(error));
  if (message !== undefined) assert.strictEqual(error.details, message);
}

const soak = async (large) => {
  for (let number = 0; number < 10; number += 1) await large(number);
};

const cases = {
  async empty_unary(client) {
    await unary(client, 'EmptyCall', {});
  },
  async large_unary(client) {
    checkLarge(await unary(client, 'UnaryCall', largeRequest()));
  },
  async client_compressed_unary(client) {
    const expecting = largeRequest({ expect_compressed: { value: true } });
    await fails(unary(client, 'UnaryCall', expecting), grpc.status.INVALID_ARGUMENT);
    const compressing = open(GZIP);
    checkLarge(await unary(compressing, 'UnaryCall', expecting));
    checkLarge(await unary(client, 'UnaryCall', largeRequest({ expect_compressed: { value: false } })));
    compressing.close();
  },
  async server_compressed_unary(client) {
    for (const value of [true, false]) {
      checkLarge(await unary(client, 'UnaryCall', largeRequest({ response_compressed: { value } })));
    }
  },
  async server_compressed_streaming(client) {
    const call = new Stream(
      client.StreamingOutputCall(
        {
          response_parameters: [
            { size: 31415, compressed: { value: true } },
            { size: 92653, compressed: { value: false } },
          ],
        },
        soon()
      )
    );
    for (const size of [31415, 92653]) assert.strictEqual((await call.receive()).payload.body.length, size);
    assert.strictEqual(await call.receive(), null);
  },
  async client_streaming(client) {
    const response = await new Promise((resolve, reject) => {
      const call = client.StreamingInputCall(soon(), (error, value) => (error ? reject(error) : resolve(value)));
      for (const size of UPLOADS) call.write({ payload: { body: Buffer.alloc(size) } });
      call.end();
    });
    assert.strictEqual(response.aggregated_payload_size, 74922);
  },
  async server_streaming(client) {
    const call = new Stream(client.StreamingOutputCall(outputRequest(0, ...DOWNLOADS), soon()));
    for (const size of DOWNLOADS) assert.strictEqual((await call.receive()).payload.body.length, size);
    assert.strictEqual(await call.receive(), null);
  },
  async ping_pong(client) {
    const stream = duplex(client);
    for (const [number, upload] of UPLOADS.entries()) {
      stream.call.write(outputRequest(upload, DOWNLOADS[number]));
      assert.strictEqual((await stream.receive()).payload.body.length, DOWNLOADS[number]);
    }
    stream.call.end();
    assert.strictEqual(await stream.receive(), null);
    assert.strictEqual((await stream.status).code, grpc.status.OK);
  },
  async empty_stream(client) {
    const stream = duplex(client);
    stream.call.end();
    assert.strictEqual(await stream.receive(), null);
    assert.strictEqual((await stream.status).code, grpc.status.OK);
  },
  async custom_metadata(client) {
    const value = Buffer.from([0xab, 0xab, 0xab]);
    const metadata = new grpc.Metadata();
    metadata.set(ECHO_INITIAL, 'test_initial_metadata_value');
    metadata.set(ECHO_TRAILING, value);
    const check = (initial, trailing) => {
      assert.deepStrictEqual(initial.get(ECHO_INITIAL), ['test_initial_metadata_value']);
      assert.deepStrictEqual(trailing.get(ECHO_TRAILING), [value]);
    };
    const seen = await unary(client, 'UnaryCall', largeRequest(), metadata);
    checkLarge(seen);
    check(seen.initial, seen.trailing);
    const stream = duplex(client, metadata);
    stream.call.write(outputRequest(271828, 314159));
    stream.call.end();
    assert.strictEqual((await stream.receive()).payload.body.length, 314159);
    assert.strictEqual(await stream.receive(), null);
    check(await stream.initial, (await stream.status).metadata);
  },
  async status_code_and_message(client) {
    const status = { code: 2, message: 'test status message' };
    await fails(unary(client, 'UnaryCall', { response_status: status }), 2, status.message);
    const stream = duplex(client);
    stream.call.write({ response_status: status });
    stream.call.end();
    await fails(stream.receive(), 2, status.message);
  },
  async special_status_message(client) {
    const message = '\t\ntest with whitespace\r\nand Unicode BMP \u263a and non-BMP \u{1f608}\t\n';
    await fails(unary(client, 'UnaryCall', { response_status: { code: 2, message } }), 2, message);
  },
  async unimplemented_method(client) {
    await fails(unary(client, 'UnimplementedCall', {}), grpc.status.UNIMPLEMENTED);
  },
  async unimplemented_service() {
    const other = open({}, testing.UnimplementedService);
    await fails(unary(other, 'UnimplementedCall', {}), grpc.status.UNIMPLEMENTED);
    other.close();
  },
  async cancel_after_begin(client) {
    await fails(
      new Promise((resolve, reject) => {
        const call = client.StreamingInputCall(soon(), (error) => (error ? reject(error) : resolve()));
        call.cancel();
      }),
      grpc.status.CANCELLED
    );
    await cases.empty_unary(client);
  },
  async cancel_after_first_response(client) {
    const stream = duplex(client);
    stream.call.write(outputRequest(27182, 31415));
    assert.strictEqual((await stream.receive()).payload.body.length, 31415);
    stream.call.cancel();
    await fails(stream.receive(), grpc.status.CANCELLED);
    await cases.empty_unary(client);
  },
  async timeout_on_sleeping_server(client) {
    const stream = duplex(client, undefined, { deadline: Date.now() + 1 });
    stream.call.write(outputRequest(27182));
    await fails(stream.receive(), grpc.status.DEADLINE_EXCEEDED);
  },
  async concurrent_large_unary(client) {
    await Promise.all(Array.from({ length: 100 }, () => cases.large_unary(client)));
  },
  async rpc_soak(client) {
    await soak(() => cases.large_unary(client));
  },
  async channel_soak() {
    await soak(async () => {
      const client = open();
      await cases.large_unary(client);
      client.close();
    });
  },
  async pick_first_unary(client) {
    const ids = new Set();
    for (let number = 0; number < 20; number += 1) {
      ids.add((await unary(client, 'UnaryCall', { response_size: 1, fill_server_id: true })).response.server_id);
    }
    assert.ok(ids.size === 1 && !ids.has(''), `server ids ${[...ids]}`);
  },
};

(async () => {
  const client = open();
  await cases[flags.test_case](client);
  client.close();
})().catch((error) => {
  console.error(`${flags.test_case}: ${error}`);
  process.exit(1);
});
