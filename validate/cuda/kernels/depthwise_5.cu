#include "depthwise.cuh"
KERNELS(5, 512)
