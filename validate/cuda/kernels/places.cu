// Many values written by index: those with one place are found by hashing, not by
// comparing all with all, and summed in their order: the same bits in every run.
#include "index.cuh"

const int listed = 1024; // values of a place that a block sorts at once

struct Places {
  Index at;        // base: the result; value: what is written, null for a number
  i64 rows, width; // n = rows * width; the first dims decide the place, the rest lie inside
  double number;
  u64* keys;  // of slots: the place, or all ones
  u32* head;  // of slots: the last row that came, or all ones
  u32* count; // of slots: how many rows
  u32* next;  // of rows: the one that came before it
  u32* slot;  // of rows
  i64 slots;  // a power of two
  int add, pad;
};

// place_rows puts every row into the slot of its place. The order of the lists that
// this makes is any; place_values sorts them.
extern "C" __global__ void place_rows(Places s) {
  i64 r = (i64)blockIdx.x * blockDim.x + threadIdx.x, v, b;
  if (r >= s.rows) return;
  index_place(s.at, r * s.width, v, b);
  u64 mask = (u64)s.slots - 1, h = mix((u64)b) & mask;
  for (;; h = (h + 1) & mask) {
    u64 old = atomicCAS(s.keys + h, ~0ull, (u64)b);
    if (old == ~0ull || old == (u64)b) break;
  }
  s.slot[r] = (u32)h;
  atomicAdd(s.count + h, 1u);
  s.next[r] = atomicExch(s.head + h, (u32)r);
}

template <typename C> __device__ __forceinline__ C placed_value(const Places& s, i64 row, i64 c) {
  if (!s.at.value) return (C)s.number;
  i64 v, b;
  index_place(s.at, row * s.width + c, v, b);
  return load<C>(s.at.value, s.at.dtype, v);
}

// place_listed writes column by column what the rows of a sorted list give.
template <typename C> __device__ void place_listed(const Places& s, const u32* rows, int n) {
  for (i64 c = threadIdx.x; c < s.width; c += blockDim.x) {
    i64 v, b;
    index_place(s.at, rows[0] * s.width + c, v, b);
    C x = s.add ? load<C>(s.at.base, s.at.dtype, b) : placed_value<C>(s, rows[n - 1], c);
    if (s.add)
      for (int i = 0; i < n; i++) x += placed_value<C>(s, rows[i], c);
    store<C>(s.at.base, s.at.dtype, b, x);
  }
}

// place_long does so for a place of more rows than a list holds: all rows are looked
// at in their order.
template <typename C> __device__ void place_long(const Places& s, u32 slot) {
  __shared__ u32 found[32];
  for (i64 base = 0; base < s.width; base += blockDim.x) {
    i64 c = base + threadIdx.x, b = -1, v;
    C x = 0;
    for (i64 from = 0; from < s.rows; from += blockDim.x) {
      i64 u = from + threadIdx.x;
      u32 hit = __ballot_sync(0xffffffffu, u < s.rows && s.slot[u] == slot);
      __syncthreads();
      if ((threadIdx.x & 31) == 0) found[threadIdx.x >> 5] = hit;
      __syncthreads();
      for (int w = 0; w < blockDim.x / 32; w++)
        for (u32 bits = found[w]; bits; bits &= bits - 1) {
          i64 row = from + w * 32 + __ffs(bits) - 1;
          if (c >= s.width) continue;
          if (b < 0) {
            index_place(s.at, row * s.width + c, v, b);
            if (s.add) x = load<C>(s.at.base, s.at.dtype, b);
          }
          C y = placed_value<C>(s, row, c);
          x = s.add ? x + y : y;
        }
    }
    if (b >= 0) store<C>(s.at.base, s.at.dtype, b, x);
  }
}

// place_values has a block for a slot at a time.
template <typename C> __device__ void place_all(const Places& s) {
  __shared__ u32 list[listed], sorted[listed];
  for (i64 slot = blockIdx.x; slot < s.slots; slot += gridDim.x) {
    u32 n = s.count[slot];
    if (n == 0) continue;
    if (n > listed) {
      place_long<C>(s, (u32)slot);
      continue;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      u32 row = s.head[slot];
      for (u32 i = 0; i < n; i++, row = s.next[row]) list[i] = row;
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
      u32 before = 0;
      for (u32 j = 0; j < n; j++) before += list[j] < list[i];
      sorted[before] = list[i];
    }
    __syncthreads();
    place_listed<C>(s, sorted, (int)n);
  }
}
extern "C" __global__ void place_values_real(Places s) { place_all<double>(s); }
extern "C" __global__ void place_values_int(Places s) { place_all<i64>(s); }
