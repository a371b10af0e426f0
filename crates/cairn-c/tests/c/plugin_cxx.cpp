/* The part of a plugin that is written in C++: memory goes to and fro between it and the C++ library. */
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

__attribute__((constructor)) static void use_the_cxx_library()
{
    std::string text(100, 'x');
    text.append(1000, 'y').reserve(5000);
    text.shrink_to_fit();
    std::ostringstream out;
    out << text << 3.14;
    std::map<std::string, std::vector<int>> numbers;
    for (int i = 0; i < 100; i++) numbers[std::to_string(i)].push_back(i);
    try {
        throw std::runtime_error(out.str());
    } catch (const std::exception &thrown) {
        text = thrown.what();
    }
    if (numbers.size() != 100 || text.size() != 1104) throw std::logic_error("the plugin");
}
