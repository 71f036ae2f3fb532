#include "attention.cuh"

WIDTH(256, 32, 16, 16, 16)
