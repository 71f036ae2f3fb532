// Updates of optimizers with more rules than SGD and Adam: what becomes of an
// element p with gradient g and states s. The numbers c of each are those of
// moreRules in optimizers.go. Nothing here needs a GPU.
#pragma once
#ifndef __CUDACC__
#include <math.h>
#define __device__
#define __forceinline__ static inline
#endif

enum { AMSGRAD, ADAGRAD, RMSPROP, RMSPROP_MOMENTUM, RMSPROP_CENTERED, ADADELTA, LION, ADAMAX, NADAM, RADAM };

__device__ __forceinline__ float optimizer_step(int kind, const float* c, float p, float g, float* s) {
  switch (kind) {
  case AMSGRAD:
    p *= c[3];
    s[0] += c[4] * (g - s[0]);
    s[1] = c[5] * s[1] + c[6] * g * g;
    s[2] = fmaxf(s[2], s[1]);
    return p - c[0] * s[0] / (sqrtf(s[2]) / c[1] + c[2]);
  case ADAGRAD:
    s[0] += g * g;
    return p - c[0] * g / (sqrtf(s[0]) + c[1]);
  case RMSPROP:
  case RMSPROP_MOMENTUM:
  case RMSPROP_CENTERED: {
    s[0] = c[1] * s[0] + c[2] * g * g;
    float v = s[0];
    if (kind == RMSPROP_CENTERED) {
      s[1] += c[2] * (g - s[1]);
      v -= s[1] * s[1];
    }
    g /= sqrtf(v) + c[3];
    if (kind == RMSPROP_MOMENTUM) g = s[1] = c[4] * s[1] + g;
    return p - c[0] * g;
  }
  case ADADELTA: {
    s[0] = c[1] * s[0] + c[2] * g * g;
    float d = sqrtf(s[1] + c[3]) / sqrtf(s[0] + c[3]) * g;
    s[1] = c[1] * s[1] + c[2] * d * d;
    return p - c[0] * d;
  }
  case LION: {
    float u = c[1] * s[0] + c[2] * g;
    s[0] = c[3] * s[0] + c[4] * g;
    return u > 0 ? p - c[0] : u < 0 ? p + c[0] : p;
  }
  case ADAMAX:
    s[0] += c[1] * (g - s[0]);
    s[1] = fmaxf(c[2] * s[1], fabsf(g) + c[3]);
    return p - c[0] * s[0] / s[1];
  case NADAM: {
    s[0] += c[4] * (g - s[0]);
    s[1] = c[5] * s[1] + c[6] * g * g;
    float d = sqrtf(s[1]) / c[2] + c[3];
    return p - c[0] * g / d - c[1] * s[0] / d;
  }
  case RADAM:
    s[0] += c[4] * (g - s[0]);
    s[1] = c[5] * s[1] + c[6] * g * g;
    return p - c[0] * s[0] * (c[1] != 0 ? c[1] / (sqrtf(s[1]) + c[2]) : 1);
  }
  return p;
}
