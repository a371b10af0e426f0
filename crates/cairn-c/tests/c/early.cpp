/* A program whose C++ library allocates while it is loaded: how many KiB of addresses it has. */
#include <cstdio>
#include <iostream>

int main()
{
    unsigned long pages = 0;
    FILE *file = std::fopen("/proc/self/statm", "r");
    if (!file || std::fscanf(file, "%lu", &pages) != 1) return 1;
    std::fclose(file);
    std::cout << pages * 4 << std::endl;
}
