random = Random.new(42)
Node = Struct.new(:left, :right, :name, :notes)

def tree(depth, random)
  return nil if depth.zero?
  name = "node #{random.rand(1000)} " * (1 + depth)
  Node.new(tree(depth - 1, random), tree(depth - 1, random), name, [depth, name.size, nil, name])
end

def total(node) = node ? total(node.left) + node.name.size + node.notes[1] + total(node.right) : 0

sum = 0
kept = []
ARGV[0].to_i.times do |round|
  table = Hash.new { |hash, key| hash[key] = [] }
  15_000.times do |i|
    table["key of length #{random.rand(3000)} and more"] << i.to_s * (1 + random.rand(12))
    table.delete("key of length #{random.rand(3000)} and more") if (i % 7).zero?
  end
  text = table.sort.map { |key, values| "#{key}=#{values.join(',')}" }.join("\n")
  sum += text.scan(/length (\d+).*?=(\d+)/).sum { |a, b| a.to_i + b.size }
  sum += text.split("\n").map { |line| line.gsub('key', 'lock').size }.sum
  kept << tree(12, random)
  kept.shift if kept.size > 3
  sum += total(kept.last)
  big = +''
  200.times { |i| big << text[i, 2000] }
  sum += big.size + Marshal.load(Marshal.dump(table.to_a)).size
end

# In a proof: digests, threads, fibers, zlib, sets, JSON, heap compaction, children.
def more(rounds, random, digest)
  %w[digest json set zlib].each { |library| require library }
  rounds.times do |round|
    table = Hash.new { |hash, key| hash[key] = [] }
    20_000.times { |i| table["key#{random.rand(3000)}"] << i.to_s * (1 + random.rand(12)) }
    text = JSON.generate(table.sort.to_h)
    raise 'json' unless JSON.parse(text) == table
    raise 'zlib' unless Zlib::Inflate.inflate(Zlib::Deflate.deflate(text)) == text
    threads = 4.times.map { |n| Thread.new { (0..3000).map { |i| "#{n}-#{i}" * (i % 40) }.to_set.to_a.join } }
    lines = Fiber.new { 500.times { |i| Fiber.yield('fiber' * i) } }
    sizes = 500.times.sum { lines.resume.size }
    big = ('x' * (1 << 20)) << text
    big = big[1000, big.size].gsub(/key1/, 'lock')
    GC.start
    GC.compact if (round % 4).zero? && GC.respond_to?(:compact)
    child = IO.popen('-') { |reader| reader ? reader.read : print(table.keys.sort.join) }
    raise 'child' unless $?.success?
    digest = Digest::SHA256.hexdigest([digest, threads.map(&:value), sizes, big, child].join('|'))
  end
  digest
end

puts ARGV[1] ? more(ARGV[0].to_i, random, sum.to_s) : sum
