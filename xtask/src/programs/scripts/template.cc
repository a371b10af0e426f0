// The part of the generated source that is the same for every instance.
#include <algorithm>
#include <deque>
#include <functional>
#include <future>
#include <iostream>
#include <list>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>

template <class Tag, int N> struct Chain {
  using Next = Chain<Tag, N - 1>;
  std::array<unsigned long, N> own{};
  Next next;
  unsigned long sum(unsigned long seed) {
    std::iota(own.begin(), own.end(), seed ^ Tag::value);
    return std::accumulate(own.begin(), own.end(), next.sum(seed * N + 1));
  }
};
template <class Tag> struct Chain<Tag, 0> {
  unsigned long sum(unsigned long seed) { return seed; }
};

template <class Tag> struct Shape {
  virtual ~Shape() = default;
  virtual std::string name() const = 0;
};
template <class Tag> struct Dot : Shape<Tag> {
  std::string name() const override { return "dot" + std::to_string(Tag::value); }
};
template <class Tag> struct Line : Shape<Tag> {
  std::vector<std::tuple<Tag, double, std::string>> ends;
  explicit Line(int n) { for (int i = 0; i < n; i++) ends.emplace_back(Tag{}, i * 0.5, "end" + std::to_string(i)); }
  std::string name() const override { return std::get<2>(ends.back()); }
};

template <class Tag, int Depth> unsigned long work(unsigned long keys) {
  using Value = std::variant<unsigned long, std::string, std::vector<Tag>, std::shared_ptr<Shape<Tag>>>;
  std::map<std::string, Value> ordered;
  std::unordered_map<unsigned long, std::set<std::string>> groups;
  std::list<std::function<unsigned long(unsigned long)>> steps;
  std::deque<std::optional<std::string>> queue;
  for (unsigned long i = 0; i < keys; i++) {
    std::string key = "key" + std::to_string((i * Tag::value) % 1013);
    switch (i % 4) {
    case 0: ordered[key] = i; break;
    case 1: ordered[key] = key + std::string(i % 90, 'x'); break;
    case 2: ordered[key] = std::vector<Tag>(i % 50); break;
    default:
      if (i % 8 == 3) ordered[key] = std::shared_ptr<Shape<Tag>>(std::make_shared<Dot<Tag>>());
      else ordered[key] = std::shared_ptr<Shape<Tag>>(new Line<Tag>(1 + i % 9));
    }
    groups[i % 37].insert(key);
    if (i % 50 == 0) steps.push_back([key, i](unsigned long x) { return x * 33 + key.size() + i; });
    queue.push_back(i % 3 ? std::optional<std::string>(key) : std::nullopt);
    if (queue.size() > 64) queue.pop_front();
  }
  unsigned long sum = Chain<Tag, Depth>{}.sum(keys);
  for (auto &[key, value] : ordered)
    sum = sum * 131 + key.size() + std::visit([](auto &v) -> unsigned long {
      using V = std::decay_t<decltype(v)>;
      if constexpr (std::is_same_v<V, unsigned long>) return v;
      else if constexpr (std::is_same_v<V, std::shared_ptr<Shape<Tag>>>) return v->name().size();
      else return v.size();
    }, value);
  for (auto &step : steps) sum = step(sum);
  for (unsigned long i = 0; i < 37; i++) for (auto &name : groups[i]) sum = sum * 7 + name.back();
  std::ostringstream out;
  for (auto &one : queue) if (one) out << *one << ' ';
  std::string line = out.str();
  static const std::regex pattern("key([0-9])([0-9]+) ");
  for (std::sregex_iterator it(line.begin(), line.end(), pattern), end; it != end; ++it) sum += it->str(2).size();
  auto other = std::async(std::launch::async, [ordered] { return ordered.size(); });
  return sum + other.get();
}

