local seed = 42
local function random(n) seed = (seed * 1103515245 + 12345) % 2147483648; return (seed >> 8) % n end
local function tree(depth)
  if depth == 0 then return { name = "leaf" .. random(1000) } end
  return { left = tree(depth - 1), right = tree(depth - 1), name = "n" .. depth }
end
local function count(node)
  if not node then return 0 end
  return #node.name + count(node.left) + count(node.right)
end

local sum, kept = 0, {}
for round = 1, tonumber(arg[1]) do
  kept[round % 3] = tree(13)
  sum = sum + count(kept[round % 3])
  local words = {}
  for i = 1, 20000 do
    local key = "k" .. random(4000)
    words[key] = (words[key] or "") .. string.rep(string.char(97 + random(26)), 1 + random(15))
    if i % 5 == 0 then words["k" .. random(4000)] = nil end
  end
  local keys = {}
  for key in pairs(words) do keys[#keys + 1] = key end
  table.sort(keys)
  local lines = {}
  for _, key in ipairs(keys) do lines[#lines + 1] = key .. "=" .. words[key]:upper() end
  for name, value in table.concat(lines, ","):gmatch("k(%d+)=([A-M]+)") do
    sum = (sum + tonumber(name) * #value) % 1000000007
  end
  local steps = {}
  for i = 1, 2000 do
    steps[i] = coroutine.wrap(function(a) while true do a = coroutine.yield(a .. i) end end)
  end
  for i = 1, 2000 do sum = sum + #steps[i]("c") + #steps[i]("d" .. i) end
  local grown = {}
  for i = 1, 100000 do grown[i] = i * 2 end
  sum = sum + #table.concat(grown, " ")
end

-- In a proof: weak tables, finalizers, both collectors, text that is put together in many ways.
if arg[2] then
  for round = 1, tonumber(arg[1]) do
    collectgarbage(round % 2 == 0 and "generational" or "incremental")
    local weak = setmetatable({}, { __mode = "v" })
    for i = 1, 5000 do weak[i] = setmetatable({ i }, { __gc = function(o) sum = sum + #o - 1 end }) end
    local lines = {}
    for i = 1, 20000 do
      local text = string.rep(string.char(97 + random(26)), 1 + random(15))
      lines[#lines + 1] = "k" .. i .. "=" .. text:gsub("[aeiou]", string.upper)
    end
    for i, line in ipairs(lines) do sum = (sum * 31 + #line + line:byte(-1)) % 1000000007 end
    collectgarbage()
  end
end
print(sum)
