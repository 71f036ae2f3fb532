// A Group is W neighbouring elements; it is read and written in pieces of up to
// sixteen bytes.
#pragma once
#include "common.cuh"

template <typename T, int W> struct alignas(W * sizeof(T) < 16 ? W * sizeof(T) : 16) Group { T v[W]; };
