// The part of both attentions that works on clusters: sorting, centroids, and C × S products, forward and backward.
//
// Weights [C, S] of some heads at a time are kept in float32. All sums are taken in an order that follows from
// the lengths alone; nothing is added by floating-point atomics.
#include "cuda_heads.h"

#include "../cuda/tile.h"

namespace attention_ext {
namespace {

constexpr int sort_queries = threads;  // in a chunk

// ---- queries sorted by cluster: count per chunk, sum over chunks, place --------------------------------------------

__device__ inline int group_of(const CudaShape& shape, int64_t head, int64_t i) {
  if (i >= length_of(shape.query_length_B, head, shape.H, shape.N)) return shape.C;
  const int32_t group = shape.groups[head * shape.N + i];
  return group < 0 || group > shape.C ? shape.C : group;
}

// Grid (chunks, heads); counts are [heads, chunks, C + 1].
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

// Grid (heads). Counts become the places of a chunk's first query of each cluster.
__global__ void __launch_bounds__(threads) sum_counts(
    CudaShape shape, int64_t chunks, int32_t* counts, int32_t* starts, int32_t* tile_starts) {
  __shared__ int32_t total[most_clusters + 2], tiles[most_clusters + 2];
  const int64_t head = blockIdx.x;
  const int rows = shape.C + 1;
  int32_t* count = counts + head * chunks * rows;
  for (int c = threadIdx.x; c < rows; c += threads) {
    int32_t sum = 0;
#pragma unroll 4
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
  for (int c = threadIdx.x; c < rows; c += threads) {
    int32_t next = total[c];
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int32_t members = count[chunk * rows + c];
      count[chunk * rows + c] = next;
      next += members;
    }
  }
}

// Grid (chunks, heads).
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

// ---- sums over the members of a cluster ----------------------------------------------------------------------------

// Grid (C, heads, blocks of 64 columns): Σ of the members' rows, or their mean times `scale`.
template <class T>
__global__ void __launch_bounds__(threads) sum_members(
    CudaShape shape, Rows<T> rows, int size, bool mean, float* sums) {
  __shared__ float part[threads];
  const int64_t head = blockIdx.y, c = blockIdx.x;
  const int column = blockIdx.z * 64 + threadIdx.x % 64, lane = threadIdx.x / 64;
  const int32_t* start = shape.starts + head * (shape.C + 2) + c;
  const int32_t* order = shape.order + head * shape.N;
  const T* from = rows.head(head, shape.H);
  float sum = 0;
  if (column < size)
#pragma unroll 4
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

// Grid (C, heads): δ = Σ over members of gradient · output, and the derivative by the mass, (δ − Ḡ · values) / mass.
// Without `out` all members share the cluster's values, and δ = Ḡ · values.
template <class T>
__global__ void __launch_bounds__(threads) member_products(
    CudaShape shape, Rows<T> grad, Rows<T> out, const float* sums, const float* values, const float* mass,
    float* delta, float* grad_mass) {
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
      product += static_cast<float>(g[order[i] * grad.stride_n + e]) * static_cast<float>(o[order[i] * out.stride_n + e]);
  product = block_sum(product, shared);
  if (threadIdx.x != 0) return;
  delta[at] = product;
  grad_mass[at] = mass[at] == 0 ? 0.0f : (product - base) / mass[at];
}

// ---- forward -------------------------------------------------------------------------------------------------------

// Grid (tiles of keys, tiles of clusters, heads).
template <class T>
__global__ void __launch_bounds__(threads) centroid_scores(
    CudaShape shape, int64_t first_head, const float* centroids, Rows<T> k, float* scores) {
  __shared__ TileMemory memory;
  const int64_t local = blockIdx.z, head = first_head + local, n = length_of(shape.key_length_B, head, shape.H, shape.S);
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

// A score as an integer of the same order, above 0; 0 for −∞ and NaN, which are never chosen.
__device__ inline uint32_t ordered(float score) {
  if (!(score > -INFINITY)) return 0;
  const uint32_t x = __float_as_uint(score + 0.0f);  // −0 and 0 are equal
  return x & 0x80000000u ? ~x : x | 0x80000000u;
}

// Of equal scores the first: its place, turned round, is the lower half of a number without equals.
__device__ inline uint64_t rank_of(float score, int64_t s) {
  const uint32_t high = ordered(score);
  return high == 0 ? 0 : static_cast<uint64_t>(high) << 32 | (0xffffffffu - static_cast<uint32_t>(s));
}

struct TopMemory {
  float maxima[threads];
  int count[256];
  int32_t chosen[most_topk];
  float weight[most_topk];
  uint64_t prefix;
  uint32_t bound;
  int eligible, need, found, shift;
};

// The K best of a row of n scores, rising positions, then −1. Radix selection, eight bits at a time. `mine` is the
// best of this thread's share of the row; the K-th best of these bounds the K-th best of all from below, so that
// few scores take part.
__device__ inline void choose_top(TopMemory& memory, const float* row, int64_t n, int K, float mine, int32_t* top) {
  const int thread = threadIdx.x;
  const int take = memory.eligible < K ? memory.eligible : K;
  memory.maxima[thread] = mine;
  if (thread == 0) memory.prefix = 0, memory.bound = 0, memory.need = take, memory.found = 0, memory.shift = 0;
  __syncthreads();
  int better = 0;
  for (int i = 0; i < threads; ++i)
    better += ordered(memory.maxima[i]) > ordered(mine) || (ordered(memory.maxima[i]) == ordered(mine) && i < thread);
  if (take <= threads && better == take - 1) memory.bound = ordered(mine);
  __syncthreads();
  const uint32_t bound = memory.bound;
  for (int shift = 56; take > 0 && shift >= 0; shift -= 8) {
    for (int i = thread; i < 256; i += threads) memory.count[i] = 0;
    __syncthreads();
    const uint64_t known = memory.prefix;
    for (int64_t s = thread; s < n; s += threads) {
      const uint64_t rank = rank_of(row[s], s);
      if (rank == 0 || rank >> 32 < bound) continue;
      if (shift == 56 || rank >> (shift + 8) == known) atomicAdd(&memory.count[rank >> shift & 255], 1);
    }
    __syncthreads();
    if (thread == 0) {
      int digit = 255;
      while (digit > 0 && memory.count[digit] < memory.need) memory.need -= memory.count[digit--];
      memory.prefix = known << 8 | static_cast<uint64_t>(digit);
      memory.shift = shift;
      if (memory.count[digit] == memory.need) memory.found = 1;  // all of them are among the best
    }
    __syncthreads();
    const bool done = memory.found != 0;
    __syncthreads();
    if (done) break;
  }
  if (thread == 0) memory.found = 0;
  __syncthreads();
  const uint64_t prefix = memory.prefix;
  const int shift = memory.shift;
  for (int64_t s = thread; take > 0 && s < n; s += threads) {
    const uint64_t rank = rank_of(row[s], s);
    if (rank == 0 || rank >> 32 < bound) continue;
    if (rank >> shift >= prefix) memory.chosen[atomicAdd(&memory.found, 1)] = static_cast<int32_t>(s);
  }
  __syncthreads();
  for (int i = thread; i < K; i += threads) {
    if (i >= take) {
      top[i] = -1;
      continue;
    }
    int before = 0;
    for (int j = 0; j < take; ++j) before += memory.chosen[j] < memory.chosen[i];
    top[before] = memory.chosen[i];
  }
  __syncthreads();
}

// Grid (C, heads). Scores to weights in place, without the top keys'; statistics, mass and top keys.
__global__ void __launch_bounds__(threads) softmax_rows(
    CudaShape shape, int64_t first_head, int64_t heads, Dropout dropout, float* scores, float* softmax, float* mass,
    int32_t* top) {
  __shared__ float shared[threads];
  __shared__ TopMemory memory;
  const int64_t local = blockIdx.y, head = first_head + local, c = blockIdx.x, at = head * shape.C + c;
  const int64_t n = length_of(shape.key_length_B, head, shape.H, shape.S);
  float* row = scores + (local * shape.C + c) * shape.S;
  float mine = -INFINITY;
  int eligible = 0;
  if (threadIdx.x == 0) memory.eligible = 0;
  for (int64_t s = threadIdx.x; s < n; s += threads) {
    mine = fmaxf(mine, row[s]);  // passes NaN over; the sum does not
    eligible += row[s] > -INFINITY;
  }
  const float highest = block_maximum(mine, shared);  // its barriers lie between zero and the additions
  atomicAdd(&memory.eligible, eligible);
  float sum = 0;
  for (int64_t s = threadIdx.x; s < n; s += threads) sum += expf(row[s] - highest);
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
  const int64_t code = heads * shape.N + at;  // rows of clusters are counted after those of queries
  for (int64_t s = threadIdx.x; s < n; s += threads)
    row[s] = expf(row[s] - highest) * inverse * keep_factor(dropout, code, s);
  __syncthreads();
  for (int i = threadIdx.x; i < shape.K; i += threads)
    if (chosen[i] >= 0) row[chosen[i]] = 0.0f;
}

// Grid (splits of the keys · blocks of columns, tiles of clusters, heads): parts of a[C, S] · b[S, size] and which
// split they are from, [heads, splits, C, size].
template <class T>
__global__ void __launch_bounds__(threads) weigh_keys(
    CudaShape shape, int64_t first_head, int64_t splits, const float* a, Rows<T> b, int size, float* parts) {
  __shared__ TileMemory memory;
  const int64_t local = blockIdx.z, head = first_head + local, n = length_of(shape.key_length_B, head, shape.H, shape.S);
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

// Grid (blocks of values, heads): the parts' sum; for centroids' gradients the share of each member.
__global__ void __launch_bounds__(threads) sum_parts(
    CudaShape shape, int64_t first_head, int64_t splits, int size, bool share, const float* parts, float* sums) {
  const int64_t local = blockIdx.y, head = first_head + local, n = length_of(shape.key_length_B, head, shape.H, shape.S);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x, values = static_cast<int64_t>(shape.C) * size;
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

// Grid (blocks of values, heads).
template <class T>
__global__ void __launch_bounds__(threads) take_cluster_rows(CudaShape shape, const float* from, int size, T* to) {
  const int64_t head = blockIdx.y, i = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i >= shape.N * size) return;
  const int group = group_of(shape, head, i / size);
  to[head * shape.N * size + i] =
      static_cast<T>(group < shape.C ? from[(head * shape.C + group) * size + i % size] : 0.0f);
}

// ---- backward ------------------------------------------------------------------------------------------------------

// Grid (tiles of keys, tiles of clusters, heads): weights P and slopes P ∘ (dP − δ), both [heads, C, S].
template <class T>
__global__ void __launch_bounds__(threads) dense_slopes(
    CudaShape shape, int64_t first_head, int64_t heads, Dropout dropout, const float* centroids, const float* sums,
    const float* softmax, const float* delta, Rows<T> k, Rows<T> v, float* weights, float* slopes) {
  __shared__ TileMemory memory;
  const int64_t local = blockIdx.z, head = first_head + local, n = length_of(shape.key_length_B, head, shape.H, shape.S);
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

// Grid (C, heads). The top keys belong to the exact part: they give no dV here, and their slope is that of the mass.
// Then dropout on what is left.
__global__ void __launch_bounds__(threads) mend_rows(
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

// Grid (tiles of keys, blocks of columns of dV and then of dK, heads): dV = Pᵀ Ḡ and dK = dSᵀ Q^c.
template <class Way>
__global__ void __launch_bounds__(threads) key_gradients(
    CudaShape shape, int64_t first_head, const float* weights, const float* slopes, const float* sums,
    const float* centroids, float* grad_values, float* grad_keys) {
  __shared__ TileMemory memory;
  const int64_t local = blockIdx.z, head = first_head + local, n = length_of(shape.key_length_B, head, shape.H, shape.S);
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

// Grid (tiles of 64 keys, heads): dK or dV of all keys; a cluster's gradients for its top keys are added in the order
// of the clusters. A thread owns a column of every fourth key: nobody else adds there.
template <class T>
__global__ void __launch_bounds__(threads) finish_keys(
    CudaShape shape, int64_t first_head, int size, const int32_t* top, const float* parts, float* sums, T* to) {
  __shared__ int32_t first_of[most_clusters], last_of[most_clusters];
  const int64_t local = blockIdx.y, head = first_head + local, n = length_of(shape.key_length_B, head, shape.H, shape.S);
  const int64_t s0 = static_cast<int64_t>(blockIdx.x) * 64, s_end = s0 + 64 < shape.S ? s0 + 64 : shape.S;
  const int32_t* top_CK = top + head * shape.C * shape.K;
  const int clusters = shape.K > 0 && s0 < n ? shape.C : 0;
  for (int c = threadIdx.x; c < clusters; c += threads) {
    const int32_t* chosen = top_CK + static_cast<int64_t>(c) * shape.K;  // rising, then −1
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
  for (int item = threadIdx.x; item < 4 * size; item += threads) {
    const int residue = item / size, column = item % size;
    float* sum = sums + local * shape.S * size + column;
    for (int c = 0; c < clusters; ++c)
      for (int j = first_of[c]; j < last_of[c]; ++j) {
        const int64_t slot = static_cast<int64_t>(c) * shape.K + j, s = top_CK[slot];
        if (s % 4 == residue) sum[s * size] += parts[(local * shape.C * shape.K + slot) * size + column];
      }
    for (int64_t s = s0 + residue; s < s_end; s += 4)
      to[(head * shape.S + s) * size + column] = static_cast<T>(s < n ? sum[s * size] : 0.0f);
  }
}

// Splits of any sequence of at most S keys.
int64_t most_splits_of(int64_t S) { return std::max<int64_t>(1, std::min<int64_t>(128, ceil_div(S, 128))); }

}  // namespace

CudaHeads::CudaHeads(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& groups, const Tensor& query_lengths,
    const Tensor& key_lengths, int64_t clusters, int64_t topk, double dropout_probability,
    const std::optional<Tensor>& seed_)
    : q_BHND(q), k_BHSD(k), v_BHSE(v), groups_BHN(groups), query_lengths_B(query_lengths), key_lengths_B(key_lengths),
      order(q), starts(q), tile_starts(q), centroids(q) {
  require(q.dim() == 4, "q must be [B, H, N, D], found " + shape_of(q));
  require(k.dim() == 4, "k must be [B, H, S, D], found " + shape_of(k));
  B = q.size(0);
  const int64_t H = q.size(1), N = q.size(2), S = k.size(2), D = q.size(3);
  require_shape(k, {B, H, S, D}, "k");
  require(v.dim() == 4, "v must be [B, H, S, E], found " + shape_of(v));
  const int64_t E = v.size(3);
  require_shape(v, {B, H, S, E}, "v");
  require_shape(groups, {B, H, N}, "groups");
  require_type(q, "q");
  require(
      q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type(), "q, k and v must share a type");
  require(
      D >= 1 && D <= 256 && E >= 1 && E <= 256,
      "head sizes must lie in 1 … 256 on CUDA, found " + std::to_string(D) + " and " + std::to_string(E));
  require(
      clusters >= 1 && clusters <= most_clusters, "clusters must lie in 1 … 1024, found " + std::to_string(clusters));
  require_heads(q);
  require_heads(k);
  require_device(k, q, "k");
  require_device(v, q, "v");
  require_device(groups, q, "groups");
  require(dropout_probability >= 0 && dropout_probability < 1, "dropout must lie in 0 … 1, 1 excluded");
  seed = nullptr;
  dropout = dropout_probability;
  if (dropout > 0) {
    require(seed_.has_value() && seed_->numel() == 1, "dropout needs a seed, one int64");
    require(seed_->scalar_type() == ScalarType::Long, "the seed must be int64");
    require_device(*seed_, q, "the seed");
    seed_tensor = seed_;
    seed = static_cast<const int64_t*>(seed_->const_data_ptr());
  }

  heads = B * H;
  const int64_t C = std::min(clusters, N), K = std::min(topk, S), chunks = ceil_div(N, sort_queries);
  q_BHND = with_contiguous_rows(q);
  k_BHSD = with_contiguous_rows(k);
  v_BHSE = with_contiguous_rows(v);
  groups_BHN = contiguous_as(groups, ScalarType::Int);
  query_lengths_B = lengths_on_device(query_lengths, q, "query_lengths");
  key_lengths_B = lengths_on_device(key_lengths, q, "key_lengths");
  order = new_tensor(q, {heads, N}, ScalarType::Int);
  starts = new_tensor(q, {heads, C + 2}, ScalarType::Int);
  tile_starts = new_tensor(q, {heads, C + 2}, ScalarType::Int);
  centroids = new_tensor(q, {heads, C, D}, ScalarType::Float);
  // Every cluster, and the padding, may leave a tile part empty.
  query_tiles = N / 64 + C + 1;
  shape = {
      H, N, S, static_cast<int32_t>(C), static_cast<int32_t>(D), static_cast<int32_t>(E), static_cast<int32_t>(K),
      static_cast<float>(1 / std::sqrt(static_cast<double>(D))),
      static_cast<const int64_t*>(query_lengths_B.const_data_ptr()),
      static_cast<const int64_t*>(key_lengths_B.const_data_ptr()),
      static_cast<const int32_t*>(groups_BHN.const_data_ptr()), data_of<int32_t>(order), data_of<int32_t>(starts),
      data_of<int32_t>(tile_starts)};

  const Launcher launch(q);
  const Tensor counts = new_tensor(q, {heads, chunks, C + 1}, ScalarType::Int);
  launch("count_groups", count_groups, chunks, heads, 1, shape, data_of<int32_t>(counts));
  launch(
      "sum_counts", sum_counts, heads, 1, 1, shape, chunks, data_of<int32_t>(counts), data_of<int32_t>(starts),
      data_of<int32_t>(tile_starts));
  launch("place_queries", place_queries, chunks, heads, 1, shape, data_of<int32_t>(counts), data_of<int32_t>(order));
  with_type(q, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(
        "sum_members", sum_members<T>, C, heads, tiles_of(D), shape, Rows<T>(q_BHND), D, true,
        data_of<float>(centroids));
  });
}

void cuda_dense_forward(const CudaHeads& in, const CudaDense& out) {
  const CudaShape& shape = in.shape;
  const Launcher launch(in.q_BHND);
  const int64_t C = shape.C, E = shape.E, most_splits = most_splits_of(shape.S);
  const int64_t wave = heads_at_a_time(in, C * (shape.S + most_splits * E));
  const Tensor scores = new_tensor(in.q_BHND, {wave, C, shape.S}, ScalarType::Float);
  const Tensor parts = new_tensor(in.q_BHND, {wave, most_splits, C, E}, ScalarType::Float);
  with_type(in.q_BHND, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    for (int64_t first = 0; first < in.heads; first += wave) {
      const int64_t count = std::min(wave, in.heads - first);
      launch(
          "centroid_scores", centroid_scores<T>, tiles_of(shape.S), tiles_of(C), count, shape, first,
          data_of<float>(in.centroids), Rows<T>(in.k_BHSD), data_of<float>(scores));
      launch(
          "softmax_rows", softmax_rows, C, count, 1, shape, first, in.heads, dropout_of(in), data_of<float>(scores),
          out.softmax, out.mass, out.top);
      launch(
          "weigh_keys", weigh_keys<T>, most_splits * tiles_of(E), tiles_of(C), count, shape, first, most_splits,
          data_of<float>(scores), Rows<T>(in.v_BHSE), E, data_of<float>(parts));
      launch(
          "sum_parts", sum_parts, ceil_div(C * E, threads), count, 1, shape, first, most_splits, E, false,
          data_of<float>(parts), out.values);
    }
  });
}

CudaGradients cuda_member_gradients(
    const CudaHeads& in, const Tensor& grad, const Tensor* out, const Tensor& values, const Tensor* mass) {
  const CudaShape& shape = in.shape;
  const Launcher launch(in.q_BHND);
  const auto floats = [&](const std::vector<int64_t>& size) { return new_tensor(grad, size, ScalarType::Float); };
  const int64_t C = shape.C;
  CudaGradients to{
      floats({in.heads, C, shape.E}), floats({in.heads, C}), floats({in.heads, C}), floats({in.heads, C, shape.D})};
  with_type(grad, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(
        "sum_members", sum_members<T>, C, in.heads, tiles_of(shape.E), shape, Rows<T>(grad), shape.E, false,
        data_of<float>(to.sums));
    launch(
        "member_products", member_products<T>, C, in.heads, 1, shape, Rows<T>(grad), Rows<T>(out ? *out : grad),
        data_of<float>(to.sums), static_cast<const float*>(values.const_data_ptr()),
        mass ? static_cast<const float*>(mass->const_data_ptr()) : nullptr, data_of<float>(to.delta),
        data_of<float>(to.grad_mass));
  });
  return to;
}

void cuda_dense_backward(
    const CudaHeads& in, int64_t first, int64_t count, const Tensor& softmax, const int32_t* top,
    const CudaGradients& gradients, const Tensor& grad_keys, const Tensor& grad_values) {
  const CudaShape& shape = in.shape;
  const Launcher launch(in.q_BHND);
  const int64_t C = shape.C, D = shape.D, most_splits = most_splits_of(shape.S);
  const Tensor weights = new_tensor(in.q_BHND, {count, C, shape.S}, ScalarType::Float);
  const Tensor slopes = new_tensor(in.q_BHND, {count, C, shape.S}, ScalarType::Float);
  const Tensor parts = new_tensor(in.q_BHND, {count, most_splits, C, D}, ScalarType::Float);
  const float* delta = data_of<float>(gradients.delta);
  with_type(in.q_BHND, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(
        "dense_slopes", dense_slopes<T>, tiles_of(shape.S), tiles_of(C), count, shape, first, in.heads, dropout_of(in),
        data_of<float>(in.centroids), data_of<float>(gradients.sums), static_cast<const float*>(softmax.const_data_ptr()),
        delta, Rows<T>(in.k_BHSD), Rows<T>(in.v_BHSE), data_of<float>(weights), data_of<float>(slopes));
    if (shape.K > 0 || in.dropout > 0)
      launch(
          "mend_rows", mend_rows, C, count, 1, shape, first, in.heads, dropout_of(in), top, delta,
          data_of<float>(gradients.grad_mass), data_of<float>(weights), data_of<float>(slopes));
    launch(
        "key_gradients", key_gradients<typename Multiplier<T, true, true>::type>, tiles_of(shape.S),
        tiles_of(shape.E) + tiles_of(D), count, shape, first, data_of<float>(weights), data_of<float>(slopes),
        data_of<float>(gradients.sums), data_of<float>(in.centroids), data_of<float>(grad_values),
        data_of<float>(grad_keys));
    launch(
        "weigh_keys", weigh_keys<T>, most_splits * tiles_of(D), tiles_of(C), count, shape, first, most_splits,
        data_of<float>(slopes), Rows<T>(in.k_BHSD), D, data_of<float>(parts));
    launch(
        "sum_parts", sum_parts, ceil_div(C * D, threads), count, 1, shape, first, most_splits, D, true,
        data_of<float>(parts), data_of<float>(gradients.shares));
  });
}

int64_t cuda_dense_backward_floats(const CudaShape& shape) {
  return shape.C * (2 * shape.S + most_splits_of(shape.S) * shape.D) + shape.S * (shape.D + shape.E);
}

void cuda_finish_keys(
    const CudaHeads& in, int64_t first, int64_t count, int64_t size, const int32_t* top, const float* parts,
    const Tensor& sums, const Tensor& to) {
  const Launcher launch(in.q_BHND);
  with_type(to, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(
        "finish_keys", finish_keys<T>, tiles_of(in.shape.S), count, 1, in.shape, first, size, top, parts,
        data_of<float>(sums), data_of<T>(to));
  });
}

void cuda_take_cluster_rows(const CudaHeads& in, const float* from, int64_t size, const Tensor& to) {
  const Launcher launch(in.q_BHND);
  with_type(to, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(
        "take_cluster_rows", take_cluster_rows<T>, ceil_div(in.shape.N * size, threads), in.heads, 1, in.shape, from,
        size, data_of<T>(to));
  });
}

}  // namespace attention_ext
