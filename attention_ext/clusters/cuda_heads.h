// Clustered and improved clustered attention on CUDA: checked inputs sorted by cluster, centroids, and the attention of
// centroids over all keys.
//
// `head` is b · H + h; `local` counts from the first head of a wave, the heads whose C × S weights are in memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "../cuda/launch.h"

namespace attention_ext {

// Sizes and index tensors of one call, as kernels take them.
struct CudaShape {
  int64_t H, N, S;
  int32_t C, D, E, K;  // K = 0: clustered attention
  float scale;
  const int64_t *query_length_B, *key_length_B;
  const int32_t* groups;       // [heads, N]
  const int32_t* order;        // [heads, N]: queries sorted by (cluster, position); padding and groups out of range
                               // are cluster C
  const int32_t* starts;       // [heads, C + 2]: first query of each cluster in this order
  const int32_t* tile_starts;  // [heads, C + 2]: first tile of 64 queries of each cluster
};

// Inputs of one call, on the host.
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
      const Tensor& key_lengths, int64_t clusters, int64_t topk, double dropout, const std::optional<Tensor>& seed);
};

// Softmax of every centroid over all keys. With K > 0, `values` excludes the top keys.
struct CudaDense {
  float* softmax;  // [heads, 2, C]: maximum of the scores, 1 / Σ exp(score − maximum)
  float* values;   // [heads, C, E]
  float* mass;     // [heads, C], with K > 0: sum of the top keys' weights
  int32_t* top;    // [heads, C, K]: ascending positions, then −1
};

// Per-cluster gradients of the backward pass.
struct CudaGradients {
  Tensor sums;       // [heads, C, E]: Ḡ
  Tensor delta;      // [heads, C]: δ
  Tensor grad_mass;  // [heads, C]: derivative with respect to the mass
  Tensor shares;     // [heads, C, D]: each member's gradient through its centroid
};

void cuda_dense_forward(const CudaHeads& in, const CudaDense& out);

// Sums over members for the backward pass. `out` and `mass` are null for clustered attention, where δ = Ḡ · values.
CudaGradients cuda_member_gradients(
    const CudaHeads& in, const Tensor& grad, const Tensor* out, const Tensor& values, const Tensor* mass);

// dK and dV of the dense part in float32 for `count` heads from `first`, [count, S, D] and [count, S, E], and `shares`.
void cuda_dense_backward(
    const CudaHeads& in, int64_t first, int64_t count, const Tensor& softmax, const int32_t* top,
    const CudaGradients& gradients, const Tensor& grad_keys, const Tensor& grad_values);

// Working memory of cuda_dense_backward per head, in floats.
int64_t cuda_dense_backward_floats(const CudaShape& shape);

// dK or dV of `count` heads from `first`: add the top keys' gradients, `parts` [count, C, splits, K, size] with the
// splits of `member_splits`, to `sums` and convert the result to `to`'s type.
void cuda_finish_keys(
    const CudaHeads& in, int64_t first, int64_t count, int64_t size, const int32_t* top, const float* parts,
    const Tensor& sums, const Tensor& to);

// to[i] = from[cluster of i], converted from float32 [heads, C, size] to `to`'s type; zero at padding.
void cuda_take_cluster_rows(const CudaHeads& in, const float* from, int64_t size, const Tensor& to);

#ifndef ATTENTION_EXT_WAVE_FLOATS
#define ATTENTION_EXT_WAVE_FLOATS (256ll << 20)
#endif

// Heads in a wave: as many as need at most 1 GiB together, but at least one: few heads leave most of a GPU idle. Their
// C × S weights are stored: at C = 100 the products are 1 to 2 % of those of full attention, so that fusing them would
// save little, and the search for top keys needs the scores anyway.
inline int64_t heads_at_a_time(const CudaHeads& in, int64_t floats_per_head) {
  const int64_t heads = ATTENTION_EXT_WAVE_FLOATS / std::max<int64_t>(1, floats_per_head);
  return std::max<int64_t>(1, std::min<int64_t>(in.heads, heads));
}

namespace {

inline Dropout dropout_of(const CudaHeads& in) {
  return {
      .seed = in.seed,
      .threshold = static_cast<uint32_t>(in.dropout * 4294967296.0),
      .factor = static_cast<float>(1 / (1 - in.dropout))};
}

inline int64_t tiles_of(int64_t size) { return ceil_div(size, 64); }

// Most splits of a sequence of at most S keys.
inline int64_t most_splits_of(int64_t S) { return std::max<int64_t>(1, std::min<int64_t>(128, ceil_div(S, 128))); }

}  // namespace
}  // namespace attention_ext
