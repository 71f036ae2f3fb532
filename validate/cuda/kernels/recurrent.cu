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

template <typename T> __device__ void step(const Recurrent& r) {
  i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
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
extern "C" __global__ void recurrent_step(Recurrent r) { DISPATCH(r.dtype, step<T>(r);) }

// The way back through a step: what reaches the state before it directly goes to
// dh, the rest follows by the product of du.
template <typename T> __device__ void unstep(const Recurrent& r) {
  i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
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
extern "C" __global__ void recurrent_unstep(Recurrent r) { DISPATCH(r.dtype, unstep<T>(r);) }
