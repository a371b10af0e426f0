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
{% if program %}
#include <deque>
#include <future>
#include <iostream>
#include <list>
#include <optional>
#include <regex>
#include <sstream>
{% endif %}

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
{% if program %}
  std::list<std::shared_ptr<Line<Tag>>> lines(3, std::make_shared<Line<Tag>>(5));
  std::deque<std::optional<std::string>> queue;
  for (auto &[key, value] : ordered) {
    queue.push_back(key.size() % 3 ? std::optional<std::string>(key) : std::nullopt);
    if (queue.size() > 64) queue.pop_front();
  }
  std::ostringstream out;
  for (auto &one : queue) if (one) out << *one << ' ';
  std::string words = out.str();
  static const std::regex pattern("key([0-9])([0-9]+) ");
  for (std::sregex_iterator it(words.begin(), words.end(), pattern), end; it != end; ++it)
    sum += it->str(2).size();
  auto other = std::async(std::launch::async, [ordered] { return ordered.size(); });
  sum += other.get() + lines.back()->name().size();
{% endif %}
  return sum;
}
{% for i in range(instances) %}
struct Tag{{ i }} { static constexpr unsigned long value = {{ below(1073741824) }}; };
unsigned long part{{ i }}(unsigned long keys) { return work<Tag{{ i }}, {{ 3 + below(8) }}>(keys); }
{% endfor %}
{% if program %}
int main() {
  unsigned long sum = 0;
  for (unsigned long keys = 100; keys < 1000; keys += 45) {
{% for i in range(instances) %}
    sum = sum * 31 + part{{ i }}(keys);
{% endfor %}
  }
  std::cout << std::hex << sum << "\n";
}
{% endif %}
