// The near field of near-field attention on CUDA, and sums over the far field.
//
// Keys and queries lie in tiles of 64. The tiles within `reach` of a query's own are near it: each pair has an entry in
// the band [heads, N, band]. All tiles before and after them are far; what a cluster gives to them is the sum of the
// tiles' sums from either end. No sum is a difference, so that nothing cancels. See NOTES.md.
#pragma once

#include "../clusters/cuda_exact.h"
#include "../clusters/cuda_forward.h"

namespace attention_ext {
namespace {

constexpr float lowest_score = -3.402823466e38f;  // of top keys, which are no far keys, and where there is no key

struct NearShape {
  int64_t window, tiles;  // tiles: most in a sequence
  int32_t reach, band;    // band: keys of the 2 · reach + 1 tiles near a query

  NearShape(const CudaShape& shape, int64_t window_)
      : window(std::min(window_, shape.N)),
        tiles(tiles_of(shape.N)),
        reach(static_cast<int32_t>(std::max<int64_t>(0, std::min(tiles_of(window), tiles - 1)))),
        band((2 * reach + 1) * tile) {}

  // Whether the query has a score of its own on the key, unless that is a top key.
  __device__ bool sees(int64_t query, int64_t key) const { return key >= query - window && key <= query + window; }
  // Key of the first entry in the band of a tile of queries; negative at the start of a sequence.
  __device__ int64_t first_key(int64_t number) const { return (number - reach) * tile; }
};

// Sums of all clusters relative to `highest`, for each tile or for all tiles far from it: of numbers [heads, tiles, C]
// and of rows [heads, tiles, C, size].
struct TileSums {
  float *highest, *sums, *rows;
};

// Choose the top keys. Grid (C, heads).
__global__ void __launch_bounds__(threads)
    choose_top_keys(CudaShape shape, int64_t first_head, const float* scores, int32_t* top) {
  __shared__ TopMemory memory;
  const int64_t local = blockIdx.y, head = first_head + local, c = blockIdx.x;
  const int64_t n = length_of(shape.key_length_B, head, shape.H, shape.S);
  const float* row = scores + (local * shape.C + c) * shape.S;
  const float mine = highest_of_share(memory, row, n);
  choose_top(memory, row, n, shape.K, mine, top + (head * shape.C + c) * shape.K);
}

// Take the top keys out of the scores. Grid (blocks of top keys, heads).
__global__ void __launch_bounds__(threads)
    take_out_top_keys(CudaShape shape, int64_t first_head, const int32_t* top, float* scores) {
  const int64_t local = blockIdx.y, head = first_head + local;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  const int64_t count = static_cast<int64_t>(shape.C) * shape.K;
  if (i >= count || top[head * count + i] < 0) return;
  scores[(local * shape.C + i / shape.K) * shape.S + top[head * count + i]] = lowest_score;
}

// The sums of each tile of keys: of exp(score − highest), and of values times that, after dropout.
// Grid (tiles of keys · blocks of columns, tiles of clusters, heads).
template <class T>
__global__ void __launch_bounds__(threads) sum_key_tiles(
    CudaShape shape, NearShape near, int64_t first_head, int64_t heads, Dropout dropout, const float* scores, Rows<T> v,
    TileSums to) {
  __shared__ TileMemory memory;
  __shared__ float part[threads], top_of[tile];
  const int64_t local = blockIdx.z, head = first_head + local,
                n = length_of(shape.key_length_B, head, shape.H, shape.S);
  const int64_t number = blockIdx.x % near.tiles, s0 = number * tile, c0 = blockIdx.y * tile;
  const int column0 = static_cast<int>(blockIdx.x / near.tiles) * tile;
  if (s0 >= n) return;
  const int64_t keys = n - s0 < tile ? n - s0 : tile;
  const auto rows = matrix(scores + local * shape.C * shape.S + s0, shape.S, shape.C, keys);
  const int mine = threadIdx.x / 4, lane = threadIdx.x % 4;  // four threads per cluster
  const int64_t at = (local * near.tiles + number) * shape.C + c0;
  const bool used = c0 + mine < shape.C;
  const float* row = rows.data + (c0 + mine) * rows.stride;
  float top = lowest_score, sum = 0;
  for (int64_t s = lane; used && s < keys; s += 4) top = fmaxf(top, row[s]);
  part[threadIdx.x] = top;
  __syncthreads();
  for (int i = 0; i < 4; ++i) top = fmaxf(top, part[4 * mine + i]);
  top_of[mine] = top;
  for (int64_t s = lane; used && s < keys; s += 4) sum += row[s] == lowest_score ? 0.0f : expf(row[s] - top);
  __syncthreads();
  part[threadIdx.x] = sum;
  __syncthreads();
  if (used && lane == 0 && column0 == 0) {
    to.highest[at + mine] = top;
    to.sums[at + mine] = part[4 * mine] + part[4 * mine + 1] + part[4 * mine + 2] + part[4 * mine + 3];
  }
  const auto values = matrix(v.head(head, shape.H) + s0 * v.stride_n, v.stride_n, keys, shape.E);
  const int64_t code = heads * shape.N + head * shape.C;  // rows of clusters come after those of queries
  Tile<typename Multiplier<T, true, false>::type> product;
  product.multiply(
      memory, 0, keys,
      [&](int64_t s) {
        load_across(memory.a, rows, c0, s, [&](int64_t c, int64_t key, float score) {
          const float weight = score == lowest_score ? 0.0f : expf(score - top_of[c - c0]);
          return weight * keep_factor(dropout, code + c, s0 + key);
        });
      },
      [&](int64_t s) { load_along(memory.b, values, column0, s); });
  product.each([&](int c, int column, float value) {
    if (c0 + c < shape.C && column0 + column < shape.E) to.rows[(at + c) * shape.E + column0 + column] = value;
  });
}

// The highest score of all tiles far from each, and, with `total`, maximum and sum of all tiles, [heads, 2, C]. Each
// thread passes over a share of the tiles. Grid (C, heads).
__global__ void __launch_bounds__(threads)
    find_far_tops(CudaShape shape, NearShape near, int64_t first_head, TileSums from, TileSums to, float* total) {
  __shared__ float highest_of[threads], sum_of[threads];
  const int64_t local = blockIdx.y, head = first_head + local, c = blockIdx.x, C = shape.C, reach = near.reach,
                n = length_of(shape.key_length_B, head, shape.H, shape.S);
  const int thread = threadIdx.x;
  const int64_t used = ceil_div(n, tile), share = ceil_div(used, threads);
  const int64_t begin = thread * share < used ? thread * share : used;
  const int64_t end = begin + share < used ? begin + share : used;
  const float* highest = from.highest + local * near.tiles * C + c;
  float* far = to.highest + local * near.tiles * C + c;
  float mine = lowest_score, before = lowest_score, after = lowest_score;
  for (int64_t t = begin; t < end; ++t) mine = fmaxf(mine, highest[t * C]);
  highest_of[thread] = mine;
  __syncthreads();
  for (int i = 0; i < thread; ++i) before = fmaxf(before, highest_of[i]);
  for (int i = thread + 1; i < threads; ++i) after = fmaxf(after, highest_of[i]);
  const float top = fmaxf(fmaxf(before, mine), after);
  for (int64_t t = thread; t <= reach && t < used; t += threads) far[t * C] = lowest_score;
  for (int64_t t = begin; t < end; ++t) {
    before = fmaxf(before, highest[t * C]);
    if (t + reach + 1 < used) far[(t + reach + 1) * C] = before;
  }
  __syncthreads();
  for (int64_t t = end - 1; t >= begin; --t) {
    after = fmaxf(after, highest[t * C]);
    if (t > reach) far[(t - reach - 1) * C] = fmaxf(far[(t - reach - 1) * C], after);
  }
  if (total == nullptr) return;
  float sum = 0;
  for (int64_t t = begin; t < end; ++t) sum += from.sums[(local * near.tiles + t) * C + c] * expf(highest[t * C] - top);
  sum = block_sum(sum, sum_of);
  if (thread != 0) return;
  total[2 * head * C + c] = used > 0 ? top : 0.0f;
  total[(2 * head + 1) * C + c] = sum;
}

// A sum relative to the highest score in it.
struct ScaledSum {
  float highest = lowest_score, sum = 0;
  __device__ void add(float other_highest, float other_sum) {
    if (other_highest > highest) {
      sum *= expf(highest - other_highest);
      highest = other_highest;
    }
    sum += other_sum * expf(other_highest - highest);
  }
  __device__ float relative_to(float top) const { return sum * expf(highest - top); }
};

constexpr int far_columns = 8, far_shares = threads / far_columns;

// The sums over all tiles far from each, relative to the highest score that find_far_tops has written. The columns are
// those of all clusters, the last of each cluster that of `sums`; a thread passes over a share of the tiles for one of
// them. Grid (blocks of columns, heads).
__global__ void __launch_bounds__(threads)
    sum_far_tiles(CudaShape shape, NearShape near, int64_t first_head, int size, TileSums from, TileSums to) {
  __shared__ float highest_of[far_shares][far_columns], sum_of[far_shares][far_columns];
  const int64_t local = blockIdx.y, head = first_head + local, C = shape.C, reach = near.reach,
                n = length_of(shape.key_length_B, head, shape.H, shape.S);
  const int mine = threadIdx.x / far_columns, lane = threadIdx.x % far_columns;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * far_columns + lane, c = i / (size + 1), column = i % (size + 1);
  const int64_t used = ceil_div(n, tile), share = ceil_div(used, far_shares), first = local * near.tiles * C + c;
  const int64_t begin = !(c < C) || mine * share > used ? used : mine * share;
  const int64_t end = begin + share < used ? begin + share : used;
  const bool number = column == size;
  const int64_t at = number ? first : first * size + column, stride = number ? C : C * size;
  const float *highest = from.highest + first, *parts = (number ? from.sums : from.rows) + at;
  const float* top = to.highest + first;
  float* sums = (number ? to.sums : to.rows) + at;
  ScaledSum own, before, after;
  for (int64_t t = begin; t < end; ++t) own.add(highest[t * C], parts[t * stride]);
  highest_of[mine][lane] = own.highest, sum_of[mine][lane] = own.sum;
  __syncthreads();
  for (int j = 0; j < mine; ++j) before.add(highest_of[j][lane], sum_of[j][lane]);
  for (int j = far_shares - 1; j > mine; --j) after.add(highest_of[j][lane], sum_of[j][lane]);
  if (c < C)
    for (int64_t t = mine; t <= reach && t < used; t += far_shares) sums[t * stride] = 0.0f;
  for (int64_t t = begin; t < end; ++t) {
    before.add(highest[t * C], parts[t * stride]);
    const int64_t next = t + reach + 1;
    if (next < used) sums[next * stride] = before.relative_to(top[next * C]);
  }
  __syncthreads();
  for (int64_t t = end - 1; t >= begin; --t) {
    after.add(highest[t * C], parts[t * stride]);
    const int64_t next = t - reach - 1;
    if (next >= 0) sums[next * stride] += after.relative_to(top[next * C]);
  }
}

// What the backward pass knows of each query's softmax.
struct QuerySoftmax {
  const float *softmax_N, *delta_N;  // [heads, 2, N]: maximum and 1 / Z; [heads, N]: δ
  int64_t N;
  __device__ float weight(int64_t head, int64_t query, float score) const {
    return expf(score - softmax_N[2 * head * N + query]) * softmax_N[(2 * head + 1) * N + query];
  }
};

// Entries of the band: each query's own scores within its window, its cluster's elsewhere; `lowest_score` for its
// cluster's top keys and after the last key. Backward: weights after dropout, and gradients of the scores. `clusters`
// are the clusters' scores without their top keys. Grid (tiles of queries, tiles of the band, heads).
template <class T, bool Backward>
__global__ void __launch_bounds__(threads) band_products(
    CudaShape shape, NearShape near, int64_t first_head, int64_t heads, Dropout dropout, const float* clusters,
    Rows<T> q, Rows<T> k, Rows<T> v, Rows<T> grad, QuerySoftmax query_softmax, float* band, float* slopes) {
  __shared__ TileMemory memory;
  __shared__ int32_t group[tile];
  const int64_t local = blockIdx.z, head = first_head + local,
                n = length_of(shape.key_length_B, head, shape.H, shape.S);
  const int64_t q0 = static_cast<int64_t>(blockIdx.x) * tile,
                s0 = near.first_key(blockIdx.x) + static_cast<int64_t>(blockIdx.y) * tile;
  if (q0 >= n || s0 < 0 || s0 >= n) return;
  if (threadIdx.x < tile) group[threadIdx.x] = group_of(shape, head, q0 + threadIdx.x);
  Tile<typename Multiplier<T, false, false>::type> scores, grad_weights;
  {
    const auto queries = matrix(q.head(head, shape.H), q.stride_n, n, shape.D);
    const auto keys = matrix(k.head(head, shape.H), k.stride_n, n, shape.D);
    scores.multiply(
        memory, 0, shape.D, [&](int64_t d) { load_across(memory.a, queries, q0, d); },
        [&](int64_t d) { load_across(memory.b, keys, s0, d); });
  }
  if constexpr (Backward) {
    const auto grads = matrix(grad.head(head, shape.H), grad.stride_n, n, shape.E);
    const auto values = matrix(v.head(head, shape.H), v.stride_n, n, shape.E);
    grad_weights.multiply(
        memory, 0, shape.E, [&](int64_t e) { load_across(memory.a, grads, q0, e); },
        [&](int64_t e) { load_across(memory.b, values, s0, e); });
  }
  int i = 0;
  scores.each([&](int row, int column, float product) {
    const float grad_weight = grad_weights.sum[i++];
    const int64_t query = q0 + row, key = s0 + column;
    if (query >= n) return;
    const int64_t c = group[row], at = (local * shape.N + query) * near.band + blockIdx.y * tile + column;
    const float shared = c < shape.C && key < n ? clusters[(local * shape.C + c) * shape.S + key] : lowest_score;
    const bool own = near.sees(query, key);
    const float score = shared == lowest_score ? lowest_score : own ? product * shape.scale : shared;
    if constexpr (Backward) {
      const float weight = score == lowest_score ? 0.0f : query_softmax.weight(head, query, score);
      const int64_t code = own ? head * shape.N + query : heads * shape.N + head * shape.C + c;
      const float keep = keep_factor(dropout, code, key);
      band[at] = weight * keep;
      slopes[at] = weight * (grad_weight * keep - query_softmax.delta_N[head * shape.N + query]);
    } else {
      band[at] = score;
    }
  });
}

// Rows of a · b over the keys near each query, plus what all members of its cluster have in common, [heads, N, size].
// Forward: a are the weights and `base` the sums of far values. Backward: a are the gradients of the queries' own
// scores, and `base` [all heads, C, size] the members' shares of their centroids' gradients. Grid (tiles of queries,
// blocks of columns, heads).
template <class T, bool Backward>
__global__ void __launch_bounds__(threads) band_rows(
    CudaShape shape, NearShape near, int64_t first_head, const float* band, Rows<T> b, int size, const float* factors,
    const float* base, float* to) {
  __shared__ TileMemory memory;
  const int64_t local = blockIdx.z, head = first_head + local, number = blockIdx.x, q0 = number * tile,
                n = length_of(shape.key_length_B, head, shape.H, shape.S);
  const int column0 = blockIdx.y * tile;
  if (q0 >= n) return;
  const int64_t key0 = near.first_key(number), end = key0 + near.band < n ? key0 + near.band : n;
  const auto entries = matrix(band + local * shape.N * near.band, near.band, n, near.band);
  const auto rows = matrix(b.head(head, shape.H), b.stride_n, n, size);
  Tile<typename Multiplier<T, true, false>::type> product;
  product.multiply(
      memory, key0 < 0 ? -key0 : 0, end - key0,
      [&](int64_t j) {
        load_across(memory.a, entries, q0, j, [&](int64_t query, int64_t column, float x) {
          if (key0 + column >= n) return 0.0f;
          if (!Backward) return x;
          return near.sees(query, key0 + column) ? x * shape.scale : 0.0f;
        });
      },
      [&](int64_t j) { load_along(memory.b, rows, column0, key0 + j); });
  product.each([&](int row, int column, float value) {
    const int64_t query = q0 + row;
    if (query >= n || column0 + column >= size) return;
    const int64_t c = group_of(shape, head, query);
    if (c < shape.C) {
      const int64_t from = Backward ? head * shape.C + c : (local * near.tiles + number) * shape.C + c;
      const float common = base[from * size + column0 + column];
      value += Backward ? common : factors[local * shape.N + query] * common;
    }
    to[(local * shape.N + query) * size + column0 + column] = value;
  });
}

}  // namespace
}  // namespace attention_ext
