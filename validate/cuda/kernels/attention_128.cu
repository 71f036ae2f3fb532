#include "attention.cuh"

WIDTH(128, 64, 32, 32, 32)
