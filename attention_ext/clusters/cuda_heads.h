// What forward and backward of both attentions share on CUDA: checked inputs, clusters in sorted order, centroids.
//
// `head` counts b · H + h among all, `local` the heads whose C × S weights are in memory at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "../cuda/launch.h"

namespace attention_ext {

// One call's sizes and index tensors, as kernels take them.
struct CudaShape {
  int64_t H, N, S;
  int32_t C, D, E, K;  // K = 0: clustered attention
  float scale;
  const int64_t *query_length_B, *key_length_B;
  const int32_t* groups;  // [heads, N]
  // Queries of a head sorted by cluster, in the order of their positions; padding and groups out of range come
  // last, as cluster C. Clusters' first queries in this order, and first tiles of 64 queries.
  const int32_t *order, *starts, *tile_starts;  // [heads, N], [heads, C + 2] ×2
};

// One call's inputs on the host.
struct CudaHeads {
  Tensor q_BHND, k_BHSD, v_BHSE, groups_BHN, query_lengths_B, key_lengths_B;
  Tensor order, starts, tile_starts;
  Tensor centroids;  // [heads, C, D] float32: mean queries over √D
  int64_t B, heads, query_tiles;
  CudaShape shape;
  const int64_t* seed;
  std::optional<Tensor> seed_tensor;
  double dropout;

  CudaHeads(
      const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& groups, const Tensor& query_lengths,
      const Tensor& key_lengths, int64_t clusters, int64_t topk, double dropout,
      const std::optional<Tensor>& seed);
};

// Softmax of every centroid over all keys. Where K > 0 the top keys' weights are left out of the values.
struct CudaDense {
  float* softmax;  // [heads, 2, C]: maximum of the scores, 1 / Σ exp(score − maximum)
  float* values;   // [heads, C, E]
  float* mass;     // [heads, C], where K > 0
  int32_t* top;    // [heads, C, K]: rising positions, then −1
};

// Backward: sums over members, and what a wave of heads shares with the exact part.
struct CudaGradients {
  Tensor sums, delta, grad_mass;  // [heads, C, E], [heads, C] ×2: Ḡ, δ, derivative by the mass
  Tensor shares;                  // [heads, C, D]: what each member gets through its centroid
};

void cuda_dense_forward(const CudaHeads& in, const CudaDense& out);

// Sums over members for the backward pass; `out` where its product with the gradient is not Ḡ · values.
CudaGradients cuda_member_gradients(
    const CudaHeads& in, const Tensor& grad, const Tensor* out, const Tensor& values, const Tensor* mass);

// dK and dV of the dense part in float32 for `count` heads from `first`, [count, S, D] and [count, S, E], and shares.
void cuda_dense_backward(
    const CudaHeads& in, int64_t first, int64_t count, const Tensor& softmax, const int32_t* top,
    const CudaGradients& gradients, const Tensor& grad_keys, const Tensor& grad_values);

int64_t cuda_dense_backward_floats(const CudaShape& shape);  // of memory for a head

// dK or dV of `count` heads from `first`: `sums` and the parts of clusters' top keys, [count, C, K, size], as rows of
// `to`'s type.
void cuda_finish_keys(
    const CudaHeads& in, int64_t first, int64_t count, int64_t size, const int32_t* top, const float* parts,
    const Tensor& sums, const Tensor& to);

// to[i] = from[cluster of i], [heads, C, size] float32 to rows of `to`'s type; zero at padding.
void cuda_take_cluster_rows(const CudaHeads& in, const float* from, int64_t size, const Tensor& to);

#ifndef ATTENTION_EXT_WAVE_FLOATS
#define ATTENTION_EXT_WAVE_FLOATS (32ll << 20)
#endif

// Heads that are worked on together: what they need at a time stays below 128 MiB, or it is one.
inline int64_t heads_at_a_time(const CudaHeads& in, int64_t floats_per_head) {
  const int64_t heads = ATTENTION_EXT_WAVE_FLOATS / std::max<int64_t>(1, floats_per_head);
  return std::max<int64_t>(1, std::min<int64_t>(in.heads, heads));
}

namespace {

inline Dropout dropout_of(const CudaHeads& in) {
  return {in.seed, static_cast<uint32_t>(in.dropout * 4294967296.0), static_cast<float>(1 / (1 - in.dropout))};
}

inline int64_t tiles_of(int64_t size) { return ceil_div(size, 64); }

}  // namespace
}  // namespace attention_ext
