// Kernels of the forward pass of all centroids over all keys on CUDA.
#pragma once

#include "../cuda/tile.h"
#include "cuda_sort.h"
#include "cuda_topk.h"

namespace attention_ext {
namespace {

// Scores of all centroids on all keys. Grid (tiles of keys, tiles of clusters, heads).
template <class T>
__global__ void __launch_bounds__(threads)
    centroid_scores(CudaShape shape, int64_t first_head, const float* centroids, Rows<T> k, float* scores) {
  __shared__ TileMemory memory;
  const int64_t local = blockIdx.z, head = first_head + local,
                n = length_of(shape.key_length_B, head, shape.H, shape.S);
  const int64_t s0 = static_cast<int64_t>(blockIdx.x) * tile, c0 = blockIdx.y * tile;
  if (s0 >= n) return;
  const auto means = matrix(centroids + head * shape.C * shape.D, shape.D, shape.C, shape.D);
  const auto keys = matrix(k.head(head, shape.H), k.stride_n, n, shape.D);
  Tile<typename Multiplier<T, true, false>::type> product;
  product.multiply(
      memory, 0, shape.D, [&](int64_t d) { load_across(memory.a, means, c0, d); },
      [&](int64_t d) { load_across(memory.b, keys, s0, d); });
  float* to = scores + local * shape.C * shape.S;
  product.each([&](int row, int column, float score) {
    if (c0 + row < shape.C && s0 + column < n) to[(c0 + row) * shape.S + s0 + column] = score;
  });
}

// Replace scores by weights, zero for the top keys; write softmax statistics, mass and top keys. Grid (C, heads).
__global__ void __launch_bounds__(threads) softmax_rows(
    CudaShape shape, int64_t first_head, int64_t heads, Dropout dropout, float* scores, float* softmax, float* mass,
    int32_t* top) {
  __shared__ float shared[threads];
  __shared__ TopMemory memory;
  const int64_t local = blockIdx.y, head = first_head + local, c = blockIdx.x, at = head * shape.C + c;
  const int64_t n = length_of(shape.key_length_B, head, shape.H, shape.S);
  float* row = scores + (local * shape.C + c) * shape.S;
  const float mine = highest_of_share(memory, row, n);  // skips NaN, but the sum below does not
  const float highest = block_maximum(mine, shared);
  float sum = 0;
  each_of_share(row, n, [&](int64_t, float score) { sum += expf(score - highest); });
  sum = block_sum(sum, shared);
  const float inverse = n > 0 ? 1.0f / sum : 0.0f;
  if (threadIdx.x == 0) {
    softmax[2 * head * shape.C + c] = n > 0 ? highest : 0.0f;
    softmax[(2 * head + 1) * shape.C + c] = inverse;
  }
  int32_t* chosen = top + at * shape.K;
  if (shape.K > 0) {
    choose_top(memory, row, n, shape.K, mine, chosen);
    float part = 0;
    for (int i = threadIdx.x; i < shape.K; i += threads)
      if (chosen[i] >= 0) part += expf(row[chosen[i]] - highest) * inverse;
    part = block_sum(part, shared);
    if (threadIdx.x == 0) mass[at] = part;
  }
  const int64_t code = heads * shape.N + at;  // rows of clusters come after those of queries
  each_of_share(row, n, [&](int64_t s, float score) {
    row[s] = expf(score - highest) * inverse * keep_factor(dropout, code, s);
  });
  __syncthreads();
  for (int i = threadIdx.x; i < shape.K; i += threads)
    if (chosen[i] >= 0) row[chosen[i]] = 0.0f;
}

// Partial products a[C, S] · b[S, size] per split of the keys, [heads, splits, C, size].
// Grid (splits of the keys · blocks of columns, tiles of clusters, heads).
template <class T>
__global__ void __launch_bounds__(threads)
    weigh_keys(CudaShape shape, int64_t first_head, int64_t splits, const float* a, Rows<T> b, int size, float* parts) {
  __shared__ TileMemory memory;
  const int64_t local = blockIdx.z, head = first_head + local,
                n = length_of(shape.key_length_B, head, shape.H, shape.S);
  const int64_t split = blockIdx.x % splits, column0 = blockIdx.x / splits * tile, c0 = blockIdx.y * tile;
  const int64_t first = split * split_keys(n), last = first + split_keys(n) < n ? first + split_keys(n) : n;
  if (first >= n) return;
  const auto weights = matrix(a + local * shape.C * shape.S, shape.S, shape.C, n);
  const auto rows = matrix(b.head(head, shape.H), b.stride_n, n, size);
  Tile<typename Multiplier<T, true, false>::type> product;
  product.multiply(
      memory, first, last, [&](int64_t s) { load_across(memory.a, weights, c0, s); },
      [&](int64_t s) { load_along(memory.b, rows, column0, s); });
  float* to = parts + (local * splits + split) * shape.C * size;
  product.each([&](int row, int column, float value) {
    if (c0 + row < shape.C && column0 + column < size) to[(c0 + row) * size + column0 + column] = value;
  });
}

// Sum the partial products of all splits; with `share`, divide a centroid's gradient among its members.
// Grid (blocks of values, heads).
__global__ void __launch_bounds__(threads) sum_parts(
    CudaShape shape, int64_t first_head, int64_t splits, int size, bool share, const float* parts, float* sums) {
  const int64_t local = blockIdx.y, head = first_head + local,
                n = length_of(shape.key_length_B, head, shape.H, shape.S);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x,
                values = static_cast<int64_t>(shape.C) * size;
  if (i >= values) return;
  const int64_t used = ceil_div(n, split_keys(n));
  float sum = 0;
#pragma unroll 4
  for (int64_t split = 0; split < used; ++split) sum += parts[(local * splits + split) * values + i];
  if (share) {
    const int32_t* start = shape.starts + head * (shape.C + 2) + i / size;
    const int32_t members = start[1] - start[0];
    sum = sum * shape.scale / static_cast<float>(members > 0 ? members : 1);
  }
  sums[head * values + i] = sum;
}

// to[i] = from[cluster of i]; zero at padding. Grid (blocks of values, heads).
template <class T>
__global__ void __launch_bounds__(threads) take_cluster_rows(CudaShape shape, const float* from, int size, T* to) {
  const int64_t head = blockIdx.y, i = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i >= shape.N * size) return;
  const int group = group_of(shape, head, i / size);
  to[head * shape.N * size + i] =
      static_cast<T>(group < shape.C ? from[(head * shape.C + group) * size + i % size] : 0.0f);
}

}  // namespace
}  // namespace attention_ext
