#include "attention.cuh"

WIDTH(64, 64, 64, 64, 64)
