// Asks cuDNN's heuristic which workspace the three passes of convolutions take, as PyTorch does with benchmark off: the first
// configuration of mode instant that its filter lets pass (aten/src/ATen/native/cudnn/Conv_v8.cpp). Nothing is run, and with a
// description of a device no GPU is needed. scripts/conv_table.py feeds it.
//
//   gcc -O2 -o conv_heuristic conv_heuristic.c -lcudnn
//   ./conv_heuristic describe > h200.json        on the GPU: the description of its device
//   ./conv_heuristic h200.json < LINES           anywhere: a line "N C H W K R S strideH strideW padH padW dilH dilW groups transposed
//                                                outPadH outPadW type" is answered with three sizes in bytes, -1 where none is known
//
// Types: tf32, fp16, bf16, fp32 (TF32 forbidden), with an n behind them for channels-last tensors.
#include <cudnn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef cudnnBackendDescriptor_t desc;
static desc device;
static int last;

static desc make(cudnnBackendDescriptorType_t t) { desc d = NULL; cudnnBackendCreateDescriptor(t, &d); return d; }
static int set(desc d, cudnnBackendAttributeName_t a, cudnnBackendAttributeType_t t, int64_t n, const void *v) { return cudnnBackendSetAttribute(d, a, t, n, v); }

static desc tensor(int64_t id, cudnnDataType_t t, const int64_t *d) {
  int64_t plain[4] = {d[1] * d[2] * d[3], d[2] * d[3], d[3], 1}, channels[4] = {d[1] * d[2] * d[3], 1, d[3] * d[1], d[1]}, align = 32;
  desc x = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  set(x, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &t);
  set(x, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, d);
  set(x, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, last ? channels : plain);
  set(x, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
  set(x, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
  cudnnBackendFinalize(x);
  return x;
}

// pass: 0 forward, 1 data gradient, 2 weight gradient, of a convolution of big to small.
static long long workspace(int64_t *big, int64_t *w, int64_t *small, int64_t *stride, int64_t *pad, int64_t *dil, cudnnDataType_t t, int pass, int tf32) {
  static const struct { cudnnBackendDescriptorType_t kind; cudnnBackendAttributeName_t alpha, beta, conv, w, big, small; } ops[3] = {
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY}};
  long long answer = -1;
  float one = 1, zero = 0;
  int64_t two = 2, count = 0, got = 0, n = 0;
  cudnnDataType_t sums = CUDNN_DATA_FLOAT;
  cudnnConvolutionMode_t cross = CUDNN_CROSS_CORRELATION;
  cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_INSTANT;
  desc X = tensor('x', t, big), W = tensor('w', t, w), Y = tensor('y', t, small), C = make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR), O = make(ops[pass].kind),
       G = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR), E = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR), list[64];
  int bad = set(C, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums) || set(C, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &cross) ||
            set(C, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &two) || set(C, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, stride) ||
            set(C, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pad) || set(C, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pad) ||
            set(C, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dil) || cudnnBackendFinalize(C) || set(O, ops[pass].alpha, CUDNN_TYPE_FLOAT, 1, &one) ||
            set(O, ops[pass].beta, CUDNN_TYPE_FLOAT, 1, &zero) || set(O, ops[pass].conv, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &C) || set(O, ops[pass].w, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &W) ||
            set(O, ops[pass].big, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &X) || set(O, ops[pass].small, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &Y) || cudnnBackendFinalize(O) ||
            set(G, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &O) || cudnnBackendFinalize(G) ||
            set(E, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &G) || set(E, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode) ||
            set(E, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &device) || cudnnBackendFinalize(E) ||
            cudnnBackendGetAttribute(E, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, NULL);
  if (!bad) {
    if (count > 64) count = 64;
    for (int i = 0; i < count; i++) list[i] = make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    bad = cudnnBackendGetAttribute(E, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &got, list);
    for (int i = 0; !bad && answer < 0 && i < got; i++) {
      desc engine = make(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
      cudnnBackendNumericalNote_t notes[32];
      int64_t noted = 0, bytes = 0;
      int cores = 0, rounded = 0;
      cudnnBackendGetAttribute(list[i], CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine);
      cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, 32, &noted, notes);
      for (int j = 0; j < noted; j++) cores |= notes[j] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE, rounded |= notes[j] == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
      if (!((t == CUDNN_DATA_FLOAT && rounded) || (!tf32 && cores)) &&
          !cudnnBackendGetAttribute(list[i], CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, &bytes)) answer = bytes;
      cudnnBackendDestroyDescriptor(engine);
    }
    for (int i = 0; i < count; i++) cudnnBackendDestroyDescriptor(list[i]);
  }
  desc all[] = {X, W, Y, C, O, G, E};
  for (int i = 0; i < 7; i++) cudnnBackendDestroyDescriptor(all[i]);
  return answer;
}

