/*
 * A server with a heap for each request: containers and strings of a request lie in its heap, and all of it goes at once.
 * A request that wants too much meets the heap's limit, and no other notices.
 *
 *     c++ -std=c++17 -O2 requests.cpp -lcairn -o requests && ./requests
 */
#include <cairn.hpp>

#include <algorithm>
#include <cstdio>
#include <new>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace {

/* What a request asks for: how many words of a text are to be counted. */
struct request {
    std::string_view text;
    std::size_t times;
};

/* Counts words; all that it needs is in `heap`. The most frequent one's count. */
std::size_t handle(cairn::heap &heap, const request &request) {
    cairn::heap_resource memory(heap, false); /* nothing is freed one by one */
    std::pmr::unordered_map<std::pmr::string, std::size_t> counts(&memory);
    std::pmr::vector<std::pmr::string> words(&memory);
    for (std::size_t time = 0; time < request.times; time++) {
        for (std::size_t at = 0; at < request.text.size();) {
            std::size_t end = request.text.find(' ', at);
            if (end == std::string_view::npos) end = request.text.size();
            words.emplace_back(request.text.substr(at, end - at));
            at = end + 1;
        }
    }
    std::size_t most = 0;
    for (const auto &word : words) most = std::max(most, ++counts[word]);
    return most;
}

} // namespace

int main() {
    const request requests[] = {
        {"the quick brown fox jumps over the lazy dog", 100},
        {"a request that nobody should have sent", 10000000},
        {"and one more for which there is memory", 1000},
    };
    std::size_t served = 0, refused = 0, most = 0, peak = 0;
    for (int round = 0; round < 20; round++) {
        for (const request &request : requests) {
            cairn::heap heap;
            heap.set_limits(0, 8 << 20);
            try {
                most = std::max(most, handle(heap, request));
                served++;
            } catch (const std::bad_alloc &) {
                refused++; /* 503 */
            }
            peak = std::max(peak, heap.stats().peak);
        }
    }
    std::printf("served %zu, refused %zu, most frequent %zu, largest heap %zu KiB\n", served, refused, most, peak / 1024);
}
