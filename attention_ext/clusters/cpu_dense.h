// Attention of all centroids over all keys on the CPU, forward and backward, for all heads of a call.
#pragma once

#include <limits>

#include "cpu_heads.h"

namespace attention_ext {
namespace {

// Layout of what forward keeps for backward, per head: exponentials of the scores (a row of C values per key), the
// running maxima they are relative to (a row per chunk), the transposed centroids, and the exact part's weights in
// sorted order (a row of K values per query). Rows are padded. `kept_size` in kept.py must return the same size.
struct KeptSize {
  int64_t row_C, row_K, maxima, centroids, exact, head;
  KeptSize(int64_t N, int64_t S, int64_t D, int64_t C, int64_t K)
      : row_C((C + 15) / 16 * 16),
        row_K((K + 15) / 16 * 16),
        maxima(S * row_C),
        centroids(maxima + (S + 15) / 16 * row_C),  // chunks have at least 16 keys
        exact(centroids + D * row_C),
        head(exact + N * row_K) {}
};

// Softmax of every centroid over all keys: statistics, weighted values and, if K > 0, the top keys. All zero without
// valid keys. If the top keys stay apart, the sums are those of the other keys, relative to their highest score: none
// is a difference.
template <class T>
struct DenseResult {
  // [heads, 2, C]: maximum of the scores, 1 / Σ exp(score − maximum). Two numbers, because exp(score − log Σ) has
  // the rounding of the logarithm, which doubled the error of dV. If the top keys stay apart: Σ itself.
  T* softmax_C;
  T* values_CE;  // [heads, C, E]; apart: Σ exp(score − maximum) · v
  int64_t K;
  T* mass_C;        // [heads, C]: sum of the top keys' weights; not with `apart`
  int32_t* top_CK;  // [heads, C, K]: ascending positions, then −1
  T* kept;          // [heads, KeptSize::head], or null
  bool apart = false;

