local rounds = tonumber(arg[1])
local seed = 42
local function rnd(n) seed = (seed * 1103515245 + 12345) % 2147483648; return (seed >> 8) % n end
local hash = 5381
local function mix(s) for i = 1, #s, 7 do hash = (hash * 33 + s:byte(i)) & 0xffffffffffff end end

for round = 1, rounds do
  collectgarbage(round % 2 == 0 and "generational" or "incremental")
  local t = {}
  for i = 1, 30000 do
    local key = "k" .. rnd(4000)
    t[key] = (t[key] or "") .. string.rep(string.char(97 + rnd(26)), 1 + rnd(15))
    if i % 5 == 0 then t["k" .. rnd(4000)] = nil end
  end
  local keys = {}
  for k in pairs(t) do keys[#keys + 1] = k end
  table.sort(keys)
  local lines = {}
  for _, k in ipairs(keys) do lines[#lines + 1] = k .. "=" .. t[k]:gsub("[aeiou]", string.upper) end
  local text = table.concat(lines, ",")
  mix(text)
  for name, value in text:gmatch("k(%d+)=([a-m]+)") do hash = (hash + tonumber(name) * #value) & 0xffffffffffff end
  local function tree(d) if d == 0 then return nil end return { l = tree(d - 1), r = tree(d - 1), n = string.rep("x", d) } end
  local function count(n) return n and count(n.l) + count(n.r) + #n.n or 0 end
  hash = hash + count(tree(14))
  local co = {}
  for i = 1, 2000 do co[i] = coroutine.wrap(function(a) while true do a = coroutine.yield(a .. i) end end) end
  for i = 1, 2000 do mix(co[i]("c")); mix(co[i]("d" .. i)) end
  local weak = setmetatable({}, { __mode = "v" })
  for i = 1, 5000 do weak[i] = setmetatable({ i }, { __gc = function(o) hash = hash ~ 0 end }) end
  local grown = {}
  for i = 1, 200000 do grown[i] = i * 2 end
  mix(table.concat(grown, " ", 100000, 150000))
  collectgarbage()
end
print(string.format("%x", hash))
