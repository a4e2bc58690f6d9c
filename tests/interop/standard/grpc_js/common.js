'use strict';
// What client.js and server.js share: flags, and the services.

const path = require('path');
const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');

const root = path.join(__dirname, '..', '..', '..', '..');
const definition = protoLoader.loadSync('tests/interop/standard/testing.proto', {
  includeDirs: [root],
  keepCase: true,
  defaults: true,
  enums: String,
  longs: String,
});

exports.testing = grpc.loadPackageDefinition(definition).grpc.testing;

// --name=value, --name
exports.flags = Object.fromEntries(
  process.argv.slice(2).map((argument) => {
    const [, name, value] = /^--([^=]+)(?:=(.*))?$/s.exec(argument);
    return [name, value === undefined ? 'true' : value];
  })
);

exports.ECHO_INITIAL = 'x-grpc-test-echo-initial';
exports.ECHO_TRAILING = 'x-grpc-test-echo-trailing-bin';
