// The part of the generated source that is the same for every instance.
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>

template <class Tag, int N> struct Chain {
  std::array<unsigned long, N> own{};
  Chain<Tag, N - 1> next;
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
template <class Tag> struct Line : Shape<Tag> {
  std::vector<std::tuple<Tag, double, std::string>> ends;
  explicit Line(int n) {
    for (int i = 0; i < n; i++) ends.emplace_back(Tag{}, i * 0.5, "end" + std::to_string(i));
  }
  std::string name() const override { return std::get<2>(ends.back()); }
};

template <class Tag, int Depth> unsigned long work(unsigned long keys) {
  using Value = std::variant<unsigned long, std::string, std::vector<Tag>,
                             std::shared_ptr<Shape<Tag>>>;
  std::map<std::string, Value> ordered;
  std::unordered_map<unsigned long, std::set<std::string>> groups;
  std::vector<std::function<unsigned long(unsigned long)>> steps;
  for (unsigned long i = 0; i < keys; i++) {
    std::string key = "key" + std::to_string((i * Tag::value) % 1013);
    switch (i % 4) {
    case 0: ordered[key] = i; break;
    case 1: ordered[key] = key + std::string(i % 90, 'x'); break;
    case 2: ordered[key] = std::vector<Tag>(i % 50); break;
    default: ordered[key] = std::shared_ptr<Shape<Tag>>(new Line<Tag>(1 + i % 9));
    }
    groups[i % 37].insert(key);
    steps.push_back([key, i](unsigned long x) { return x * 33 + key.size() + i; });
  }
  unsigned long sum = Chain<Tag, Depth>{}.sum(keys);
  for (auto &[key, value] : ordered)
    sum = sum * 131 + std::visit([](auto &v) -> unsigned long {
      using V = std::decay_t<decltype(v)>;
      if constexpr (std::is_same_v<V, unsigned long>) return v;
      else if constexpr (std::is_same_v<V, std::shared_ptr<Shape<Tag>>>) return v->name().size();
      else return v.size();
    }, value);
  for (auto &step : steps) sum = step(sum);
  std::sort(steps.begin(), steps.end(), [](auto &a, auto &b) { return a(1) < b(1); });
  for (auto &[number, group] : groups)
    for (auto &name : group) sum = sum * 7 + name.back() + number;
  return sum;
}
