// One step of a recurrent network between the products of its weights. Gates lie
// side by side in a row of each sample, in PyTorch's order.
#include "common.cuh"

enum { LSTM, GRU, TANH, RELU };

struct Recurrent {
  i64 batch, hidden, h_row, h0_row, dy_row, da_row; // strides of samples, in elements
  void *a, *u;              // gates from the input, from the state; after the forward step activated, and with its bias
  const void *bi, *bh;      // biases, or null
  const void *h0, *c0;      // states before the step
  void *h, *c;              // and after it
  const void* dy;           // gradient of h as a result, or null
  void *dh, *dc, *da, *du;  // gradients of the states: of those after the step, then of those before it; of the gates
  int cell, dtype;
};

__device__ __forceinline__ float logistic(float x) { return 1.f / (1.f + expf(-x)); }

// step is that of hidden unit i of all samples'.
template <typename T> __device__ void step(const Recurrent& r, i64 i) {
  if (i >= r.batch * r.hidden) return;
  i64 n = r.hidden, b = i / n, j = i % n;
  int gates = r.cell == LSTM ? 4 : r.cell == GRU ? 3 : 1;
  T *a = (T*)r.a + b * gates * n + j, *u = (T*)r.u + b * gates * n + j;
  float x[4], y[4];
  for (int g = 0; g < gates; g++) {
    x[g] = get<T>(a[g * n]) + (r.bi ? get<T>(((const T*)r.bi)[g * n + j]) : 0.f);
    y[g] = get<T>(u[g * n]) + (r.bh ? get<T>(((const T*)r.bh)[g * n + j]) : 0.f);
  }
  float h;
  if (r.cell == LSTM) { // input, forget, candidate, output
    for (int g = 0; g < 4; g++) x[g] = g == 2 ? tanhf(x[g] + y[g]) : logistic(x[g] + y[g]);
    float c = x[1] * get<T>(((const T*)r.c0)[i]) + x[0] * x[2];
    ((T*)r.c)[i] = put<T>(c);
    h = x[3] * tanhf(c);
  } else if (r.cell == GRU) { // reset, update, candidate
    x[0] = logistic(x[0] + y[0]);
    x[1] = logistic(x[1] + y[1]);
    x[2] = tanhf(x[2] + x[0] * y[2]);
    h = (1.f - x[1]) * x[2] + x[1] * get<T>(((const T*)r.h0)[b * r.h0_row + j]);
    u[2 * n] = put<T>(y[2]);
  } else {
    float v = x[0] + y[0];
    h = r.cell == RELU ? (v > 0 ? v : 0.f) : tanhf(v);
    x[0] = h;
  }
  for (int g = 0; g < gates; g++) a[g * n] = put<T>(x[g]);
  ((T*)r.h)[b * r.h_row + j] = put<T>(h);
}
extern "C" __global__ void recurrent_step(Recurrent r) { DISPATCH(r.dtype, step<T>(r COMMA (i64)blockIdx.x * blockDim.x + threadIdx.x);) }

// The way back through a step: what reaches the state before it directly goes to
// dh, the rest follows by the product of du.
template <typename T> __device__ void unstep(const Recurrent& r, i64 i) {
  if (i >= r.batch * r.hidden) return;
  i64 n = r.hidden, b = i / n, j = i % n;
  int gates = r.cell == LSTM ? 4 : r.cell == GRU ? 3 : 1;
  const T *a = (const T*)r.a + b * gates * n + j, *u = (const T*)r.u + b * gates * n + j;
  float x[4], da[4], du[4], back = 0, g = get<T>(((T*)r.dh)[i]);
  if (r.dy) g += get<T>(((const T*)r.dy)[b * r.dy_row + j]);
  for (int k = 0; k < gates; k++) x[k] = get<T>(a[k * n]);
  if (r.cell == LSTM) {
    float top = tanhf(get<T>(((const T*)r.c)[i]));
    float dc = get<T>(((T*)r.dc)[i]) + g * x[3] * (1.f - top * top);
    da[0] = dc * x[2] * x[0] * (1.f - x[0]);
    da[1] = dc * get<T>(((const T*)r.c0)[i]) * x[1] * (1.f - x[1]);
    da[2] = dc * x[0] * (1.f - x[2] * x[2]);
    da[3] = g * top * x[3] * (1.f - x[3]);
    ((T*)r.dc)[i] = put<T>(dc * x[1]);
    for (int k = 0; k < 4; k++) du[k] = da[k];
  } else if (r.cell == GRU) {
    float dn = g * (1.f - x[1]) * (1.f - x[2] * x[2]);
    du[0] = da[0] = dn * get<T>(u[2 * n]) * x[0] * (1.f - x[0]);
    du[1] = da[1] = g * (get<T>(((const T*)r.h0)[b * r.h0_row + j]) - x[2]) * x[1] * (1.f - x[1]);
    da[2] = dn;
    du[2] = dn * x[0];
    back = g * x[1];
  } else {
    du[0] = da[0] = r.cell == RELU ? (x[0] > 0 ? g : 0.f) : g * (1.f - x[0] * x[0]);
  }
  for (int k = 0; k < gates; k++) {
    ((T*)r.da)[b * r.da_row + k * n + j] = put<T>(da[k]);
    ((T*)r.du)[b * gates * n + k * n + j] = put<T>(du[k]);
  }
  ((T*)r.dh)[i] = put<T>(back);
}
extern "C" __global__ void recurrent_unstep(Recurrent r) { DISPATCH(r.dtype, unstep<T>(r COMMA (i64)blockIdx.x * blockDim.x + threadIdx.x);) }