  // `scores_SC`: memory for the scores of a single head, if the top keys stay apart, or null. Those of the top keys
  // become `lowest`, see cpu/rows.h.
  void compute(const Heads<T>& in, HeadRange range, T* scores_SC = nullptr) const {
    const int64_t C = in.C, D = in.D, E = in.E, padded_C = in.padded_C;
    const int64_t first_part = range.first * in.blocks, end_part = range.end * in.blocks, parts = end_part - first_part;
    const auto buffer = [&](int64_t size) { return Buffer<T>(parts * size, first_part * size); };
    const Buffer<T> maximum = buffer(padded_C), sum = buffer(padded_C), values = buffer(C * in.padded_E);
    const Buffer<Ordered<T>> scores(parts * C * K, first_part * C * K);
    const Buffer<int32_t> top(parts * C * K, first_part * C * K), top_count(parts * C, first_part * C);
    const KeptSize size(in.N, in.S, D, C, K);
    in.find_centroids(range);
    if (kept)
      for (int64_t head = range.first; head < range.end; ++head)
        std::copy_n(in.centroids_DC + head * D * padded_C, D * padded_C, kept + head * size.head + size.centroids);
    const int64_t part_bytes = in.kernel.dense_scratch(C, E, K, apart);
    const auto run_part = apart ? in.kernel.dense_apart : in.kernel.dense;
    parallel_with_scratch(first_part, end_part, part_bytes, [&](int64_t part, char* scratch) {
      const int64_t head = part / in.blocks, block = part % in.blocks, b = head / in.H, h = head % in.H;
      const int64_t keys = in.keys_in_block(head, block);
      if (keys == 0) return;
      run_part(
          {.C = C,
           .D = D,
           .E = E,
           .K = K,
           .first = block * in.block_keys(head),
           .keys = keys,
           .centroids_DC = in.centroids_DC + head * D * padded_C,
           .k = in.k.head(b, h),
           .v = in.v.head(b, h),
           .stride_k = in.k.stride_n,
           .stride_v = in.v.stride_n,
           .maximum_C = maximum + part * padded_C,
           .sum_C = sum + part * padded_C,
           .values_CE = values + part * C * in.padded_E,
           .top_scores_CK = scores + part * C * K,
           .top_CK = top + part * C * K,
           .top_count_C = top_count + part * C,
           .dropout = in.dropout.probability,
           .rows_C = in.row_codes(head),
           .kept = kept ? kept + head * size.head : nullptr,
           .kept_maxima = kept ? kept + head * size.head + size.maxima : nullptr,
           .scores = scores_SC,
           .scratch = scratch});
    });
    // Merge the blocks. Scratch holds weights, scores and positions of all candidates for the top keys.
    const int64_t most = in.blocks * K + 16, bytes = most * static_cast<int64_t>(2 * sizeof(T) + sizeof(int32_t));
    parallel_with_scratch(range.first * C, range.end * C, bytes, [&](int64_t task, char* scratch) {
      const int64_t head = task / C, c = task % C, first = head * in.blocks;
      T* out = values_CE + task * E;
      std::fill_n(out, E, T(0));
      T &maximum_score = softmax_C[2 * head * C + c], &inverse_sum = softmax_C[(2 * head + 1) * C + c];
      maximum_score = inverse_sum = 0;
      if (mass_C) mass_C[task] = 0;
      std::fill_n(top_CK + task * K, K, -1);
      const int64_t used = in.blocks_used(head);
      if (used == 0) return;
      T highest = std::numeric_limits<T>::lowest(), total = 0;
      for (int64_t i = first; i < first + used; ++i) highest = std::max(highest, (maximum + i * in.padded_C)[c]);
      for (int64_t i = first; i < first + used; ++i)
        total += (sum + i * in.padded_C)[c] * std::exp((maximum + i * in.padded_C)[c] - highest);
      for (int64_t i = first; i < first + used; ++i) {
        const T factor = std::exp((maximum + i * in.padded_C)[c] - highest) / (apart ? 1 : total);
        const T* from = values + (i * C + c) * in.padded_E;
        for (int64_t e = 0; e < E; ++e) out[e] += factor * from[e];
      }
      maximum_score = highest;
      inverse_sum = apart ? total : 1 / total;
      if (K == 0) return;

      T* const weights = reinterpret_cast<T*>(scratch);
      Ordered<T>* const candidate_scores = reinterpret_cast<Ordered<T>*>(weights + most);
      int32_t* const candidates = reinterpret_cast<int32_t*>(candidate_scores + most);
      int64_t count = 0;
      for (int64_t i = first; i < first + used; ++i) {
        const int64_t at = (i * C + c) * K, found = (top_count + i * C)[c];
        std::copy_n(scores + at, found, candidate_scores + count);
        std::copy_n(top + at, found, candidates + count);
        count += found;
      }
      if (apart) {
        add_rejected(in, task, count, candidate_scores, candidates, weights, scores_SC);
        return;
      }
      count = in.kernel.select(count, K, candidate_scores, candidates);
      std::copy_n(candidates, count, top_CK + task * K);
      mass_C[task] = in.kernel.weigh_top(count, candidate_scores, maximum_score, inverse_sum, weights);
      // Subtracting the top keys' share leaves the output of the other keys.
      for (int64_t i = 0; i < count; ++i) {
        if (in.dropout.probability > 0)
          weights[i] *= keep_factor(
              in.rows_C[task], key_code(candidates[i]), drop_threshold(in.dropout.probability),
              static_cast<T>(1 / (1 - in.dropout.probability)));
        weights[i] = -weights[i];
      }
      in.kernel.sum_rows(count, E, candidates, in.v.head(head / in.H, head % in.H), in.v.stride_n, weights, out);
    });
  }

 private:
  // Choose the top keys of one cluster among those of its blocks, and add the others to its sums. `weights` has room
  // for all of them.
  void add_rejected(
      const Heads<T>& in, int64_t task, int64_t count, Ordered<T>* scores, int32_t* positions, T* weights,
      T* scores_SC) const {
    const int64_t head = task / in.C, c = task % in.C, E = in.E;
    int32_t* top = top_CK + task * K;
    const std::vector<Ordered<T>> all_scores(scores, scores + count);
    const std::vector<int32_t> all(positions, positions + count);
    const int64_t chosen = in.kernel.select(count, K, scores, positions);
    std::copy_n(positions, chosen, top);
    T &highest = softmax_C[2 * head * in.C + c], &total = softmax_C[(2 * head + 1) * in.C + c];
    T *out = values_CE + task * E, before = highest;
    int64_t rejected = 0;
    for (int64_t i = 0, next = 0; i < count; ++i) {
      if (next < chosen && top[next] == all[i]) {
        ++next;
        continue;
      }
      positions[rejected] = all[i];
      weights[rejected++] = score_of(all_scores[i]);
      if (scores_SC) scores_SC[all[i] * in.padded_C + c] = score_of(all_scores[i]);
      highest = std::max(highest, weights[rejected - 1]);
    }
    if (rejected == 0) return;
    const T factor = std::exp(before - highest);
    total *= factor;
    for (int64_t e = 0; e < E; ++e) out[e] *= factor;
    for (int64_t i = 0; i < rejected; ++i) {
      weights[i] = std::exp(weights[i] - highest);
      total += weights[i];
      if (in.dropout.probability > 0)
        weights[i] *= keep_factor(
            in.rows_C[task], key_code(positions[i]), drop_threshold(in.dropout.probability),
            static_cast<T>(1 / (1 - in.dropout.probability)));
    }
    in.kernel.sum_rows(rejected, E, positions, in.v.head(head / in.H, head % in.H), in.v.stride_n, weights, out);
  }
};

// Gradients through the same pass.
template <class T>
struct DenseGradients {
  Buffer<T> grads_CE;     // Ḡ, padded rows
  Buffer<T> centroid_CD;  // gradient of each member through its centroid, padded rows
  Buffer<T> delta_C;      // δ
  explicit DenseGradients(const Heads<T>& in)
      : grads_CE(in.heads * in.C * in.padded_E),
        centroid_CD(in.heads * in.C * in.padded_D),
        delta_C(in.heads * in.padded_C) {}

