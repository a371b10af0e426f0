const crypto = require('crypto');
const zlib = require('zlib');

let seed = require('worker_threads').workerData || 42;
const random = (n) => {
  seed = (Math.imul(seed, 1103515245) + 12345) >>> 1;
  return (seed >>> 8) % n;
};

const hash = crypto.createHash('sha256');
let kept = [];
for (let round = 0; round < Number(process.argv[2]); round++) {
  const words = new Map();
  for (let i = 0; i < 10000; i++) {
    const key = 'k' + random(3000);
    words.set(key, (words.get(key) || '') + String.fromCharCode(97 + random(26)).repeat(random(20)));
  }
  const text = JSON.stringify([...words].sort());
  const buffers = [];
  for (let i = 0; i < 1500; i++) {
    const size = 1 + random(random(40) === 0 ? 200000 : 6000);
    buffers.push(Buffer.alloc(size, i & 255));
  }
  kept.push(buffers.filter((_, i) => i % 3 === 0));
  if (kept.length > 3) kept.shift();
  const lines = text.match(/.{1,2000}/g).slice(0, 40);
  for (const line of lines) {
    const packed = zlib.deflateSync(line, { level: 1 });
    if (zlib.inflateSync(packed).toString() !== line) throw new Error('zlib');
    hash.update(crypto.createHash('md5').update(packed).digest());
  }
  hash.update(Buffer.concat(buffers));
}

// In a proof: other compressors, ciphers, worker threads, streams.
async function more(rounds, digest) {
  const { Worker } = require('worker_threads');
  const { promisify } = require('util');
  for (let round = 1; round <= rounds; round++) {
    const workers = [1, 2, 3].map((n) => new Promise((done, fail) => {
      const worker = new Worker(__filename, { argv: ['2'], workerData: round * 10 + n });
      worker.on('message', done).on('error', fail);
    }));
    const streams = [1, 2, 3, 4].map((n) => promisify(zlib.deflate)(Buffer.alloc(1 << 20, String(n * round))));
    const text = Array.from({ length: 40000 }, () => String.fromCharCode(97 + random(26))).join('');
    if (zlib.gunzipSync(zlib.gzipSync(text)).toString() !== text) throw new Error('gzip');
    const key = crypto.pbkdf2Sync('cairn', 'salt', 2000, 32, 'sha512');
    const cipher = crypto.createCipheriv('aes-256-gcm', key, Buffer.alloc(12));
    const all = [digest, zlib.brotliDecompressSync(zlib.brotliCompressSync(text)), cipher.update(text), cipher.final()];
    all.push(...await Promise.all(workers), ...(await Promise.all(streams)).map((packed) => zlib.inflateSync(packed)));
    digest = all.reduce((hash, part) => hash.update(part), crypto.createHash('sha256')).digest('hex');
  }
  return digest;
}

const { isMainThread, parentPort } = require('worker_threads');
const digest = hash.digest('hex');
if (!isMainThread) {
  parentPort.postMessage(digest);
} else if (process.argv[3]) {
  more(Number(process.argv[2]), digest).then(console.log);
} else {
  console.log(digest);
}
