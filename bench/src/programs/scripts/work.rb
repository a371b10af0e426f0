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
puts sum
