/* Asks cuDNN's instant heuristic for the workspace of convolutions, as PyTorch does with benchmark off; see conv_workspace.py.
   In: lines "N C H W K R S strideH strideW padH padW dilH dilW groups transposed TYPE outPadH outPadW", for three dims with
   " D T strideD padD dilD outPadD" after them (D, T: the input's and the kernel's depth).
   Out: "LINE PASS BYTES ENGINE" for the passes 0 forward, 1 data gradient, 2 weight gradient; nothing where there is no answer. ENGINE is the
   engine's number and its knobs ("57;27=2;28=1"), with an f before it where the heuristic has no engine and PyTorch takes one of the fallback list.
   With a device described in JSON (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION) as argument it needs no GPU, but the answers differ. */
#include <cudnn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef cudnnBackendDescriptor_t desc;
static cudnnHandle_t handle;
static desc device;
static int failed, nd; /* nd: dims of a tensor, 4 or 5 */

static desc make(cudnnBackendDescriptorType_t t) {
  desc d = NULL;
  if (cudnnBackendCreateDescriptor(t, &d)) failed = 1;
  return d;
}
static void set(desc d, cudnnBackendAttributeName_t a, cudnnBackendAttributeType_t t, int64_t n, const void *v) {
  if (!failed && cudnnBackendSetAttribute(d, a, t, n, v)) failed = 1;
}
static void finish(desc d) { if (!failed && cudnnBackendFinalize(d)) failed = 1; }

static desc tensor(int64_t id, cudnnDataType_t type, const int64_t *dim, int last) {
  int64_t align = 32, c = dim[1], rows[5], chan[5], n = 1;
  for (int i = nd - 1; i >= 2; i--) { rows[i] = n; chan[i] = n * c; n *= dim[i]; }
  rows[1] = n; chan[1] = 1; rows[0] = chan[0] = n * c;
  desc d = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  set(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, nd, dim);
  set(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, nd, last ? chan : rows);
  set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
  set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
  finish(d);
  return d;
}

static const struct { cudnnBackendDescriptorType_t op; cudnnBackendAttributeName_t alpha, beta, conv, w, x, y; } ops[3] = {
  {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
   CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
  {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
  {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
};

/* PyTorch's plan_errata and filter: without TF32 no tensor cores, in fp32 no inputs in lower precision. */
static int skipped(desc config, cudnnDataType_t type, int tf32) {
  desc engine = make(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendNumericalNote_t notes[16];
  int64_t n = 0;
  int tensorCore = 0, down = 0;
  cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine);
  n = 0;
  cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, 16, &n, notes);
  for (int i = 0; i < n; i++) {
    tensorCore |= notes[i] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    down |= notes[i] == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
  }
  cudnnBackendDestroyDescriptor(engine);
  return type == CUDNN_DATA_FLOAT && down || !tf32 && (tensorCore || down);
}

/* Writes the engine's number and its knobs. */
static void describe(desc config, char *text, size_t room) {
  desc engine = make(CUDNN_BACKEND_ENGINE_DESCRIPTOR), knobs[32];
  int64_t n = 0, number = -1, value;
  cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine);
  cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &n, &number);
  cudnnBackendDestroyDescriptor(engine);
  size_t at = strlen(text);
  at += snprintf(text + at, room - at, "%lld", (long long)number);
  for (int i = 0; i < 32; i++) knobs[i] = make(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
  n = 0;
  if (cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, 32, &n, knobs)) n = 0;
  for (int i = 0; i < n && i < 32 && at + 40 < room; i++) {
    cudnnBackendKnobType_t kind;
    int64_t one = 0;
    if (!cudnnBackendGetAttribute(knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &one, &kind) &&
        !cudnnBackendGetAttribute(knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &one, &value))
      at += snprintf(text + at, room - at, ";%d=%lld", (int)kind, (long long)value);
  }
  for (int i = 0; i < 32; i++) cudnnBackendDestroyDescriptor(knobs[i]);
}

