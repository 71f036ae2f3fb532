// Division by numbers that the host knows, of numbers below 2^31: a product and
// a shift (Granlund and Montgomery, "Division by invariant integers using
// multiplication", 1994). strided.go has the numbers.
#pragma once
#include "common.cuh"

struct Divider {
  u32 by, factor, shift;
};

__device__ __forceinline__ u32 quotient(u32 n, const Divider& d) { return (__umulhi(n, d.factor) + n) >> d.shift; }

// split_off leaves the quotient in n and returns the rest.
__device__ __forceinline__ u32 split_off(u32& n, const Divider& d) {
  u32 q = quotient(n, d), r = n - q * d.by;
  n = q;
  return r;
}
