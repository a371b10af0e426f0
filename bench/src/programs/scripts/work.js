const crypto = require('crypto');
const zlib = require('zlib');

let seed = 42;
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
console.log(hash.digest('hex'));
