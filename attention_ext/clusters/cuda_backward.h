// Kernels of the backward pass of all centroids over all keys on CUDA.
#pragma once

#include "../cuda/tile.h"
#include "cuda_heads.h"

namespace attention_ext {
namespace {

// Weights P and slopes P ∘ (dP − δ), both [heads, C, S]. Grid (tiles of keys, tiles of clusters, heads).
template <class T>
__global__ void __launch_bounds__(threads) dense_slopes(
    CudaShape shape, int64_t first_head, int64_t heads, Dropout dropout, const float* centroids, const float* sums,
    const float* softmax, const float* delta, Rows<T> k, Rows<T> v, float* weights, float* slopes) {
  __shared__ TileMemory memory;
  const int64_t local = blockIdx.z, head = first_head + local,
                n = length_of(shape.key_length_B, head, shape.H, shape.S);
  const int64_t s0 = static_cast<int64_t>(blockIdx.x) * tile, c0 = blockIdx.y * tile;
  if (s0 >= n) return;
  const auto means = matrix(centroids + head * shape.C * shape.D, shape.D, shape.C, shape.D);
  const auto keys = matrix(k.head(head, shape.H), k.stride_n, n, shape.D);
  const auto grads = matrix(sums + head * shape.C * shape.E, shape.E, shape.C, shape.E);
  const auto values = matrix(v.head(head, shape.H), v.stride_n, n, shape.E);
  Tile<typename Multiplier<T, true, false>::type> scores, grad_weights;
  scores.multiply(
      memory, 0, shape.D, [&](int64_t d) { load_across(memory.a, means, c0, d); },
      [&](int64_t d) { load_across(memory.b, keys, s0, d); });
  grad_weights.multiply(
      memory, 0, shape.E, [&](int64_t e) { load_across(memory.a, grads, c0, e); },
      [&](int64_t e) { load_across(memory.b, values, s0, e); });
  int i = 0;
  scores.each([&](int row, int column, float score) {
    const int64_t c = c0 + row, s = s0 + column;
    const float grad_weight = grad_weights.sum[i++];
    if (c >= shape.C || s >= n) return;
    const float weight = expf(score - softmax[2 * head * shape.C + c]) * softmax[(2 * head + 1) * shape.C + c];
    const float keep = keep_factor(dropout, heads * shape.N + head * shape.C + c, s);
    const int64_t at = (local * shape.C + c) * shape.S + s;
    weights[at] = weight;
    slopes[at] = weight * (grad_weight * keep - delta[head * shape.C + c]);
  });
}

// Correct the top keys, which belong to the exact part: they contribute no dV here, and their dP is the derivative with
// respect to the mass. Then apply dropout to the other weights. Grid (C, heads).
__global__ void __launch_bounds__(threads) correct_top_keys(
    CudaShape shape, int64_t first_head, int64_t heads, Dropout dropout, const int32_t* top, const float* delta,
    const float* grad_mass, float* weights, float* slopes) {
  const int64_t local = blockIdx.y, head = first_head + local, c = blockIdx.x, at = head * shape.C + c;
  float *weight = weights + (local * shape.C + c) * shape.S, *slope = slopes + (local * shape.C + c) * shape.S;
  for (int i = threadIdx.x; i < shape.K; i += threads) {
    const int32_t s = top[at * shape.K + i];
    if (s < 0) continue;
    slope[s] = weight[s] * (grad_mass[at] - delta[at]);
    weight[s] = 0.0f;
  }
  if (dropout.seed == nullptr) return;
  __syncthreads();
  const int64_t n = length_of(shape.key_length_B, head, shape.H, shape.S);
  for (int64_t s = threadIdx.x; s < n; s += threads) weight[s] *= keep_factor(dropout, heads * shape.N + at, s);
}

// dV = Pᵀ Ḡ and dK = dSᵀ Q^c. Grid (tiles of keys, blocks of columns of dV followed by those of dK, heads).
template <class Way>
__global__ void __launch_bounds__(threads) key_gradients(
    CudaShape shape, int64_t first_head, const float* weights, const float* slopes, const float* sums,
    const float* centroids, float* grad_values, float* grad_keys) {
  __shared__ TileMemory memory;
  const int64_t local = blockIdx.z, head = first_head + local,
                n = length_of(shape.key_length_B, head, shape.H, shape.S);
  const int64_t s0 = static_cast<int64_t>(blockIdx.x) * tile;
  if (s0 >= n) return;
  const int value_blocks = (shape.E + tile - 1) / tile;
  const bool to_values = static_cast<int>(blockIdx.y) < value_blocks;
  const int size = to_values ? shape.E : shape.D;
  const int column0 = (to_values ? blockIdx.y : blockIdx.y - value_blocks) * tile;
  const auto a = matrix((to_values ? weights : slopes) + local * shape.C * shape.S, shape.S, shape.C, n);
  const auto b = matrix((to_values ? sums : centroids) + head * shape.C * size, size, shape.C, size);
  Tile<Way> product;
  product.multiply(
      memory, 0, shape.C, [&](int64_t c) { load_along(memory.a, a, s0, c); },
      [&](int64_t c) { load_along(memory.b, b, column0, c); });
  float* to = (to_values ? grad_values : grad_keys) + local * shape.S * size;
  product.each([&](int row, int column, float value) {
    if (s0 + row < n && column0 + column < size) to[(s0 + row) * size + column0 + column] = value;
  });
}

// dK or dV of all keys: add the clusters' gradients for their top keys, in the order of the clusters, and convert. A
// thread owns a column of every fourth key, so that no other thread adds there. Grid (tiles of 64 keys, heads, blocks
// of 64 columns).
template <class T>
__global__ void __launch_bounds__(threads) finish_keys(
    CudaShape shape, int64_t first_head, int size, const int32_t* top, const float* parts, const float* sums, T* to) {
  __shared__ int32_t first_of[most_clusters], last_of[most_clusters];
  __shared__ float sum_of[tile][64];
  constexpr int keys = tile * 64 / threads;  // of a thread
  const int64_t local = blockIdx.y, head = first_head + local,
                n = length_of(shape.key_length_B, head, shape.H, shape.S);
  const int64_t s0 = static_cast<int64_t>(blockIdx.x) * tile, s_end = s0 + tile < shape.S ? s0 + tile : shape.S;
  const int32_t* top_CK = top + head * shape.C * shape.K;
  const int clusters = shape.K > 0 && s0 < n ? shape.C : 0;
  const int lane = threadIdx.x % 64, residue = threadIdx.x / 64, column = blockIdx.z * 64 + lane;
#pragma unroll
  for (int i = 0; i < keys; ++i) {
    const int64_t s = s0 + residue + 4 * i;
    sum_of[residue + 4 * i][lane] = s < n && column < size ? sums[(local * shape.S + s) * size + column] : 0.0f;
  }
  for (int c = threadIdx.x; c < clusters; c += threads) {
    const int32_t* chosen = top_CK + static_cast<int64_t>(c) * shape.K;  // ascending, then −1
    int low = 0, high = shape.K;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (chosen[middle] >= 0 && chosen[middle] < s0)
        low = middle + 1;
      else
        high = middle;
    }
    first_of[c] = low;
    while (low < shape.K && chosen[low] >= 0 && chosen[low] < s_end) ++low;
    last_of[c] = low;
  }
  __syncthreads();
  if (column >= size) return;
  const int64_t splits = member_splits(shape.N, shape.C);
  const int64_t used = member_splits(length_of(shape.query_length_B, head, shape.H, shape.N), shape.C);
  for (int c = 0; c < clusters; ++c)
    for (int j = first_of[c]; j < last_of[c]; ++j) {
      const int64_t s = top_CK[static_cast<int64_t>(c) * shape.K + j];
      if (s % 4 != residue) continue;
      const float* part = parts + (((local * shape.C + c) * splits) * shape.K + j) * size + column;
      float sum = 0;
#pragma unroll 4
      for (int64_t split = 0; split < used; ++split) sum += part[split * shape.K * size];
      sum_of[s - s0][lane] += sum;
    }
#pragma unroll
  for (int i = 0; i < keys; ++i) {
    const int64_t s = s0 + residue + 4 * i;
    if (s < s_end) to[(head * shape.S + s) * size + column] = static_cast<T>(sum_of[residue + 4 * i][lane]);
  }
}

}  // namespace
}  // namespace attention_ext
