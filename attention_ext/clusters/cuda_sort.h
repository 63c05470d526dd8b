// Queries sorted by cluster on CUDA, and sums over the members of a cluster.
//
// Sorting is a stable counting sort: count per chunk of queries, sum over chunks, place.
#pragma once

#include "cuda_heads.h"

namespace attention_ext {
namespace {

constexpr int sort_queries = threads;  // queries in a chunk

__device__ inline int group_of(const CudaShape& shape, int64_t head, int64_t i) {
  if (i >= length_of(shape.query_length_B, head, shape.H, shape.N)) return shape.C;
  const int32_t group = shape.groups[head * shape.N + i];
  return group < 0 || group > shape.C ? shape.C : group;
}

// Count the queries of each cluster in each chunk: [heads, chunks, C + 1]. Grid (chunks, heads).
__global__ void __launch_bounds__(threads) count_groups(CudaShape shape, int32_t* counts) {
  __shared__ int32_t count[most_clusters + 1];
  const int64_t head = blockIdx.y, i = static_cast<int64_t>(blockIdx.x) * sort_queries + threadIdx.x;
  for (int c = threadIdx.x; c <= shape.C; c += threads) count[c] = 0;
  __syncthreads();
  if (i < shape.N) atomicAdd(&count[group_of(shape, head, i)], 1);
  __syncthreads();
  int32_t* to = counts + (head * gridDim.x + blockIdx.x) * (shape.C + 1);
  for (int c = threadIdx.x; c <= shape.C; c += threads) to[c] = count[c];
}

// Replace counts by the place of each chunk's first query of each cluster; write `starts` and `tile_starts`.
// Grid (heads).
__global__ void __launch_bounds__(threads)
    sum_counts(CudaShape shape, int64_t chunks, int32_t* counts, int32_t* starts, int32_t* tile_starts) {
  __shared__ int32_t total[most_clusters + 2], tiles[most_clusters + 2];
  const int64_t head = blockIdx.x;
  const int rows = shape.C + 1;
  int32_t* count = counts + head * chunks * rows;
  for (int c = threadIdx.x; c < rows; c += threads) {
    int32_t sum = 0;
#pragma unroll 8
    for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += count[chunk * rows + c];
    total[c] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t first = 0, first_tile = 0;
    for (int c = 0; c < rows; ++c) {
      const int32_t members = total[c];
      total[c] = first, tiles[c] = first_tile;
      first += members, first_tile += (members + 63) / 64;
    }
    total[rows] = first, tiles[rows] = first_tile;
  }
  __syncthreads();
  for (int c = threadIdx.x; c <= rows; c += threads) {
    starts[head * (rows + 1) + c] = total[c];
    tile_starts[head * (rows + 1) + c] = tiles[c];
  }
  constexpr int some = 8;  // chunks whose loads don't wait for each other's stores
  for (int c = threadIdx.x; c < rows; c += threads) {
    int32_t next = total[c];
    for (int64_t chunk = 0; chunk < chunks; chunk += some) {
      int32_t members[some];
#pragma unroll
      for (int i = 0; i < some; ++i) members[i] = chunk + i < chunks ? count[(chunk + i) * rows + c] : 0;
#pragma unroll
      for (int i = 0; i < some; ++i) {
        if (chunk + i < chunks) count[(chunk + i) * rows + c] = next;
        next += members[i];
      }
    }
  }
}

// Write the queries in sorted order. Grid (chunks, heads).
__global__ void __launch_bounds__(threads) place_queries(CudaShape shape, const int32_t* counts, int32_t* order) {
  __shared__ int32_t group[sort_queries];
  const int64_t head = blockIdx.y, i = static_cast<int64_t>(blockIdx.x) * sort_queries + threadIdx.x;
  const int mine = i < shape.N ? group_of(shape, head, i) : -1;
  group[threadIdx.x] = mine;
  __syncthreads();
  if (mine < 0) return;
  int before = 0;
  for (int j = 0; j < static_cast<int>(threadIdx.x); ++j) before += group[j] == mine;
  const int32_t first = counts[(head * gridDim.x + blockIdx.x) * (shape.C + 1) + mine];
  order[head * shape.N + first + before] = static_cast<int32_t>(i);
}

// Sum the rows of each cluster's members, or compute their mean times `scale`. Grid (C, heads, blocks of 64 columns).
template <class T>
__global__ void __launch_bounds__(threads)
    sum_members(CudaShape shape, Rows<T> rows, int size, bool mean, float* sums) {
  __shared__ float part[threads];
  const int64_t head = blockIdx.y, c = blockIdx.x;
  const int column = blockIdx.z * 64 + threadIdx.x % 64, lane = threadIdx.x / 64;
  const int32_t* start = shape.starts + head * (shape.C + 2) + c;
  const int32_t* order = shape.order + head * shape.N;
  const T* from = rows.head(head, shape.H);
  float sum = 0;
  if (column < size)
#pragma unroll 8
    for (int32_t i = start[0] + lane; i < start[1]; i += threads / 64)
      sum += static_cast<float>(from[order[i] * rows.stride_n + column]);
  part[threadIdx.x] = sum;
  __syncthreads();
  if (lane != 0 || column >= size) return;
  for (int j = 1; j < threads / 64; ++j) sum += part[threadIdx.x + j * 64];
  const int32_t members = start[1] - start[0];
  if (mean) sum = sum / static_cast<float>(members > 0 ? members : 1) * shape.scale;
  sums[(head * shape.C + c) * size + column] = sum;
}

// δ = Σ gradient · output over the members, and the derivative with respect to the mass, (δ − Ḡ · values) / mass.
// Without `mass` all members share the cluster's output, and δ = Ḡ · values. Grid (C, heads).
template <class T>
__global__ void __launch_bounds__(threads) member_products(
    CudaShape shape, Rows<T> grad, Rows<T> out, const float* sums, const float* values, const float* mass, float* delta,
    float* grad_mass) {
  __shared__ float shared[threads];
  const int64_t head = blockIdx.y, c = blockIdx.x, at = head * shape.C + c;
  float base = 0;
  for (int e = threadIdx.x; e < shape.E; e += threads) base += sums[at * shape.E + e] * values[at * shape.E + e];
  base = block_sum(base, shared);
  if (mass == nullptr) {
    if (threadIdx.x == 0) delta[at] = base;
    return;
  }
  const int32_t* start = shape.starts + head * (shape.C + 2) + c;
  const int32_t* order = shape.order + head * shape.N;
  const T *g = grad.head(head, shape.H), *o = out.head(head, shape.H);
  float product = 0;
  for (int32_t i = start[0] + threadIdx.x / 32; i < start[1]; i += threads / 32)
    for (int e = threadIdx.x % 32; e < shape.E; e += 32)
      product +=
          static_cast<float>(g[order[i] * grad.stride_n + e]) * static_cast<float>(o[order[i] * out.stride_n + e]);
  product = block_sum(product, shared);
  if (threadIdx.x != 0) return;
  delta[at] = product;
  grad_mass[at] = mass[at] == 0 ? 0.0f : (product - base) / mass[at];
}

}  // namespace
}  // namespace attention_ext
