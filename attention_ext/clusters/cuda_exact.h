// Attention of each cluster's members over the cluster's top keys on CUDA: products. The queries of a tile share a
// cluster; their rows are picked by the sorted order.
#pragma once

#include <string>

#include "../cuda/tile.h"
#include "cuda_heads.h"

namespace attention_ext {
namespace {

// The queries of one block: their cluster (C for padding) and their range in the sorted order.
struct QueryTile {
  int32_t cluster, first, rows;
};

__device__ inline QueryTile query_tile(const CudaShape& shape, int64_t head, int32_t number) {
  const int32_t* tiles = shape.tile_starts + head * (shape.C + 2);
  if (number >= tiles[shape.C + 1]) return {shape.C, 0, 0};
  int32_t low = 0, high = shape.C;  // find the last cluster that starts at or before `number`
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (tiles[middle] <= number)
      low = middle;
    else
      high = middle - 1;
  }
  const int32_t* start = shape.starts + head * (shape.C + 2) + low;
  const int32_t first = start[0] + (number - tiles[low]) * tile, rows = start[1] - first;
  return {low, first, rows < tile ? rows : tile};
}

// Scores and, for the backward pass, gradients of the weights; both [heads, N in sorted order, K].
// Grid (tiles of queries, tiles of top keys, heads).
template <class T, bool Backward>
__global__ void __launch_bounds__(threads) exact_products(
    CudaShape shape, int64_t first_head, const int32_t* top, Rows<T> q, Rows<T> k, Rows<T> v, Rows<T> grad,
    float* scores, float* grad_weights) {
  __shared__ TileMemory memory;
  const int64_t local = blockIdx.z, head = first_head + local;
  const QueryTile queries = query_tile(shape, head, blockIdx.x);
  if (queries.cluster == shape.C) return;
  const int64_t j0 = blockIdx.y * tile;
  const int32_t* order = shape.order + head * shape.N + queries.first;
  const int32_t* chosen = top + (head * shape.C + queries.cluster) * shape.K;
  const int64_t row0 = local * shape.N + queries.first;
  using Product = Tile<typename Multiplier<T, false, false>::type>;
  {
    const auto a = matrix(q.head(head, shape.H), q.stride_n, queries.rows, shape.D, order);
    const auto b = matrix(k.head(head, shape.H), k.stride_n, shape.K, shape.D, chosen);
    Product product;
    product.multiply(
        memory, 0, shape.D, [&](int64_t d) { load_across(memory.a, a, 0, d); },
        [&](int64_t d) { load_across(memory.b, b, j0, d); });
    product.each([&](int row, int column, float value) {
      if (row < queries.rows && j0 + column < shape.K)
        scores[(row0 + row) * shape.K + j0 + column] = value * shape.scale;
    });
  }
  if constexpr (Backward) {
    const auto a = matrix(grad.head(head, shape.H), grad.stride_n, queries.rows, shape.E, order);
    const auto b = matrix(v.head(head, shape.H), v.stride_n, shape.K, shape.E, chosen);
    Product product;
    product.multiply(
        memory, 0, shape.E, [&](int64_t e) { load_across(memory.a, a, 0, e); },
        [&](int64_t e) { load_across(memory.b, b, j0, e); });
    product.each([&](int row, int column, float value) {
      if (row < queries.rows && j0 + column < shape.K) grad_weights[(row0 + row) * shape.K + j0 + column] = value;
    });
  }
}

// Rows of a · b over the top keys plus `base`, written to the queries' positions; zeros at padding. `base` has a row
// for each cluster, [all heads, C, size], or for each query of the wave, [heads, N, size]. Grid (tiles of queries,
// blocks of columns, heads).
template <class T>
__global__ void __launch_bounds__(threads) exact_rows(
    CudaShape shape, int64_t first_head, const int32_t* top, const float* a, Rows<T> b, int size, const float* base,
    bool per_query, T* to) {
  __shared__ TileMemory memory;
  const int64_t local = blockIdx.z, head = first_head + local;
  const QueryTile queries = query_tile(shape, head, blockIdx.x);
  const int column0 = blockIdx.y * tile;
  const bool padding = queries.cluster == shape.C;
  if (queries.rows == 0) return;
  const int32_t* order = shape.order + head * shape.N + queries.first;
  const int64_t cluster = head * shape.C + queries.cluster;
  Tile<typename Multiplier<T, true, false>::type> product;
  if (!padding) {
    const auto weights = matrix(a + (local * shape.N + queries.first) * shape.K, shape.K, queries.rows, shape.K);
    const auto rows = matrix(b.head(head, shape.H), b.stride_n, shape.K, size, top + cluster * shape.K);
    product.multiply(
        memory, 0, shape.K, [&](int64_t j) { load_across(memory.a, weights, 0, j); },
        [&](int64_t j) { load_along(memory.b, rows, column0, j); });
  }
  product.each([&](int row, int column, float value) {
    if (row >= queries.rows || column0 + column >= size) return;
    const int64_t from = per_query ? local * shape.N + order[row] : cluster;
    const float sum = padding ? 0.0f : value + base[from * size + column0 + column];
    to[(head * shape.N + order[row]) * size + column0 + column] = static_cast<T>(sum);
  });
}

// Σ a[member, key] · row[member] over the members of each split, [heads, C, splits, K, size]. Grid (C · splits, tiles
// of top keys · blocks of columns, heads).
template <class T>
__global__ void __launch_bounds__(threads) exact_key_gradients(
    CudaShape shape, int64_t first_head, int64_t splits, const float* a, Rows<T> b, int size, float* parts) {
  __shared__ TileMemory memory;
  const int64_t local = blockIdx.z, head = first_head + local, c = blockIdx.x / splits, split = blockIdx.x % splits;
  const int64_t used = member_splits(length_of(shape.query_length_B, head, shape.H, shape.N), shape.C);
  if (split >= used) return;
  const int blocks = (size + tile - 1) / tile;
  const int64_t j0 = blockIdx.y / blocks * tile, column0 = blockIdx.y % blocks * tile;
  const int32_t* start = shape.starts + head * (shape.C + 2) + c;
  const int64_t members = start[1] - start[0], share = ceil_div(ceil_div(members, used), depth) * depth;
  const int64_t begin = split * share, end = begin + share < members ? begin + share : members;
  const auto weights = matrix(a + (local * shape.N + start[0]) * shape.K, shape.K, members, shape.K);
  const auto rows = matrix(b.head(head, shape.H), b.stride_n, members, size, shape.order + head * shape.N + start[0]);
  Tile<typename Multiplier<T, true, false>::type> product;
  product.multiply(
      memory, begin, end, [&](int64_t i) { load_along(memory.a, weights, j0, i); },
      [&](int64_t i) { load_along(memory.b, rows, column0, i); });
  float* to = parts + (local * shape.C * splits + blockIdx.x) * shape.K * size;
  product.each([&](int row, int column, float value) {
    if (j0 + row < shape.K && column0 + column < size) to[(j0 + row) * size + column0 + column] = value;
  });
}

// Adds what the top keys' exact scores and weights give to dK and dV of a wave of heads, and finishes both.
class TopKeyGradients {
 public:
  static int64_t floats(const CudaShape& shape) {
    return member_splits(shape.N, shape.C) * shape.C * shape.K * (shape.D + shape.E);
  }
  TopKeyGradients(const Tensor& like, int64_t wave, const CudaShape& shape)
      : splits_(member_splits(shape.N, shape.C)),
        key_parts_(new_tensor(like, {wave, shape.C, splits_, shape.K, shape.D}, ScalarType::Float)),
        value_parts_(new_tensor(like, {wave, shape.C, splits_, shape.K, shape.E}, ScalarType::Float)) {}

