// Kernels of the backward pass of near-field attention on CUDA.
#pragma once

#include "cuda_near.h"

namespace attention_ext {
namespace {

// δ = G · O of each query, one warp per query. Grid (blocks of 8 queries, heads).
template <class T>
__global__ void __launch_bounds__(threads) query_deltas(CudaShape shape, Rows<T> grad, Rows<T> out, float* delta_N) {
  __shared__ float part[threads];
  const int lane = threadIdx.x % 32;
  const int64_t head = blockIdx.y, query = static_cast<int64_t>(blockIdx.x) * (threads / 32) + threadIdx.x / 32;
  float sum = 0;
  if (query < length_of(shape.query_length_B, head, shape.H, shape.N)) {
    const T *g = grad.head(head, shape.H) + query * grad.stride_n, *o = out.head(head, shape.H) + query * out.stride_n;
    for (int e = lane; e < shape.E; e += 32) sum += static_cast<float>(g[e]) * static_cast<float>(o[e]);
  }
  sum = group_sum<32>(sum, part);
  if (lane == 0 && query < shape.N) delta_N[head * shape.N + query] = sum;
}

// What a far key's exp(score + highest) is multiplied by: the sums over each cluster's members in each tile of queries
// of σ = exp(−maximum − highest) / Z times δ, and times G, with highest = −(lowest maximum), so that
// exp(score + highest) ≤ 1. Grid (tiles of queries, heads).
template <class T>
__global__ void __launch_bounds__(threads) sum_query_tiles(
    CudaShape shape, NearShape near, int64_t first_head, QuerySoftmax query_softmax, Rows<T> grad, TileSums to) {
  __shared__ int32_t group[tile];
  __shared__ float share[tile];
  const int64_t local = blockIdx.y, head = first_head + local, q0 = static_cast<int64_t>(blockIdx.x) * tile,
                n = length_of(shape.query_length_B, head, shape.H, shape.N);
  if (q0 >= n) return;
  const int rows = static_cast<int>(n - q0 < tile ? n - q0 : tile);
  const int64_t at = (local * near.tiles + blockIdx.x) * shape.C;
  const float *maximum = query_softmax.softmax_N + 2 * head * shape.N + q0, *inverse = maximum + shape.N;
  const float* delta = query_softmax.delta_N + head * shape.N + q0;
  const T* from = grad.head(head, shape.H) + q0 * grad.stride_n;
  if (threadIdx.x < tile) group[threadIdx.x] = group_of(shape, head, q0 + threadIdx.x);
  __syncthreads();
  for (int c = threadIdx.x; c < shape.C; c += threads) {
    float top = lowest_score;
    for (int i = 0; i < rows; ++i)
      if (group[i] == c) top = fmaxf(top, -maximum[i]);
    to.highest[at + c] = top;
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < rows && group[threadIdx.x] < shape.C)
    share[threadIdx.x] = expf(-maximum[threadIdx.x] - to.highest[at + group[threadIdx.x]]) * inverse[threadIdx.x];
  __syncthreads();
  for (int column = threadIdx.x; column <= shape.E; column += threads) {
    const bool number = column == shape.E;
    float* sums = number ? to.sums + at : to.rows + at * shape.E + column;
    const int64_t stride = number ? 1 : shape.E;
    for (int c = 0; c < shape.C; ++c) sums[c * stride] = 0.0f;
    for (int i = 0; i < rows; ++i) {
      if (group[i] >= shape.C) continue;
      sums[group[i] * stride] += share[i] * (number ? delta[i] : static_cast<float>(from[i * grad.stride_n + column]));
    }
  }
}

// Replace the clusters' scores by the weights of far keys after dropout, for the sums of G; write the gradients of the
// scores. Grid (tiles of keys, tiles of clusters, heads).
template <class T>
__global__ void __launch_bounds__(threads) far_slopes(
    CudaShape shape, NearShape near, int64_t first_head, int64_t heads, Dropout dropout, TileSums far, Rows<T> v,
    float* scores, float* slopes) {
  __shared__ TileMemory memory;
  const int64_t local = blockIdx.z, head = first_head + local,
                n = length_of(shape.key_length_B, head, shape.H, shape.S);
  const int64_t s0 = static_cast<int64_t>(blockIdx.x) * tile, c0 = blockIdx.y * tile;
  if (s0 >= n) return;
  const int64_t first = (local * near.tiles + blockIdx.x) * shape.C;
  const auto grads = matrix(far.rows + first * shape.E, shape.E, shape.C, shape.E);
  const auto values = matrix(v.head(head, shape.H), v.stride_n, n, shape.E);
  Tile<typename Multiplier<T, true, false>::type> product;
  product.multiply(
      memory, 0, shape.E, [&](int64_t e) { load_across(memory.a, grads, c0, e); },
      [&](int64_t e) { load_across(memory.b, values, s0, e); });
  product.each([&](int row, int column, float grad_weight) {
    const int64_t c = c0 + row, s = s0 + column;
    if (c >= shape.C || s >= n) return;
    const int64_t at = (local * shape.C + c) * shape.S + s;
    const float weight = scores[at] == lowest_score ? 0.0f : expf(scores[at] + far.highest[first + c]);
    const float keep = keep_factor(dropout, heads * shape.N + head * shape.C + c, s);
    slopes[at] = weight * (grad_weight * keep - far.sums[first + c]);
    scores[at] = weight * keep;
  });
}

constexpr int slope_clusters = 32;  // clusters of a block of add_band_slopes

// Add the gradients of the clusters' scores on keys near their members. A thread owns a key and every fourth query.
// Grid (tiles of keys, blocks of clusters, heads).
__global__ void __launch_bounds__(threads)
    add_band_slopes(CudaShape shape, NearShape near, int64_t first_head, const float* band_slopes, float* slopes) {
  constexpr int residues = threads / tile, some = 8;
  __shared__ float sum_of[residues][slope_clusters][tile];
  const int64_t local = blockIdx.z, head = first_head + local, number = blockIdx.x,
                n = length_of(shape.key_length_B, head, shape.H, shape.S);
  if (number * tile >= n) return;
  const int c0 = blockIdx.y * slope_clusters, column = threadIdx.x % tile, residue = threadIdx.x / tile;
  const int64_t key = number * tile + column;
  for (int c = 0; c < slope_clusters; ++c) sum_of[residue][c][column] = 0.0f;
  const int64_t first = near.first_key(number) > 0 ? near.first_key(number) : 0;
  const int64_t end = near.first_key(number) + near.band < n ? near.first_key(number) + near.band : n;
  for (int64_t start = first + residue; start < end; start += some * residues) {
    float slope[some];
    int cluster[some];
#pragma unroll
    for (int i = 0; i < some; ++i) {
      const int64_t query = start + i * residues;
      cluster[i] = query < end && key < n && !near.sees(query, key) ? group_of(shape, head, query) - c0 : -1;
      const bool mine = cluster[i] >= 0 && cluster[i] < slope_clusters;
      slope[i] = mine ? band_slopes[(local * shape.N + query) * near.band + key - near.first_key(query / tile)] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < some; ++i)
      if (cluster[i] >= 0 && cluster[i] < slope_clusters) sum_of[residue][cluster[i]][column] += slope[i];
  }
  __syncthreads();
  if (key >= n) return;
  for (int c = residue; c < slope_clusters && c0 + c < shape.C; c += residues) {
    float sum = sum_of[0][c][column];
    for (int j = 1; j < residues; ++j) sum += sum_of[j][c][column];
    slopes[(local * shape.C + c0 + c) * shape.S + key] += sum;
  }
}

// Replace the top keys' scores by weights after dropout, and the gradients of the weights by those of the products q·k.
// Grid (blocks of pairs of query and top key, heads).
__global__ void __launch_bounds__(threads) top_slopes(
    CudaShape shape, int64_t first_head, Dropout dropout, const int32_t* top, QuerySoftmax query_softmax, float* scores,
    float* grad_weights) {
  const int64_t local = blockIdx.y, head = first_head + local,
                pair = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  const int64_t i = pair / shape.K;
  if (i >= shape.starts[head * (shape.C + 2) + shape.C]) return;
  const int64_t query = shape.order[head * shape.N + i], at = local * shape.N * shape.K + pair;
  const int32_t key =
      top[(head * shape.C + shape.groups[head * shape.N + query]) * shape.K + static_cast<int>(pair % shape.K)];
  const float weight = key >= 0 ? query_softmax.weight(head, query, scores[at]) : 0.0f;
  const float keep = key >= 0 ? keep_factor(dropout, head * shape.N + query, key) : 0.0f;
  const float delta = query_softmax.delta_N[head * shape.N + query];
  grad_weights[at] = weight * (grad_weights[at] * keep - delta) * shape.scale;
  scores[at] = weight * keep;
}

// dV = Pᵀ G and dK = dSᵀ Q of the far field and of the band. Grid (tiles of keys, blocks of columns of dV followed by
// those of dK, heads).
template <class T>
__global__ void __launch_bounds__(threads) near_key_gradients(
    CudaShape shape, NearShape near, int64_t first_head, const float* weights, const float* slopes, const float* band,
    const float* band_slopes, const float* far_grads, const float* centroids, Rows<T> q, Rows<T> grad,
    float* grad_values, float* grad_keys) {
  __shared__ TileMemory memory;
  const int64_t local = blockIdx.z, head = first_head + local, number = blockIdx.x, s0 = number * tile,
                n = length_of(shape.key_length_B, head, shape.H, shape.S);
  if (s0 >= n) return;
  const int value_blocks = (shape.E + tile - 1) / tile;
  const bool to_values = static_cast<int>(blockIdx.y) < value_blocks;
  const int size = to_values ? shape.E : shape.D;
  const int column0 = (to_values ? blockIdx.y : blockIdx.y - value_blocks) * tile;
  Tile<typename Multiplier<T, true, true>::type> product;
  {
    const float* of_clusters =
        to_values ? far_grads + (local * near.tiles + number) * shape.C * size : centroids + head * shape.C * size;
    const auto a = matrix((to_values ? weights : slopes) + local * shape.C * shape.S, shape.S, shape.C, n);
    const auto b = matrix(of_clusters, size, shape.C, size);
    product.multiply(
        memory, 0, shape.C, [&](int64_t c) { load_along(memory.a, a, s0, c); },
        [&](int64_t c) { load_along(memory.b, b, column0, c); });
  }
  const Rows<T>& rows = to_values ? grad : q;
  const auto a = matrix((to_values ? band : band_slopes) + local * shape.N * near.band, near.band, n, near.band);
  const auto b = matrix(rows.head(head, shape.H), rows.stride_n, n, size);
  const int64_t first = number > near.reach ? number - near.reach : 0;
  for (int64_t t = first; t <= number + near.reach && t * tile < n; ++t) {
    const int64_t key0 = near.first_key(t), end = (t + 1) * tile < n ? (t + 1) * tile : n;
    product.multiply(
        memory, t * tile, end,
        [&](int64_t i) {
          load_along(memory.a, a, s0 - key0, i, [&](int64_t query, int64_t column, float x) {
            if (to_values) return x;
            return near.sees(query, key0 + column) ? x * shape.scale : 0.0f;
          });
        },
        [&](int64_t i) { load_along(memory.b, b, column0, i); });
  }
  float* to = (to_values ? grad_values : grad_keys) + local * shape.S * size;
  product.each([&](int row, int column, float value) {
    if (s0 + row < n && column0 + column < size) to[(s0 + row) * size + column0 + column] = value;
  });
}

}  // namespace
}  // namespace attention_ext
