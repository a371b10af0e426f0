// The same in C++: a container, and a heap of its own.
#include <cairn.hpp>
#include <cstdio>
#include <vector>

int main()
{
    std::vector<int> numbers(1000, 7);
    if (cairn_base(numbers.data()) != numbers.data()) {
        return 1;
    }
    std::puts(cairn_version());
}
