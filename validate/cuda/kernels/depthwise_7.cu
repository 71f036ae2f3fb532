#include "depthwise.cuh"
KERNELS(7, 512)
