// libcublas.so.13 without a GPU: products of column-major matrices, the one
// function of cuBLAS that validate/cuda calls, with sums in float64.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <library_types.h>
#include <vector>

namespace {

const int kDone = 0, kInvalidValue = 7, kNotSupported = 15, kCompute64 = 70; // cublasStatus_t, cublasComputeType_t

double read(const void* p, int type, long long i) {
  switch (type) {
  case CUDA_R_32F: return ((const float*)p)[i];
  case CUDA_R_64F: return ((const double*)p)[i];
  case CUDA_R_16F: return __half2float(((const __half*)p)[i]);
  default: return __bfloat162float(((const __nv_bfloat16*)p)[i]);
  }
}

void write(void* p, int type, long long i, double v) {
  switch (type) {
  case CUDA_R_32F: ((float*)p)[i] = (float)v; break;
  case CUDA_R_64F: ((double*)p)[i] = v; break;
  case CUDA_R_16F: ((__half*)p)[i] = __float2half((float)v); break;
  default: ((__nv_bfloat16*)p)[i] = __float2bfloat16((float)v);
  }
}

// gather copies lines of k numbers that lie step apart, and line apart from one
// another.
std::vector<double> gather(const void* p, int type, long long at, int lines, int k, long long line, long long step) {
  std::vector<double> out((size_t)lines * k);
  for (int i = 0; i < lines; i++)
    for (int l = 0; l < k; l++) out[(size_t)i * k + l] = read(p, type, at + i * line + l * step);
  return out;
}

bool known(int type) { return type == CUDA_R_32F || type == CUDA_R_64F || type == CUDA_R_16F || type == CUDA_R_16BF; }

}  // namespace

extern "C" {

int cublasCreate_v2(void** h) {
  static char handle;
  return *h = &handle, kDone;
}
int cublasDestroy_v2(void*) { return kDone; }
int cublasSetStream_v2(void*, void*) { return kDone; }
int cublasSetWorkspace_v2(void*, void*, size_t) { return kDone; }
int cublasGetVersion_v2(void*, int* v) { return *v = 130000, kDone; }

int cublasGemmStridedBatchedEx(void*, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int at, int lda, long long sa, const void* b, int bt,
                               int ldb, long long sb, const void* beta, void* c, int ct, int ldc, long long sc, int batch, int compute, int) {
  if (m < 0 || n < 0 || k < 0 || batch < 0 || lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m || lda < 1 || ldb < 1 || ldc < 1) return kInvalidValue;
  if (!known(at) || !known(bt) || !known(ct)) return kNotSupported;
  const int scalar = compute == kCompute64 ? CUDA_R_64F : CUDA_R_32F;
  const double x = read(alpha, scalar, 0), y = read(beta, scalar, 0);
  for (int q = 0; q < batch; q++) {
    std::vector<double> rows = gather(a, at, q * sa, m, k, ta ? lda : 1, ta ? 1 : lda), columns = gather(b, bt, q * sb, n, k, tb ? 1 : ldb, tb ? ldb : 1);
    for (int j = 0; j < n; j++)
      for (int i = 0; i < m; i++) {
        double sum = 0;
        for (int l = 0; l < k; l++) sum += rows[(size_t)i * k + l] * columns[(size_t)j * k + l];
        const long long o = q * sc + (long long)j * ldc + i;
        write(c, ct, o, x * sum + (y != 0 ? y * read(c, ct, o) : 0)); // where beta is 0, c may be NaN
      }
  }
  return kDone;
}

}  // extern "C"
