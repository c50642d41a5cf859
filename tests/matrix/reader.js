// SPDX-License-Identifier: Apache-2.0
// reader.js sync|stream|promises FILE...: reads files and prints a line about each.
"use strict";
const fs = require("fs");

async function streamed(path) {
  const parts = [];
  for await (const part of fs.createReadStream(path)) parts.push(part);
  return Buffer.concat(parts);
}

async function handled(path) {
  const file = await fs.promises.open(path);
  const parts = [];
  for (let at = 0; ; ) {
    const {bytesRead, buffer} = await file.read(Buffer.alloc(65536), 0, 65536, at);
    if (bytesRead === 0) break;
    parts.push(buffer.subarray(0, bytesRead));
    at += bytesRead;
  }
  await file.close();
  return Buffer.concat(parts);
}

const ways = {
  sync: async (path) => fs.readFileSync(path),
  stream: streamed,
  promises: async (path) => {
    const [whole, parts] = await Promise.all([fs.promises.readFile(path), handled(path)]);
    if (!whole.equals(parts)) throw new Error(path);
    return whole;
  },
};

async function main([way, ...paths]) {
  const all = await Promise.all(paths.map(ways[way]));
  paths.forEach((path, i) => {
    let sum = 0;
    for (const byte of all[i]) sum = (Math.imul(sum, 31) + byte) >>> 0;
    console.log(path, all[i].length, sum.toString(16));
  });
}

main(process.argv.slice(2));
