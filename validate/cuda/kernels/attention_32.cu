#include "attention.cuh"

WIDTH(32, 64, 64, 64, 64)