  // Compute the centroids, and their scores of all keys, scores_SC, a head's after the other from range.first on;
  // `lowest_score` (cpu/rows.h) for top keys.
  void find_scores(
      const Heads<T>& in, HeadRange range, int64_t K, const int32_t* top_CK, const int32_t* top_count_C,
      T* scores_SC) const {
    in.find_centroids(range);
    parallel(range.first * in.blocks, range.end * in.blocks, [&](int64_t part) {
      const int64_t head = part / in.blocks, block = part % in.blocks, keys = in.keys_in_block(head, block);
      if (keys == 0) return;
      in.kernel.dense_scores(
          {.C = in.C,
           .D = in.D,
           .K = K,
           .first = block * in.block_keys(head),
           .keys = keys,
           .centroids_DC = in.centroids_DC + head * in.D * in.padded_C,
           .scores_SC = scores_SC + (head - range.first) * in.S * in.padded_C,
           .top_CK = top_CK + head * in.C * K,
           .top_count_C = top_count_C + head * in.C,
           .k = in.k.head(head / in.H, head % in.H),
           .stride_k = in.k.stride_n});
    });
  }

  // Compute centroid_CD, and dK and dV of all keys (zero at padding), from grads_CE and delta_C; with K > 0 also from
  // grad_mass_C and the top keys. Without grad_mass_C the top keys stay apart: the weights are
  // exp(score − maximum) of the scores that find_scores has written, slopes_SC are added to the scores' gradients and
  // the results to dK and dV, and centroid_CD is not yet divided among the members.
  void pass(
      const Heads<T>& in, HeadRange range, int64_t K, const T* softmax_C, const T* grad_mass_C, const int32_t* top_CK,
      const int32_t* top_count_C, const T* kept, const HeadOutput<T>& grad_k, const HeadOutput<T>& grad_v,
      T* scores_SC = nullptr, const T* slopes_SC = nullptr) const {
    const int64_t C = in.C, D = in.D, E = in.E, padded_C = in.padded_C;
    const int64_t first_part = range.first * in.blocks, end_part = range.end * in.blocks, parts = end_part - first_part;
    const auto buffer = [&](int64_t size) { return Buffer<T>(range.count() * size, range.first * size); };
    const Buffer<T> centroids_CD = buffer(C * in.padded_D), grads_EC = buffer(E * padded_C);
    const Buffer<T> maximum = buffer(padded_C), inverse_sum = buffer(padded_C);
    const Buffer<T> partial(parts * C * in.padded_D, first_part * C * in.padded_D);
    const KeptSize size(in.N, in.S, D, C, K);
    const bool apart = K > 0 && !grad_mass_C;
    const auto run_part = apart ? in.kernel.dense_backward_apart : in.kernel.dense_backward;
    if (!kept && !apart) in.find_centroids(range);
    parallel(range.first, range.end, [&](int64_t head) {
      if (kept)
        std::copy_n(kept + head * size.head + size.centroids, D * padded_C, in.centroids_DC + head * D * padded_C);
      for (int64_t c = 0; c < padded_C; ++c) {
        (maximum + head * padded_C)[c] = c < C ? softmax_C[2 * head * C + c] : 0;
        (inverse_sum + head * padded_C)[c] = c >= C ? 0 : apart ? 1 : softmax_C[(2 * head + 1) * C + c];
        if (c >= C) (delta_C + head * padded_C)[c] = 0;
        for (int64_t e = 0; e < E; ++e)
          (grads_EC + (head * E + e) * padded_C)[c] = c < C ? (grads_CE + (head * C + c) * in.padded_E)[e] : 0;
      }
      for (int64_t c = 0; c < C; ++c)
        for (int64_t d = 0; d < in.padded_D; ++d)
          (centroids_CD + (head * C + c) * in.padded_D)[d] =
              d < D ? (in.centroids_DC + (head * D + d) * padded_C)[c] : 0;
    });
    const int64_t bytes = in.kernel.dense_backward_scratch(C, D, E);
    parallel_with_scratch(first_part, end_part, bytes, [&](int64_t part, char* scratch) {
      const int64_t head = part / in.blocks, block = part % in.blocks, b = head / in.H, h = head % in.H;
      const int64_t first = block * in.block_keys(head), keys = in.keys_in_block(head, block);
      if (block == 0) {
        std::fill_n(grad_k.head(head) + in.keys(head) * D, (in.S - in.keys(head)) * D, T(0));
        std::fill_n(grad_v.head(head) + in.keys(head) * E, (in.S - in.keys(head)) * E, T(0));
      }
      if (keys == 0) return;
      run_part(
          {.C = C,
           .D = D,
           .E = E,
           .K = K,
           .first = first,
           .keys = keys,
           .centroids_DC = in.centroids_DC + head * D * padded_C,
           .centroids_CD = centroids_CD + head * C * in.padded_D,
           .grads_EC = grads_EC + head * E * padded_C,
           .grads_CE = grads_CE + head * C * in.padded_E,
           .maximum_C = maximum + head * padded_C,
           .inverse_sum_C = inverse_sum + head * padded_C,
           .delta_C = delta_C + head * padded_C,
           .grad_mass_C = apart ? nullptr : grad_mass_C + head * C,
           .scores_SC = apart ? scores_SC + (head - range.first) * in.S * padded_C : nullptr,
           .slopes_SC = apart ? slopes_SC + (head - range.first) * in.S * padded_C : nullptr,
           .top_CK = top_CK + head * C * K,
           .top_count_C = top_count_C + head * C,
           .k = in.k.head(b, h),
           .v = in.v.head(b, h),
           .stride_k = in.k.stride_n,
           .stride_v = in.v.stride_n,
           .grad_k_SD = grad_k.head(head),
           .grad_v_SE = grad_v.head(head),
           .grad_centroids_CD = partial + part * C * in.padded_D,
           .scale = in.scale,
           .dropout = in.dropout.probability,
           .rows_C = in.row_codes(head),
           .kept = kept ? kept + head * size.head : nullptr,
           .kept_maxima = kept ? kept + head * size.head + size.maxima : nullptr,
           .scratch = scratch});
    });
    parallel(range.first * C, range.end * C, [&](int64_t task) {
      const int64_t head = task / C, c = task % C;
      T* sum = centroid_CD + task * in.padded_D;
      std::fill_n(sum, in.padded_D, T(0));
      const int64_t used = in.blocks_used(head);
      for (int64_t i = head * in.blocks; i < head * in.blocks + used; ++i)
        for (int64_t d = 0; d < D; ++d) sum[d] += (partial + (i * C + c) * in.padded_D)[d];
      if (apart) return;
      const T share = 1 / static_cast<T>(std::max<int64_t>(in.members(head, c), 1));
      for (int64_t d = 0; d < D; ++d) sum[d] *= share;
    });
  }
};

// Memory for the kept weights; empty if none are to be kept. Keeping them saves a product and the exponentials, 15 to
// 20 % of the backward pass, for C numbers per key; the centroids save 3 %.
template <class T>
Tensor new_kept(const Heads<T>& in, const Tensor& like, bool wanted, int64_t K) {
  return new_tensor(like, {in.B, in.H, wanted ? KeptSize(in.N, in.S, in.D, in.C, K).head : 0}, in.type);
}

// Kept weights, or null if there are none.
template <class T>
const T* kept_data(const Heads<T>& in, const Tensor& like, const Tensor& kept, int64_t K) {
  const bool none = kept.dim() == 3 && kept.size(2) == 0;
  const int64_t size = none ? 0 : KeptSize(in.N, in.S, in.D, in.C, K).head;
  check_saved(kept, {in.B, in.H, size}, in.type, like, "kept");
  return none ? nullptr : static_cast<const T*>(kept.const_data_ptr());
}

}  // namespace
}  // namespace attention_ext
