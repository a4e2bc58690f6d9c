'use strict';
// A server of the standard interoperability tests on grpc-js: node server.js --port=8080

const fs = require('fs');
const grpc = require('@grpc/grpc-js');
const { testing, flags, ECHO_INITIAL, ECHO_TRAILING } = require('./common');

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Sends the initial metadata back and returns the trailing metadata.
function echo(call) {
  const initial = call.metadata.get(ECHO_INITIAL);
  if (initial.length) {
    const metadata = new grpc.Metadata();
    metadata.set(ECHO_INITIAL, initial[0]);
    call.sendMetadata(metadata);
  }
  const trailing = new grpc.Metadata();
  for (const value of call.metadata.get(ECHO_TRAILING)) trailing.set(ECHO_TRAILING, value);
  return trailing;
}

function fault(status, metadata) {
  return { code: status.code, details: status.message, metadata };
}

function unaryCall(call, callback) {
  const trailing = echo(call);
  const { response_size: size, response_status: status, fill_server_id: fill } = call.request;
  if (status && status.code) return callback(fault(status, trailing));
  return callback(null, { payload: { body: Buffer.alloc(size) }, server_id: fill ? 'grpc-js' : '' }, trailing);
}

async function answer(call, request) {
  for (const parameter of request.response_parameters) {
    if (parameter.interval_us) await sleep(parameter.interval_us / 1000);
    call.write({ payload: { body: Buffer.alloc(parameter.size) } });
  }
}

async function streamingOutputCall(call) {
  const trailing = echo(call);
  await answer(call, call.request);
  call.end(trailing);
}

function streamingInputCall(call, callback) {
  let size = 0;
  call.on('data', (request) => {
    size += request.payload ? request.payload.body.length : 0;
  });
  call.on('error', () => {});
  call.on('end', () => callback(null, { aggregated_payload_size: size }));
}

function duplex(half) {
  return (call) => {
    const trailing = echo(call);
    const waiting = [];
    let last = Promise.resolve();
    const reply = (request) => {
      last = last.then(async () => {
        await answer(call, request);
        const status = request.response_status;
        if (status && status.code) call.emit('error', fault(status, trailing));
      });
    };
    call.on('data', (request) => (half ? waiting.push(request) : reply(request)));
    call.on('error', () => {});
    call.on('end', () => {
      waiting.forEach(reply);
      last.then(() => call.end(trailing));
    });
  };
}

const server = new grpc.Server();
server.addService(testing.TestService.service, {
  EmptyCall: (call, callback) => callback(null, {}),
  UnaryCall: unaryCall,
  StreamingOutputCall: streamingOutputCall,
  StreamingInputCall: streamingInputCall,
  FullDuplexCall: duplex(false),
  HalfDuplexCall: duplex(true),
});
const credentials =
  flags.use_tls === 'true'
    ? grpc.ServerCredentials.createSsl(null, [
        { private_key: fs.readFileSync(flags.tls_key_file), cert_chain: fs.readFileSync(flags.tls_cert_file) },
      ])
    : grpc.ServerCredentials.createInsecure();
server.bindAsync(`127.0.0.1:${flags.port}`, credentials, (error) => {
  if (error) throw error;
});