int main(int argc, char **argv) {
  static char text[1 << 16];
  int64_t n = 0;
  device = make(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  if (argc == 2 && !strcmp(argv[1], "describe")) {
    int32_t id = 0;
    if (set(device, CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1, &id) || cudnnBackendFinalize(device) ||
        cudnnBackendGetAttribute(device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, sizeof text, &n, text)) return fprintf(stderr, "no device\n"), 1;
    return fwrite(text, 1, strnlen(text, sizeof text), stdout) == 0;
  }
  FILE *f = argc == 2 ? fopen(argv[1], "r") : NULL;
  if (!f) return fprintf(stderr, "usage: conv_heuristic describe | DEVICE.json < LINES\n"), 1;
  n = fread(text, 1, sizeof text - 1, f);
  if (set(device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, n, text) || cudnnBackendFinalize(device)) return fprintf(stderr, "%s: no description of a device\n", argv[1]), 1;
  fprintf(stderr, "cuDNN %zu\n", cudnnGetVersion());
  long long v[17];
  char type[16];
  while (fgets(text, sizeof text, stdin)) {
    if (sscanf(text, "%lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %15s", v, v + 1, v + 2, v + 3, v + 4, v + 5, v + 6, v + 7, v + 8, v + 9, v + 10, v + 11, v + 12,
               v + 13, v + 14, v + 15, v + 16, type) != 18) return fprintf(stderr, "not a convolution: %s", text), 1;
    int64_t C = v[1], H = v[2], W = v[3], K = v[4], R = v[5], S = v[6], g = v[13], stride[2] = {v[7], v[8]}, pad[2] = {v[9], v[10]}, dil[2] = {v[11], v[12]};
    int turned = v[14] != 0, tf32 = strncmp(type, "fp32", 4) != 0;
    last = type[strlen(type) - 1] == 'n';
    cudnnDataType_t t = !strncmp(type, "bf16", 4) ? CUDNN_DATA_BFLOAT16 : !strncmp(type, "fp16", 4) ? CUDNN_DATA_HALF : CUDNN_DATA_FLOAT;
    int64_t P = turned ? (H - 1) * stride[0] - 2 * pad[0] + dil[0] * (R - 1) + 1 + v[15] : (H + 2 * pad[0] - dil[0] * (R - 1) - 1) / stride[0] + 1;
    int64_t Q = turned ? (W - 1) * stride[1] - 2 * pad[1] + dil[1] * (S - 1) + 1 + v[16] : (W + 2 * pad[1] - dil[1] * (S - 1) - 1) / stride[1] + 1;
    int64_t x[4] = {v[0], C, H, W}, y[4] = {v[0], K, P, Q}, w[4] = {turned ? C : K, (turned ? K : C) / g, R, S};
    for (int pass = 0; pass < 3; pass++) // a transposed convolution is the data gradient of another
      printf("%lld%c", workspace(turned ? y : x, w, turned ? x : y, stride, pad, dil, t, turned && pass < 2 ? 1 - pass : pass, tf32), pass < 2 ? ' ' : '\n');
  }
  return 0;
}
