// The elementwise operators on floating-point numbers.
#pragma once
#include "common.cuh"

template <typename C> __device__ __forceinline__ C mod_floor(C a, C b) {
  C r = fmod(a, b);
  return r != 0 && ((r < 0) != (b < 0)) ? r + b : r;
}
template <typename C> __device__ __forceinline__ C sigmoid(C x) { return (C)1 / ((C)1 + exp(-x)); }
// logit is the inverse of a sigmoid, of a number between eps and 1 - eps; a negative eps
// bounds nothing.
template <typename C> __device__ __forceinline__ C logit(C x, C eps) {
  if (eps >= 0) x = x < eps ? eps : x > (C)1 - eps ? (C)1 - eps : x;
  return log(x / ((C)1 - x));
}

template <typename C> __device__ __forceinline__ C softplus(C x, C beta, C limit) {
  return x * beta > limit ? x : log1p(exp(x * beta)) / beta;
}
template <typename C> __device__ __forceinline__ C clamped(C x, C lo, C hi) { return x != x ? x : x < lo ? lo : x > hi ? hi : x; }

// digamma is the derivative of lgamma: recurrence up to 10, then the asymptotic
// series; negative numbers by reflection.
template <typename C> __device__ C digamma(C x) {
  C shift = 0;
  if (x < 0) {
    shift = -(C)3.14159265358979323846 / tan((C)3.14159265358979323846 * x);
    x = (C)1 - x;
  }
  for (; x < (C)10; x += (C)1) shift -= (C)1 / x;
  C q = (C)1 / (x * x);
  return shift + log(x) - (C)0.5 / x - q * ((C)(1.0 / 12) - q * ((C)(1.0 / 120) - q * ((C)(1.0 / 252) - q * (C)(1.0 / 240))));
}

// gelu_slope is the derivative of GELU, of the tanh form where approx is set.
template <typename C> __device__ __forceinline__ C gelu_slope(C x, bool approx) {
  if (!approx) return (C)0.5 * ((C)1 + erf(x * (C)0.7071067811865476)) + x * exp(x * x * (C)-0.5) * (C)0.3989422804014327;
  C t = tanh((C)0.7978845608028654 * (x + (C)0.044715 * x * x * x));
  return (C)0.5 * ((C)1 + t) + (C)0.5 * x * ((C)1 - t * t) * (C)0.7978845608028654 * ((C)1 + (C)0.134145 * x * x);
}

// apply_real computes operator op of a, b and c with the parameters p.
template <typename C> __device__ __forceinline__ C apply_real(int op, C a, C b, C c, const double* p) {
  switch (op) {
#define REAL(code, expr) case code: return (C)(expr);
#include "pointwise_real.inc"
#undef REAL
  }
  return (C)NAN;
}