  template <class T>
  void finish(
      const CudaHeads& in, int64_t first, int64_t count, const int32_t* top, const Tensor& slopes,
      const Tensor& weights, Rows<T> q, Rows<T> grad, const Tensor& key_sums, const Tensor& value_sums,
      const Tensor& grad_k, const Tensor& grad_v) const {
    const Launcher launch(slopes);
    const auto add = [&](const Tensor& a, Rows<T> rows, int64_t size, const Tensor& parts, const Tensor& sums,
                         const Tensor& to) {
      launch(
          "exact_key_gradients", exact_key_gradients<T>, in.shape.C * splits_, tiles_of(in.shape.K) * tiles_of(size),
          count, in.shape, first, splits_, data_of<float>(a), rows, size, data_of<float>(parts));
      cuda_finish_keys(in, first, count, size, top, data_of<float>(parts), sums, to);
    };
    add(slopes, q, in.shape.D, key_parts_, key_sums, grad_k);
    add(weights, grad, in.shape.E, value_parts_, value_sums, grad_v);
  }

 private:
  int64_t splits_;
  Tensor key_parts_, value_parts_;
};

// Top keys that a caller hands to backward; a position that is no key reads as −1.
__global__ void __launch_bounds__(threads) check_top(int64_t count, int64_t S, const int32_t* top, int32_t* checked) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i < count) checked[i] = top[i] < S ? top[i] : -1;
}

inline void check_topk(int64_t topk) {
  require(topk >= 1 && topk <= most_topk, "topk must lie in 1 … 1024 on CUDA, found " + std::to_string(topk));
}

}  // namespace
}  // namespace attention_ext
