// What scudo's tests of its malloc wrappers call beside malloc. Only scudo can hold its heap still
// and walk through it; the tests of that fail with every other malloc, with glibc's as well.
#include <gtest/gtest.h>
#include <stddef.h>
#include <stdint.h>

bool UseQuarantine = true;

extern "C" {
void malloc_disable(void) {}
void malloc_enable(void) {}
int malloc_iterate(uintptr_t, size_t, void (*)(uintptr_t, size_t, void *), void *) { return 0; }
}

int main(int argc, char **argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
