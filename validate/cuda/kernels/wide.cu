// Elementwise operators and copies over strided operands whose elements lie side
// by side, or are one, along the innermost dim: several elements a thread.
#include "divide.cuh"
#include "group.cuh"
#include "real.cuh"

struct Wide {
  u32 n; // threads: groups of neighbouring elements
  int op, dims, inputs;
  Divider size[8];  // the innermost counts groups
  int stride[4][8]; // in elements, the innermost of a group
  void* ptr[4];     // null: the operand is the number in scalar
  int dtype[4];
  int single[4]; // one element for the whole group
  float scalar[4];
  double param[4];
};

template <typename T, int W> __device__ __forceinline__ void take(const void* p, int at, bool single, float (&v)[W]) {
  const T* q = (const T*)p + at;
  if (single) {
    float x = get<T>(*q);
#pragma unroll
    for (int k = 0; k < W; k++) v[k] = x;
    return;
  }
  Group<T, W> g = *(const Group<T, W>*)q;
#pragma unroll
  for (int k = 0; k < W; k++) v[k] = get<T>(g.v[k]);
}

template <typename T, int W> __device__ __forceinline__ void give(void* p, int at, const float (&v)[W]) {
  Group<T, W> g;
#pragma unroll
  for (int k = 0; k < W; k++) g.v[k] = put<T>(v[k]);
  *(Group<T, W>*)((T*)p + at) = g;
}

template <int W> __device__ __forceinline__ void apply_group(int op, const float (&x)[3][W], const double* p, float (&y)[W]) {
  switch (op) {
#define WIDE(code)                                                                           \
  case code:                                                                                 \
    _Pragma("unroll") for (int k = 0; k < W; k++) y[k] = apply_real<float>(code, x[0][k], x[1][k], x[2][k], p); \
    break;
#include "pointwise_wide.inc"
#undef WIDE
  }
}

template <int W> __device__ void wide(const Wide& a) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= a.n) return;
  int at[4] = {0, 0, 0, 0};
  for (int d = a.dims - 1; d >= 0; d--) {
    int r = d ? (int)split_off(i, a.size[d]) : (int)i;
#pragma unroll
    for (int o = 0; o < 4; o++) at[o] += r * a.stride[o][d];
  }
  float x[3][W], y[W];
#pragma unroll
  for (int o = 0; o < 3; o++) {
    if (o < a.inputs && a.ptr[o + 1]) {
      bool single = a.single[o + 1];
      switch (a.dtype[o + 1]) {
      case F32: take<float, W>(a.ptr[o + 1], at[o + 1], single, x[o]); break;
      case F16: take<__half, W>(a.ptr[o + 1], at[o + 1], single, x[o]); break;
      case BF16: take<__nv_bfloat16, W>(a.ptr[o + 1], at[o + 1], single, x[o]); break;
      default: take<unsigned char, W>(a.ptr[o + 1], at[o + 1], single, x[o]);
      }
      continue;
    }
#pragma unroll
    for (int k = 0; k < W; k++) x[o][k] = a.scalar[o + 1];
  }
  apply_group<W>(a.op, x, a.param, y);
  DISPATCH(a.dtype[0], give<T COMMA W>(a.ptr[0], at[0], y);)
}
extern "C" __global__ void wide_4(Wide a) { wide<4>(a); }
extern "C" __global__ void wide_8(Wide a) { wide<8>(a); }

// Copies without a conversion, in words of up to sixteen bytes.
struct Move {
  u32 n; // words
  int dims;
  Divider size[8];
  int stride[2][8]; // of result and operand, in words
  void* out;
  const void* in;
  int bytes, pad;
};

template <typename T> __device__ __forceinline__ void moves(const Move& a) {
  const int AT_ONCE = 4;
  u32 first = blockIdx.x * (blockDim.x * AT_ONCE) + threadIdx.x;
  T word[AT_ONCE];
  int to[AT_ONCE];
#pragma unroll
  for (int k = 0; k < AT_ONCE; k++) {
    u32 i = first + k * blockDim.x;
    if (i >= a.n) break;
    int from = 0;
    to[k] = 0;
    for (int d = a.dims - 1; d >= 0; d--) {
      int r = d ? (int)split_off(i, a.size[d]) : (int)i;
      to[k] += r * a.stride[0][d];
      from += r * a.stride[1][d];
    }
    word[k] = ((const T*)a.in)[from];
  }
#pragma unroll
  for (int k = 0; k < AT_ONCE; k++)
    if (first + k * blockDim.x < a.n) ((T*)a.out)[to[k]] = word[k];
}

extern "C" __global__ void move_1(Move a) { moves<unsigned char>(a); }
extern "C" __global__ void move_2(Move a) { moves<unsigned short>(a); }
extern "C" __global__ void move_4(Move a) { moves<u32>(a); }
extern "C" __global__ void move_8(Move a) { moves<u64>(a); }
extern "C" __global__ void move_16(Move a) { moves<uint4>(a); }

// Matrices transposed through shared memory: the copy that makes a permuted view
// contiguous. The operand's rows lie side by side, the result's columns.
struct Transpose {
  u32 rows, cols, tiles; // of a matrix; of all, SIDE wide and high
  int dims;              // those that count matrices
  Divider across, down;  // tiles of a matrix
  Divider size[8];
  int stride[2][8]; // of result and operand, in elements
  int out_row, in_col;
  void* out;
  const void* in;
  int in_pairs, out_pairs; // two neighbours of two bytes lie at a multiple of four
};

