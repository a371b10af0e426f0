const crypto = require('crypto');
const zlib = require('zlib');
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');

let seed = 42;
const rnd = (n) => { seed = (Math.imul(seed, 1103515245) + 12345) >>> 1; return (seed >>> 8) % n; };
const sha = (...all) => { const h = crypto.createHash('sha256'); all.forEach((a) => h.update(a)); return h.digest('hex'); };

function work(start) {
  seed = start;
  const map = new Map();
  for (let i = 0; i < 30000; i++) {
    const key = 'k' + rnd(4000);
    map.set(key, (map.get(key) || '') + String.fromCharCode(97 + rnd(26)).repeat(1 + rnd(20)));
    if (i % 5 === 0) map.delete('k' + rnd(4000));
  }
  const text = JSON.stringify([...map].sort());
  const back = JSON.parse(text);
  const buffers = [];
  for (let i = 0; i < 300; i++) {
    const b = Buffer.alloc(1 + rnd(200000), i & 255);
    if (i % 3) buffers.push(b.subarray(0, b.length >> 1)); else buffers.unshift(Buffer.from(b));
  }
  const joined = Buffer.concat(buffers);
  const packed = zlib.gzipSync(text, { level: 6 });
  if (zlib.gunzipSync(packed).toString() !== text) throw new Error('zlib');
  const brotli = zlib.brotliDecompressSync(zlib.brotliCompressSync(Buffer.from(text.slice(0, 50000)), { params: { [zlib.constants.BROTLI_PARAM_QUALITY]: 5 } }));
  const key = crypto.pbkdf2Sync('cairn', 'salt', 2000, 32, 'sha512');
  const cipher = crypto.createCipheriv('aes-256-gcm', key, Buffer.alloc(12));
  const secret = Buffer.concat([cipher.update(joined), cipher.final(), cipher.getAuthTag()]);
  return sha(text, String(back.length), joined, brotli, secret);
}

if (!isMainThread) {
  parentPort.postMessage(work(workerData));
} else {
  (async () => {
    const rounds = Number(process.argv[2]);
    let digest = '';
    for (let round = 1; round <= rounds; round++) {
      const others = [1, 2, 3].map((n) => new Promise((done, fail) => {
        const worker = new Worker(__filename, { workerData: round * 10 + n });
        worker.on('message', done).on('error', fail);
      }));
      const streams = [1, 2, 3, 4].map((n) => new Promise((done, fail) =>
        zlib.deflate(Buffer.alloc(1 << 20, String(n * round)), (error, out) => error ? fail(error) : done(sha(zlib.inflateSync(out))))));
      digest = sha(digest, work(round), ...(await Promise.all(others)), ...(await Promise.all(streams)));
    }
    console.log(digest);
  })();
}
