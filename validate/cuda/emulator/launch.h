// What the driver asks of the emulator.
#pragma once
#include <stddef.h>
#include <vector_types.h>

namespace emulator {
// Limits of compute capability 7.0, in bytes (CUDA C++ Programming Guide, table of
// technical specifications).
const size_t kSharedMost = 96 << 10, kSharedFree = 48 << 10, kArgumentsMost = 4 << 10;

// launch runs a kernel, a function that takes one struct by value, of 17 to
// kArgumentsMost bytes. One launch at a time.
void launch(const char* name, void* kernel, dim3 grid, dim3 threads, unsigned shared, const void* args, size_t bytes);
}  // namespace emulator