template <typename T, int SIDE> __device__ __forceinline__ void transpose(const Transpose& a) {
  const int PITCH = SIDE + (sizeof(T) == 2 ? 2 : 1); // even where pairs are stored
  alignas(8) __shared__ T tile[SIDE * PITCH];
  u32 i = blockIdx.x, c0 = split_off(i, a.across) * SIDE, r0 = split_off(i, a.down) * SIDE;
  int from = 0, to = 0;
  for (int d = a.dims - 1; d >= 0; d--) {
    int r = d ? (int)split_off(i, a.size[d]) : (int)i;
    to += r * a.stride[0][d];
    from += r * a.stride[1][d];
  }
  const T* in = (const T*)a.in + from + r0;
  T* out = (T*)a.out + to + c0;
  u32 rows = min(a.rows - r0, (u32)SIDE), cols = min(a.cols - c0, (u32)SIDE);
  for (u32 k = threadIdx.y; k < cols; k += blockDim.y) {
    const T* line = in + (int)(c0 + k) * a.in_col;
    if (sizeof(T) == 2 && a.in_pairs) {
      u32 r = 2 * threadIdx.x;
      if (r + 1 < rows) *(u32*)(tile + k * PITCH + r) = *(const u32*)(line + r);
      else if (r < rows) tile[k * PITCH + r] = line[r];
      continue;
    }
    for (u32 r = threadIdx.x; r < rows; r += 32) tile[k * PITCH + r] = line[r];
  }
  __syncthreads();
  for (u32 k = threadIdx.y; k < rows; k += blockDim.y) {
    T* line = out + (int)(r0 + k) * a.out_row;
    if (sizeof(T) == 2 && a.out_pairs) {
      u32 c = 2 * threadIdx.x;
      if (c + 1 < cols) *(u32*)(line + c) = (u32)tile[c * PITCH + k] | (u32)tile[(c + 1) * PITCH + k] << 16;
      else if (c < cols) line[c] = tile[c * PITCH + k];
      continue;
    }
    for (u32 c = threadIdx.x; c < cols; c += 32) line[c] = tile[c * PITCH + k];
  }
}
extern "C" __global__ void __launch_bounds__(256) transpose_1(Transpose a) { transpose<unsigned char, 32>(a); }
extern "C" __global__ void __launch_bounds__(256) transpose_2(Transpose a) { transpose<unsigned short, 64>(a); }
extern "C" __global__ void __launch_bounds__(256) transpose_4(Transpose a) { transpose<u32, 32>(a); }
extern "C" __global__ void __launch_bounds__(256) transpose_8(Transpose a) { transpose<u64, 32>(a); }

// Operators whose operands lie side by side along different dims: tiles of the
// result's matrices, and of the operands that run the other way, through shared
// memory.
struct Tiled {
  u32 rows, cols, tiles; // of a matrix; of all
  int op, dims, inputs;
  Divider across, down; // tiles of a matrix
  Divider size[8];      // of the dims that count matrices
  int stride[4][8], row[4], col[4];
  void* ptr[4]; // null: the operand is the number in scalar
  int dtype[4], turned[4];
  float scalar[4];
  double param[4];
};

extern "C" __global__ void __launch_bounds__(256) tiled(Tiled a) {
  __shared__ float tile[3][32][33];
  u32 i = blockIdx.x, c0 = split_off(i, a.across) * 32, r0 = split_off(i, a.down) * 32;
  int at[4] = {0, 0, 0, 0};
  for (int d = a.dims - 1; d >= 0; d--) {
    int r = d ? (int)split_off(i, a.size[d]) : (int)i;
#pragma unroll
    for (int o = 0; o < 4; o++) at[o] += r * a.stride[o][d];
  }
  u32 r = r0 + threadIdx.x, c = c0 + threadIdx.x;
#pragma unroll
  for (int o = 0; o < 3; o++)
    if (o < a.inputs && a.turned[o + 1])
#pragma unroll
      for (int k = 0; k < 32; k += 8) {
        u32 y = c0 + k + threadIdx.y;
        if (y < a.cols && r < a.rows) tile[o][k + threadIdx.y][threadIdx.x] = loadf(a.ptr[o + 1], a.dtype[o + 1], at[o + 1] + (int)r * a.row[o + 1] + (int)y * a.col[o + 1]);
      }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 32; k += 8) {
    u32 y = r0 + k + threadIdx.y;
    if (y >= a.rows || c >= a.cols) continue;
    float x[3][1], z[1];
#pragma unroll
    for (int o = 0; o < 3; o++) {
      x[o][0] = a.scalar[o + 1];
      if (o >= a.inputs || !a.ptr[o + 1]) continue;
      x[o][0] = a.turned[o + 1] ? tile[o][threadIdx.x][k + threadIdx.y] : loadf(a.ptr[o + 1], a.dtype[o + 1], at[o + 1] + (int)y * a.row[o + 1] + (int)c * a.col[o + 1]);
    }
    apply_group<1>(a.op, x, a.param, z);
    store<float>(a.ptr[0], a.dtype[0], at[0] + (int)y * a.row[0] + (int)c, z[0]);
  }
}
