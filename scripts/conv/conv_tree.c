/* Grows a decision tree of least entropy, all the way down; see conv_forest.py.
   cc -O2 -shared -fPIC scripts/conv/conv_tree.c -o conv_tree.so -lm */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static double *xlogx;
static uint32_t *keys, *spare;

/* Sorts keys by their upper 16 of 24 bits. */
static void sort(int64_t n) {
  if (n < 48) {
    for (int64_t i = 1; i < n; i++) {
      uint32_t v = keys[i];
      int64_t j = i;
      for (; j > 0 && keys[j - 1] > v; j--) keys[j] = keys[j - 1];
      keys[j] = v;
    }
    return;
  }
  for (int shift = 8; shift <= 16; shift += 8) {
    int64_t at[257] = {0};
    for (int64_t i = 0; i < n; i++) at[(keys[i] >> shift & 255) + 1]++;
    if (at[(keys[0] >> shift & 255) + 1] == n) continue;
    for (int i = 0; i < 256; i++) at[i + 1] += at[i];
    for (int64_t i = 0; i < n; i++) spare[at[keys[i] >> shift & 255]++] = keys[i];
    uint32_t *t = keys; keys = spare; spare = t;
  }
}

/* Which of the features a node may ask for: `tries` of them, by a xorshift generator. */
static uint64_t draw(uint64_t *seed, int features, int tries) {
  uint64_t chosen = 0;
  for (int f = 0; f < features; f++) {
    *seed ^= *seed << 13; *seed ^= *seed >> 7; *seed ^= *seed << 17;
    if ((int64_t)(*seed % (uint64_t)(features - f)) < tries) { chosen |= 1ull << f; tries--; }
  }
  return chosen;
}

/* Rows of at most 64 `features` ranks and their labels; each node asks for any feature (seed 0) or for one of `tries`. For each node, in
   preorder: feature (-1: leaf), the largest rank of the left child and the least of the right, the right child's number; for each row its
   leaf. Returns the nodes' number. */
int64_t grow(const uint16_t *x, int64_t rows, int features, const uint8_t *label, uint64_t seed, int tries, int32_t *feature, int32_t *threshold, int32_t *above, int32_t *right, int32_t *leaf) {
  int64_t nodes = 0, depth = 0, *order = malloc(rows * sizeof *order), *other = malloc(rows * sizeof *other);
  struct { int64_t from, to, parent; } *todo = malloc((rows + 64) * sizeof *todo);
  xlogx = malloc((rows + 2) * sizeof *xlogx);
  keys = malloc(rows * sizeof *keys); spare = malloc(rows * sizeof *spare);
  xlogx[0] = 0;
  for (int64_t i = 1; i < rows + 2; i++) xlogx[i] = i * log2(i);
  for (int64_t i = 0; i < rows; i++) order[i] = i;
  todo[depth].from = 0; todo[depth].to = rows; todo[depth++].parent = -1;
  while (depth) {
    int64_t from = todo[--depth].from, to = todo[depth].to, parent = todo[depth].parent, n = to - from, node = nodes++;
    if (parent >= 0) right[parent] = node;
    int64_t all[256] = {0}, classes = 0;
    int used[256];
    for (int64_t i = from; i < to; i++) if (!all[label[order[i]]]++) used[classes++] = label[order[i]];
    int best = -1, cut = 0, next = 0;
    double gain = -1e300, whole = 0;
    for (int i = 0; i < classes; i++) whole += xlogx[all[used[i]]];
    uint64_t chosen = seed ? draw(&seed, features, tries) : ~0ull;
    for (int f = 0; classes > 1 && f < features; f++) {
      if (!(chosen >> f & 1)) continue;
      uint32_t least = 65535, most = 0;
      for (int64_t i = from; i < to; i++) {
        uint32_t v = x[order[i] * features + f];
        keys[i - from] = v << 8 | label[order[i]];
        if (v < least) least = v;
        if (v > most) most = v;
      }
      if (least == most) continue;
      sort(n);
      int64_t l[256], r[256];
      for (int i = 0; i < classes; i++) l[used[i]] = 0, r[used[i]] = all[used[i]];
      double sum = whole;
      for (int64_t i = 0; i + 1 < n; i++) {
        int c = keys[i] & 255;
        sum += xlogx[l[c] + 1] - xlogx[l[c]] + xlogx[r[c] - 1] - xlogx[r[c]];
        l[c]++; r[c]--;
        if (keys[i] >> 8 != keys[i + 1] >> 8) {
          double g = sum - xlogx[i + 1] - xlogx[n - i - 1];
          if (g > gain + 1e-9) { gain = g; best = f; cut = keys[i] >> 8; next = keys[i + 1] >> 8; }
        }
      }
    }
    feature[node] = best;
    if (best < 0) {
      for (int64_t i = from; i < to; i++) leaf[order[i]] = node;
      continue;
    }
    threshold[node] = cut; above[node] = next;
    int64_t a = from, b = 0;
    for (int64_t i = from; i < to; i++) if (x[order[i] * features + best] <= cut) order[a++] = order[i]; else other[b++] = order[i];
    memcpy(order + a, other, b * sizeof *other);
    todo[depth].from = a; todo[depth].to = to; todo[depth++].parent = node;
    todo[depth].from = from; todo[depth].to = a; todo[depth++].parent = -1;
  }
  free(order); free(other); free(todo); free(xlogx); free(keys); free(spare);
  return nodes;
}
