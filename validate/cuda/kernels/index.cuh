// Tensors that are read or written at the places that index tensors say.
#pragma once
#include "common.cuh"

__device__ __forceinline__ i64 index_at(const void* p, int dt, i64 i) { return dt == I32 ? ((const int*)p)[i] : ((const i64*)p)[i]; }

// Indexing by tensors, gather and scatter, over strided operands of any type.
struct Index {
  i64 n;                 // elements of the result, or of the values written
  int dims, indices;     // of that tensor, and how many index tensors
  i64 size[8];
  i64 value_stride[8];   // of the result, or of the values
  i64 base_stride[8];    // of the indexed tensor along each dim of the result; 0 where an index decides
  i64 index_stride[4][8];
  i64 step[4], limit[4]; // what an index counts: elements of the indexed tensor, and how many there are
  const void* index[4];
  void* base;
  void* value;
  int index_dtype[4];
  int bytes, pad, dtype, dim; // scatter_add_lines: the dim that the index decides
};

__device__ __forceinline__ void index_place(const Index& a, i64 i, i64& value, i64& base) {
  i64 at[4] = {0, 0, 0, 0};
  value = base = 0;
  for (int d = a.dims - 1; d >= 0; d--) {
    i64 q = i / a.size[d], r = i - q * a.size[d];
    i = q;
    value += r * a.value_stride[d];
    base += r * a.base_stride[d];
    for (int k = 0; k < a.indices; k++) at[k] += r * a.index_stride[k][d];
  }
  for (int k = 0; k < a.indices; k++) {
    i64 j = index_at(a.index[k], a.index_dtype[k], at[k]);
    if (j < 0) j += a.limit[k];
    base += j * a.step[k];
  }
}

__device__ __forceinline__ void move(void* out, i64 o, const void* in, i64 i, int bytes) {
  switch (bytes) {
  case 1: ((char*)out)[o] = ((const char*)in)[i]; break;
  case 2: ((short*)out)[o] = ((const short*)in)[i]; break;
  case 4: ((int*)out)[o] = ((const int*)in)[i]; break;
  default: ((i64*)out)[o] = ((const i64*)in)[i];
  }
}
