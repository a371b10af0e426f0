require 'digest'
require 'json'
require 'set'
require 'zlib'

rounds = ARGV[0].to_i
random = Random.new(42)
digest = ''
Node = Struct.new(:left, :right, :name)
def tree(depth, random) = depth.zero? ? nil : Node.new(tree(depth - 1, random), tree(depth - 1, random), "n#{random.rand(1000)}" * (1 + depth))
def names(node) = node ? names(node.left) + [node.name] + names(node.right) : []

rounds.times do |round|
  table = Hash.new { |hash, key| hash[key] = [] }
  20_000.times do |i|
    key = "key#{random.rand(3000)}"
    table[key] << (i.to_s * (1 + random.rand(12)))
    table.delete("key#{random.rand(3000)}") if (i % 7).zero?
  end
  text = JSON.generate(table.sort.to_h)
  back = Marshal.load(Marshal.dump(JSON.parse(text)))
  packed = Zlib::Deflate.deflate(text)
  raise 'zlib' unless Zlib::Inflate.inflate(packed) == text
  all = names(tree(12, random))
  found = text.scan(/key(\d+)":\["(\d{1,6})/).map { |a, b| a.to_i * b.to_i }.sum
  threads = 4.times.map do |n|
    Thread.new { Digest::SHA256.hexdigest((0..3000).map { |i| "#{n}-#{i}" * (i % 40) }.to_set.to_a.join) }
  end
  lines = Fiber.new { 500.times { |i| Fiber.yield('fiber' * i) }; nil }
  sizes = 500.times.sum { lines.resume.size }
  big = 'x' * (1 << 20)
  8.times { big << text }
  big = big[1000, big.size / 2].gsub(/key1/, 'lock')
  digest = Digest::SHA256.hexdigest([digest, back.size, packed.size > 100, all.join, found, threads.map(&:value), sizes, big].join('|'))
  GC.start
  GC.compact if (round % 4).zero? && GC.respond_to?(:compact)
  reader, writer = IO.pipe
  pid = fork do
    reader.close
    writer.write(Digest::SHA256.hexdigest(table.keys.sort.join))
  end
  writer.close
  digest = Digest::SHA256.hexdigest(digest + reader.read)
  Process.wait(pid)
  raise 'child' unless $?.success?
end
puts digest
