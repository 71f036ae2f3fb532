#include "depthwise.cuh"
KERNELS(3, 1024)
