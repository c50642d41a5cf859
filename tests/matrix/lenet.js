// SPDX-License-Identifier: Apache-2.0
// lenet.js read|stream SHARD...: trains a LeNet on TFRecord shards with TensorFlow.js, and prints the losses.
// Their checksums are not looked at. A record is a label's byte and the 28 x 28 bytes of an image.
"use strict";
const fs = require("fs");
const tf = require("@tensorflow/tfjs");

const kSide = 28, kPixels = kSide * kSide, kClasses = 10, kBatch = 8;
/** The records of a shard: `take(n)` gives its next n bytes, or null at its end. */
async function* records(take) {
  for (let head; (head = await take(12)); ) {
    const size = Number(head.readBigUInt64LE(0));
    const body = await take(size + 4);
    yield body.subarray(0, size);
  }
}

function whole(got, size) {
  if (got === 0) return false;
  if (got !== size) throw new Error("a shard ends within a record");
  return true;
}

async function* byRead(path) {
  const fd = fs.openSync(path);
  yield* records((size) => {
    const buffer = Buffer.alloc(size);
    return whole(fs.readSync(fd, buffer), size) ? buffer : null;
  });
  fs.closeSync(fd);
}

async function* byStream(path) {
  const chunks = fs.createReadStream(path, {highWaterMark: 10000})[Symbol.asyncIterator]();
  let rest = Buffer.alloc(0);
  yield* records(async (size) => {
    for (let next; rest.length < size && !(next = await chunks.next()).done; ) rest = Buffer.concat([rest, next.value]);
    const got = rest.subarray(0, size);
    rest = rest.subarray(size);
    return whole(got.length, size) ? got : null;
  });
}

function lenet() {
  const init = (seed) => ({kernelInitializer: tf.initializers.glorotUniform({seed})});
  const model = tf.sequential({layers: [
    tf.layers.conv2d({inputShape: [kSide, kSide, 1], filters: 6, kernelSize: 5, padding: "same", activation: "relu", ...init(1)}),
    tf.layers.maxPooling2d({poolSize: 2, strides: 2}),
    tf.layers.conv2d({filters: 16, kernelSize: 5, activation: "relu", ...init(2)}),
    tf.layers.maxPooling2d({poolSize: 2, strides: 2}),
    tf.layers.flatten(),
    tf.layers.dense({units: 120, activation: "relu", ...init(3)}),
    tf.layers.dense({units: 84, activation: "relu", ...init(4)}),
    tf.layers.dense({units: kClasses, activation: "softmax", ...init(5)}),
  ]});
  model.compile({optimizer: tf.train.sgd(0.05), loss: "sparseCategoricalCrossentropy"});
  return model;
}

async function main([way, ...shards]) {
  await tf.setBackend("cpu");
  const model = lenet();
  let batch = [];
  for (const shard of shards) {
    for await (const record of (way === "read" ? byRead : byStream)(shard)) {
      batch.push(record);
      if (batch.length < kBatch) continue;
      const images = tf.tensor4d(Float32Array.from(Buffer.concat(batch.map((r) => r.subarray(1))), (p) => p / 255),
                                 [kBatch, kSide, kSide, 1]);
      const labels = tf.tensor1d(batch.map((r) => r[0]));
      if (batch.some((r) => r.length !== kPixels + 1)) throw new Error("not an image");
      console.log(shard, await model.trainOnBatch(images, labels));
      batch = [];
    }
  }
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