/* The convolution as cuDNN sees it: x[n,c,h,w], w[k,c/g,r,s], y[n,k,p,q]. Returns the workspace, or -1, and writes the engine. */
static int64_t workspace(int op, const int64_t *xd, const int64_t *wd, const int64_t *yd, const int64_t *stride, const int64_t *pad, const int64_t *dil,
                         cudnnDataType_t type, int tf32, int last, char *text, size_t room) {
  float one = 1, zero = 0;
  int64_t dims = nd - 2, count, got, n, bytes = -1;
  cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  cudnnConvolutionMode_t cross = CUDNN_CROSS_CORRELATION;
  const cudnnBackendHeurMode_t modes[2] = {CUDNN_HEUR_MODE_INSTANT, CUDNN_HEUR_MODE_FALLBACK};
  desc configs[256];
  failed = 0;
  desc x = tensor('x', type, xd, last), w = tensor('w', type, wd, last), y = tensor('y', type, yd, last);
  desc conv = make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR), node = make(ops[op].op);
  desc graph = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  set(conv, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
  set(conv, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &cross);
  set(conv, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dims);
  set(conv, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, nd - 2, stride);
  set(conv, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, nd - 2, pad);
  set(conv, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, nd - 2, pad);
  set(conv, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, nd - 2, dil);
  finish(conv);
  set(node, ops[op].alpha, CUDNN_TYPE_FLOAT, 1, &one);
  set(node, ops[op].beta, CUDNN_TYPE_FLOAT, 1, &zero);
  set(node, ops[op].conv, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &conv);
  set(node, ops[op].w, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &w);
  set(node, ops[op].x, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
  set(node, ops[op].y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y);
  finish(node);
  if (handle) set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &node);
  finish(graph);
  for (int mode = 0; mode < 2 && !failed && bytes < 0; mode++) {
    desc heur = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set(heur, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
    set(heur, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &modes[mode]);
    if (device) set(heur, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &device);
    finish(heur);
    strcpy(text, mode ? "f" : "");
    for (count = 2; !failed && bytes < 0; count = 256) { /* the first two mostly suffice, and are asked for in a quarter of the time */
      for (int i = 0; i < count; i++) configs[i] = make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
      got = 0;
      cudnnBackendGetAttribute(heur, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &got, configs);
      for (int i = 0; i < got && bytes < 0; i++) {
        if (skipped(configs[i], type, tf32)) continue;
        if (cudnnBackendGetAttribute(configs[i], CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, &bytes)) bytes = -1;
        else describe(configs[i], text, room);
      }
      for (int i = 0; i < count; i++) cudnnBackendDestroyDescriptor(configs[i]);
      if (count > 2 || got < 2) break;
    }
    cudnnBackendDestroyDescriptor(heur);
  }
  desc all[] = {x, w, y, conv, node, graph};
  for (int i = 0; i < 6; i++) if (all[i]) cudnnBackendDestroyDescriptor(all[i]);
  return bytes;
}

int main(int argc, char **argv) {
  if (argc > 1) {
    static char text[1 << 16];
    FILE *f = fopen(argv[1], "r");
    if (!f) { perror(argv[1]); return 1; }
    device = make(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    set(device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, fread(text, 1, sizeof text, f), text);
    finish(device);
    if (failed) { fprintf(stderr, "%s: cuDNN refuses it\n", argv[1]); return 1; }
  } else if (cudnnCreate(&handle)) { fprintf(stderr, "no GPU\n"); return 1; }
  char line[512], ty[16], text[1024];
  for (long id = 1; fgets(line, sizeof line, stdin); id++) {
    long long v[15], oh = 0, ow = 0, z[6];
    int fields = sscanf(line, "%lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %15s %lld %lld %lld %lld %lld %lld %lld %lld", v, v + 1, v + 2, v + 3, v + 4,
                        v + 5, v + 6, v + 7, v + 8, v + 9, v + 10, v + 11, v + 12, v + 13, v + 14, ty, &oh, &ow, z, z + 1, z + 2, z + 3, z + 4, z + 5);
    if (fields < 16) continue;
    nd = fields == 24 ? 5 : 4;
    int last = ty[strlen(ty) - 1] == 'n', tr = v[14], tf32 = strncmp(ty, "fp32", 4) != 0, d = nd - 4;
    cudnnDataType_t type = !strncmp(ty, "bf16", 4) ? CUDNN_DATA_BFLOAT16 : !strncmp(ty, "fp16", 4) ? CUDNN_DATA_HALF : CUDNN_DATA_FLOAT;
    int64_t size[3] = {z[0], v[2], v[3]}, kernel[3] = {z[1], v[5], v[6]}, stride[3] = {z[2], v[7], v[8]}, pad[3] = {z[3], v[9], v[10]}, dil[3] = {z[4], v[11], v[12]}, more[3] = {z[5], oh, ow};
    int64_t c = v[1], k = v[4], in[5] = {v[0], c}, out[5] = {v[0], k}, weight[5] = {tr ? c : k, (tr ? k : c) / v[13]};
    for (int i = 1 - d; i < 3; i++) {
      int at = i + 1 + d;
      in[at] = size[i]; weight[at] = kernel[i];
      out[at] = tr ? (size[i] - 1) * stride[i] - 2 * pad[i] + dil[i] * (kernel[i] - 1) + 1 + more[i] : (size[i] + 2 * pad[i] - dil[i] * (kernel[i] - 1) - 1) / stride[i] + 1;
    }
    static const int of[2][3] = {{0, 1, 2}, {1, 0, 2}}; /* a transposed convolution's forward is a data gradient */
    for (int pass = 0; pass < 3; pass++) {
      int64_t bytes = workspace(of[tr][pass], tr ? out : in, weight, tr ? in : out, stride + 1 - d, pad + 1 - d, dil + 1 - d, type, tf32, last, text, sizeof text);
      if (bytes >= 0) printf("%ld %d %lld %s\n", id, pass, (long long)bytes, text);
    }
    fflush(stdout);
  }
  return 0;
}