// All steps of a layer in one direction, where its weights are small: a block for each
// sample, which none of the others waits for.
struct Sweep {
  Recurrent r;                 // the first step's
  const void* w;               // the state's weights, a row for each gate
  i64 steps;
  i64 a, u, h, c, dy, da, du;  // to the next step's, in elements
};
const int units = 512, most_gates = 4; // units is also the threads of a block

// at_step shows step k of a sweep.
template <typename T> __device__ __forceinline__ Recurrent at_step(const Sweep& s, i64 k) {
  Recurrent r = s.r;
  if (k > 0) {
    r.h0 = (const T*)s.r.h + (k - 1) * s.h;
    r.h0_row = s.r.h_row;
    if (s.r.c) r.c0 = (const T*)s.r.c + (k - 1) * s.c;
  }
  r.a = (T*)s.r.a + k * s.a;
  r.u = (T*)s.r.u + k * s.u;
  r.h = (T*)s.r.h + k * s.h;
  if (s.r.c) r.c = (T*)s.r.c + k * s.c;
  if (s.r.dy) r.dy = (const T*)s.r.dy + k * s.dy;
  if (s.r.da) r.da = (T*)s.r.da + k * s.da;
  if (s.r.du) r.du = (T*)s.r.du + k * s.du;
  return r;
}

template <typename T> __device__ void sweep(const Sweep& s) {
  __shared__ float state[units];
  i64 b = blockIdx.x;
  int n = (int)s.r.hidden, rows = (s.r.cell == LSTM ? 4 : s.r.cell == GRU ? 3 : 1) * n, lane = threadIdx.x & 31;
  for (i64 k = 0; k < s.steps; k++) {
    Recurrent r = at_step<T>(s, k);
    for (int j = threadIdx.x; j < n; j += blockDim.x) state[j] = get<T>(((const T*)r.h0)[b * r.h0_row + j]);
    __syncthreads();
    for (int row = threadIdx.x >> 5; row < rows; row += blockDim.x >> 5) {
      const T* w = (const T*)s.w + (i64)row * n;
      float sum = 0;
      for (int j = lane; j < n; j += 32) sum += get<T>(w[j]) * state[j];
      sum = warp_sum(sum);
      if (lane == 0) ((T*)r.u)[b * rows + row] = put<T>(sum);
    }
    __syncthreads();
    for (int j = threadIdx.x; j < n; j += blockDim.x) step<T>(r, b * n + j);
    __syncthreads();
  }
}
extern "C" __global__ void recurrent_sweep(Sweep s) { DISPATCH(s.r.dtype, sweep<T>(s);) }

template <typename T> __device__ void unsweep(const Sweep& s) {
  __shared__ float gradient[units * most_gates], part[units];
  i64 b = blockIdx.x;
  int n = (int)s.r.hidden, rows = (s.r.cell == LSTM ? 4 : s.r.cell == GRU ? 3 : 1) * n;
  int teams = blockDim.x / n, team = threadIdx.x / n, j = threadIdx.x % n; // each team adds up every so many rows
  T* dh = (T*)s.r.dh + b * n;
  for (i64 k = s.steps - 1; k >= 0; k--) {
    Recurrent r = at_step<T>(s, k);
    for (int i = threadIdx.x; i < n; i += blockDim.x) unstep<T>(r, b * n + i);
    __syncthreads();
    for (int row = threadIdx.x; row < rows; row += blockDim.x) gradient[row] = get<T>(((const T*)r.du)[b * rows + row]);
    __syncthreads();
    float sum = 0;
    if (team < teams)
      for (int row = team; row < rows; row += teams) sum += gradient[row] * get<T>(((const T*)s.w)[(i64)row * n + j]);
    part[threadIdx.x] = sum;
    __syncthreads();
    if (team == 0) {
      for (int t = 1; t < teams; t++) sum += part[t * n + j];
      dh[j] = put<T>(get<T>(dh[j]) + sum);
    }
    __syncthreads();
  }
}
extern "C" __global__ void recurrent_unsweep(Sweep s) { DISPATCH(s.r.dtype, unsweep<T>(s);) }
