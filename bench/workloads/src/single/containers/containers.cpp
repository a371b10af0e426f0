// A program in ordinary C++17: maps of strings, lists, hash tables, shared objects, and a
// family of classes with virtual functions. All memory comes from operator new.

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

/// The same numbers with every standard library.
using Random = std::minstd_rand;

std::uint32_t below(Random& random, std::uint32_t bound) {
    return static_cast<std::uint32_t>((random() >> 8) % bound);
}

using Checksum = std::uint64_t;

void add(Checksum& sum, std::uint64_t value) { sum = (sum ^ value) * 0x100000001b3u; }

/// Short ones fit into the string object itself, long ones do not.
std::string word(std::uint32_t number) {
    std::string text = "word-" + std::to_string(number);
    if (number % 3 == 0) {
        text += " with a longer ending: " + std::to_string(number * 7);
    }
    return text;
}

/// Where words occur.
void index_words(Random& random, Checksum& checksum) {
    std::map<std::string, std::vector<std::uint32_t>> index;
    for (std::uint32_t place = 0; place < 30000; ++place) {
        index[word(below(random, 6000))].push_back(place);
        if (place % 4 == 0) {
            index.erase(word(below(random, 6000)));
        }
    }
    for (const auto& [text, places] : index) {
        add(checksum, text.size());
        add(checksum, places.size());
        add(checksum, places.back());
    }
}

/// Keeps the values that were used last.
class Cache {
public:
    explicit Cache(std::size_t capacity) : capacity_(capacity) {}

    const std::string& get(const std::string& key) {
        auto found = places_.find(key);
        if (found != places_.end()) {
            entries_.splice(entries_.begin(), entries_, found->second);
            return entries_.front().second;
        }
        ++misses_;
        if (entries_.size() == capacity_) {
            places_.erase(entries_.back().first);
            entries_.pop_back();
        }
        entries_.emplace_front(key, "value of " + key);
        places_[key] = entries_.begin();
        return entries_.front().second;
    }

    std::uint64_t misses() const { return misses_; }

private:
    using Entries = std::list<std::pair<std::string, std::string>>;
    std::size_t capacity_;
    std::uint64_t misses_ = 0;
    Entries entries_;
    std::unordered_map<std::string, Entries::iterator> places_;
};

void use_cache(Random& random, Checksum& checksum) {
    Cache cache(2000);
    for (int i = 0; i < 30000; ++i) {
        add(checksum, cache.get(word(below(random, 1 + below(random, 8000)))).size());
    }
    add(checksum, cache.misses());
}

class Shape {
public:
    virtual ~Shape() = default;
    virtual std::uint64_t size() const = 0;
};

class Point final : public Shape {
public:
    std::uint64_t size() const override { return 1; }
};

class Box final : public Shape {
public:
    explicit Box(Random& random)
        : sides_{below(random, 100), below(random, 100), below(random, 9)} {}
    std::uint64_t size() const override { return sides_[0] * sides_[1] + sides_[2]; }

private:
    std::uint64_t sides_[3];
};

class Path final : public Shape {
public:
    explicit Path(Random& random) {
        for (std::uint32_t left = below(random, 40); left > 0; --left) {
            steps_.push_back(below(random, 1000));
        }
    }
    std::uint64_t size() const override { return steps_.size(); }

private:
    std::vector<std::uint32_t> steps_;
};

std::shared_ptr<Shape> random_shape(Random& random) {
    switch (below(random, 3)) {
        case 0: return std::make_shared<Point>();
        case 1: return std::shared_ptr<Shape>(new Box(random));
        default: return std::shared_ptr<Shape>(new Path(random));
    }
}

/// Scenes share shapes; a shape goes with the last scene that has it.
void draw_scenes(Random& random, Checksum& checksum) {
    std::vector<std::vector<std::shared_ptr<Shape>>> scenes(200);
    std::vector<std::weak_ptr<Shape>> seen;
    for (int i = 0; i < 40000; ++i) {
        auto& scene = scenes[below(random, 200)];
        const auto& other = scenes[below(random, 200)];
        if (!other.empty() && below(random, 3) == 0) {
            auto shared = other[below(random, static_cast<std::uint32_t>(other.size()))];
            scene.push_back(std::move(shared));
        } else {
            scene.push_back(random_shape(random));
            if (i % 16 == 0) {
                seen.push_back(scene.back());
            }
        }
        if (scene.size() > 100) {
            scene.erase(scene.begin(), scene.begin() + 50);
        }
    }
    for (const auto& shape : seen) {
        auto alive = shape.lock();
        add(checksum, alive ? alive->size() : 0);
    }
    for (const auto& scene : scenes) {
        for (const auto& shape : scene) {
            add(checksum, shape->size());
        }
    }
}

}  // namespace

/// One round of all of it; returns a checksum that depends on the seed only.
extern "C" std::uint64_t cairn_containers_round(std::uint64_t seed) {
    Random random(static_cast<Random::result_type>(seed));
    Checksum checksum = 0xcbf29ce484222325u;
    index_words(random, checksum);
    use_cache(random, checksum);
    draw_scenes(random, checksum);
    return checksum;
}
