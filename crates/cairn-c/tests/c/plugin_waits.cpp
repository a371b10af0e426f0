/* Waits in its constructor, while the loader has its lock, for a thread that allocates. */
#include <new>
#include <thread>

namespace {
struct Waits {
    Waits()
    {
        std::thread thread([] {
            int *block = new (std::nothrow) int(7);
            delete block;
            delete[] new (std::nothrow) int[100];
            operator delete(operator new(100, std::align_val_t(64), std::nothrow), std::align_val_t(64));
        });
        thread.join();
    }
} waits;
}
