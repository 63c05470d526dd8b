// What forward and backward of both attentions share on the CPU: checked inputs, clusters in sorted order,
// centroids, and the pass of all centroids over all keys.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "../cpu/inputs.h"

namespace attention_ext {
namespace {

inline void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& groups) {
  check_vectors(q, k, v);
  require_shape(groups, {q.size(0), q.size(1), q.size(2)}, "groups");
}

// What forward keeps for backward: of each head the exponentials of all keys' scores (rows of C values, padded), the
// maxima they are relative to (a row for each chunk), the transposed centroids, and the exact part's weights in sorted
// order (rows of K values, padded). Nobody but the kernels reads it; `kept_size` in native.py must say the same.
struct KeptSize {
  int64_t row_C, row_K, maxima, centroids, exact, head;
  KeptSize(int64_t N, int64_t S, int64_t D, int64_t C, int64_t K)
      : row_C((C + 15) / 16 * 16),
        row_K((K + 15) / 16 * 16),
        maxima(S * row_C),
        centroids(maxima + (S + 15) / 16 * row_C),  // no chunk is shorter
        exact(centroids + D * row_C),
        head(exact + N * row_K) {}
};

// Some of a call's heads.
struct HeadRange {
  int64_t first, end;
  int64_t count() const { return end - first; }
};

// One call's inputs; `head` counts b · H + h.
template <class T>
struct Heads {
  static constexpr ScalarType type = sizeof(T) == 8 ? ScalarType::Double : ScalarType::Float;

  const Kernels<T>& kernel = kernels<T>();
  Tensor q_BHND, k_BHSD, v_BHSE, groups_BHN;
  int64_t B, H, N, S, D, E, C, heads;
  int64_t padded_C, padded_D, padded_E;
  T scale;
  View<T> q, k, v;
  std::vector<int64_t> query_length_B, key_length_B;
  int64_t blocks;  // of keys, at most, in a head
  Dropout dropout;
  std::vector<uint32_t> rows_C;  // [heads, C]: row codes of the clusters' weights
  // Queries of a head sorted by cluster, in the order of their positions; where each cluster starts.
  Buffer<int32_t> order, starts;
  Buffer<T> centroids_DC;  // mean queries over √D, transposed

  Heads(
      const Tensor& q_, const Tensor& k_, const Tensor& v_, const Tensor& groups_, const Tensor& query_lengths,
      const Tensor& key_lengths, int64_t clusters, double dropout_probability,
      const std::optional<Tensor>& seed)
      : q_BHND(with_contiguous_rows(as_type(q_, type))),
        k_BHSD(with_contiguous_rows(as_type(k_, type))),
        v_BHSE(with_contiguous_rows(as_type(v_, type))),
        groups_BHN(contiguous_as(groups_, ScalarType::Int)),
        B(q_.size(0)),
        H(q_.size(1)),
        N(q_.size(2)),
        S(k_.size(2)),
        D(q_.size(3)),
        E(v_.size(3)),
        C(std::min(clusters, N)),
        heads(B * H),
        padded_C(kernel.padded(C)),
        padded_D(kernel.padded(D)),
        padded_E(kernel.padded(E)),
        scale(static_cast<T>(1 / std::sqrt(static_cast<double>(D)))),
        q(q_BHND),
        k(k_BHSD),
        v(v_BHSE),
        query_length_B(lengths_of(query_lengths, B, N, "query_lengths")),
        key_length_B(lengths_of(key_lengths, B, S, "key_lengths")),
        blocks(std::max<int64_t>(1, std::min<int64_t>(8, (S + 1023) / 1024))),
        dropout(dropout_of(dropout_probability, seed)),
        order(heads * N),
        starts(heads * (C + 1)),
        centroids_DC(heads * D * padded_C) {
    require(clusters >= 1 && clusters <= 1024, "clusters must lie in 1 … 1024, found " + std::to_string(clusters));
    if (dropout.probability > 0)
      // Rows of clusters are counted after those of queries.
      for (int64_t row = 0; row < heads * C; ++row) rows_C.push_back(row_code(dropout.seed, heads * N + row));
    sort_by_cluster();
  }

  // Whether threads take whole heads: there are enough of them, and the share of each is about the same.
  bool by_head() const {
    const int64_t threads = torch::stable::get_num_threads();
    return heads % threads == 0 || heads >= 8 * threads;
  }

  // Run all phases of a computation for all heads. Head by head where that keeps all threads busy: its rows stay in
  // the cache from phase to phase. Else every phase is one parallel loop over all heads.
  template <class F>
  void for_heads(const F& phases) const {
    if (by_head())
      parallel(heads, [&](int64_t head) { phases(HeadRange{head, head + 1}); });
    else
      phases(HeadRange{0, heads});
  }

  // Sum rows over every cluster's members, in the order of their positions: sums[heads, C, stride].
  void sum_members(HeadRange range, const View<T>& rows, int64_t size, const Buffer<T>& sums, int64_t stride) const {
    const auto rows_of = [&](int64_t head) { return rows.head(head / H, head % H); };
    parallel(range.first, range.end, [&](int64_t head) { std::fill_n(sums + head * C * stride, C * stride, T(0)); });
    if (by_head())
      parallel(range.first, range.end, [&](int64_t head) {
        kernel.sum_groups(
            queries(head), size, groups_of(head), rows_of(head), rows.stride_n, sums + head * C * stride, stride);
      });
    else
      parallel(range.first * C, range.end * C, [&](int64_t task) {
        const int64_t head = task / C, c = task % C;
        kernel.sum_rows(
            members(head, c), size, members_of(head, c), rows_of(head), rows.stride_n, nullptr, sums + task * stride);
      });
  }

  // Write the centroids of some heads.
  void find_centroids(HeadRange range) const {
    const Buffer<T> sums(range.count() * C * padded_D, range.first * C * padded_D);
    sum_members(range, q, D, sums, padded_D);
    parallel(range.first * C, range.end * C, [&](int64_t task) {
      const int64_t head = task / C, c = task % C;
      const T count = static_cast<T>(std::max<int64_t>(members(head, c), 1));
      const T* sum = sums + task * padded_D;
      T* to = centroids_DC + head * D * padded_C + c;
      // The mean first, then the scale: as in the reference.
      for (int64_t d = 0; d < D; ++d) to[d * padded_C] = sum[d] / count * scale;
    });
    parallel(range.first, range.end, [&](int64_t head) {
      for (int64_t d = 0; d < D; ++d)
        for (int64_t c = C; c < padded_C; ++c) (centroids_DC + (head * D + d) * padded_C)[c] = 0;
    });
  }

  const int32_t* groups_of(int64_t head) const {
    return static_cast<const int32_t*>(groups_BHN.const_data_ptr()) + head * N;
  }
  int64_t queries(int64_t head) const { return query_length_B[head / H]; }
  int64_t keys(int64_t head) const { return key_length_B[head / H]; }
  // At most 8 blocks: each costs a partial result of C rows and a search for top keys of its own. They follow
  // from the length alone: an utterance gives the same bits alone, in any batch, and for any number of threads.
  int64_t block_keys(int64_t head) const { return std::max<int64_t>(1024, ((keys(head) + 7) / 8 + 511) / 512 * 512); }
  int64_t keys_in_block(int64_t head, int64_t block) const {
    return std::max<int64_t>(0, std::min(block_keys(head), keys(head) - block * block_keys(head)));
  }
  int64_t blocks_used(int64_t head) const { return (keys(head) + block_keys(head) - 1) / block_keys(head); }
  int64_t members(int64_t head, int64_t c) const {
    const int32_t* start = starts + head * (C + 1) + c;
    return start[1] - start[0];
  }
  int64_t first_member(int64_t head, int64_t c) const { return *(starts + head * (C + 1) + c); }
  const int32_t* members_of(int64_t head, int64_t c) const {
    return order + head * N + first_member(head, c);
  }

 private:
  void sort_by_cluster() {
    std::atomic<bool> valid{true};
    parallel(heads, [&](int64_t head) {
      const int64_t n = queries(head);
      const int32_t* group = groups_of(head);
      int32_t* start = starts + head * (C + 1);
      std::fill_n(start, C + 1, 0);
      for (int64_t i = 0; i < n; ++i) {
        if (group[i] < 0 || group[i] >= C) {
          valid = false;
          return;
        }
        ++start[group[i] + 1];
      }
      for (int64_t c = 0; c < C; ++c) start[c + 1] += start[c];
      std::vector<int32_t> next(start, start + C);
      for (int64_t i = 0; i < n; ++i) (order + head * N)[next[group[i]]++] = static_cast<int32_t>(i);
    });
    require(valid, "groups must lie in 0 … min(clusters, N) − 1 at valid positions");
  }
};

// Softmax of every centroid over all keys: its statistics, weighted values, and the top keys where K > 0.
// Without valid keys all of it is zero.
template <class T>
struct DenseResult {
  T* softmax_C;              // [heads, 2, C]: maximum of the scores, 1 / Σ exp(score − maximum)
  T* values_CE;              // [heads, C, E]
  int64_t K;
  T* mass_C;                 // [heads, C]: the weights of the top keys
  int32_t* top_CK;           // [heads, C, K]: rising positions, then −1
  T* kept;                   // [heads, KeptSize::head], or null

  void compute(const Heads<T>& in, HeadRange range) const {
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
    parallel_with_scratch(first_part, end_part, in.kernel.dense_scratch(C, D, E, K), [&](int64_t part, char* scratch) {
      const int64_t head = part / in.blocks, block = part % in.blocks, b = head / in.H, h = head % in.H;
      const int64_t keys = in.keys_in_block(head, block);
      if (keys == 0) return;
      in.kernel.dense(
          {C, D, E, K, block * in.block_keys(head), keys, in.centroids_DC + head * D * padded_C,
           in.k.head(b, h), in.v.head(b, h), in.k.stride_n, in.v.stride_n, maximum + part * padded_C,
           sum + part * padded_C, values + part * C * in.padded_E, scores + part * C * K, top + part * C * K,
           top_count + part * C, in.dropout.probability, in.rows_C.data() + (in.rows_C.empty() ? 0 : head * C),
           kept ? kept + head * size.head : nullptr, kept ? kept + head * size.head + size.maxima : nullptr, scratch});
    });
    // Candidates of all blocks: scores, weights, positions.
    const int64_t most = in.blocks * K + 16, bytes = most * static_cast<int64_t>(2 * sizeof(T) + sizeof(int32_t));
    parallel_with_scratch(range.first * C, range.end * C, bytes, [&](int64_t task, char* scratch) {
      const int64_t head = task / C, c = task % C, first = head * in.blocks;
      T* out = values_CE + task * E;
      std::fill_n(out, E, T(0));
      T &maximum_score = softmax_C[2 * head * C + c], &inverse_sum = softmax_C[(2 * head + 1) * C + c];
      maximum_score = inverse_sum = 0;
      if (K) mass_C[task] = 0, std::fill_n(top_CK + task * K, K, -1);
      const int64_t used = in.blocks_used(head);
      if (used == 0) return;
      T highest = std::numeric_limits<T>::lowest(), total = 0;
      for (int64_t i = first; i < first + used; ++i) highest = std::max(highest, (maximum + i * in.padded_C)[c]);
      for (int64_t i = first; i < first + used; ++i)
        total += (sum + i * in.padded_C)[c] * std::exp((maximum + i * in.padded_C)[c] - highest);
      for (int64_t i = first; i < first + used; ++i) {
        const T factor = std::exp((maximum + i * in.padded_C)[c] - highest) / total;
        const T* from = values + (i * C + c) * in.padded_E;
        for (int64_t e = 0; e < E; ++e) out[e] += factor * from[e];
      }
      maximum_score = highest;
      inverse_sum = 1 / total;
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
      count = in.kernel.select(count, K, candidate_scores, candidates);
      std::copy_n(candidates, count, top_CK + task * K);
      mass_C[task] = in.kernel.weigh_top(count, candidate_scores, maximum_score, inverse_sum, weights);
      // What the other keys contribute is left when the top keys' share is taken away.
      for (int64_t i = 0; i < count; ++i) {
        if (in.dropout.probability > 0)
          weights[i] *= keep_factor(
              in.rows_C[task], key_code(candidates[i]), drop_threshold(in.dropout.probability),
              static_cast<T>(1 / (1 - in.dropout.probability)));
        weights[i] = -weights[i];
      }
      in.kernel.sum_rows(
          count, E, candidates, in.v.head(head / in.H, head % in.H), in.v.stride_n, weights, out);
    });
  }
};

// Backward of the same pass.
template <class T>
struct DenseGradients {
  Buffer<T> grads_CE, centroid_CD, delta_C;  // Ḡ, padded rows; dL/dQ^c over 1, padded rows; δ
  explicit DenseGradients(const Heads<T>& in)
      : grads_CE(in.heads * in.C * in.padded_E),
        centroid_CD(in.heads * in.C * in.padded_D),
        delta_C(in.heads * in.padded_C) {}

  // Needs delta_C; grad_mass_C and the top keys where K > 0. Writes dK and dV of all keys, zero at padding.
  void pass(
      const Heads<T>& in, HeadRange range, int64_t K, const T* softmax_C, const T* grad_mass_C, const int32_t* top_CK,
      const int32_t* top_count_C, const T* kept, T* grad_k, T* grad_v) const {
    const int64_t C = in.C, D = in.D, E = in.E, padded_C = in.padded_C;
    const int64_t first_part = range.first * in.blocks, end_part = range.end * in.blocks, parts = end_part - first_part;
    const auto buffer = [&](int64_t size) { return Buffer<T>(range.count() * size, range.first * size); };
    const Buffer<T> centroids_CD = buffer(C * in.padded_D), grads_EC = buffer(E * padded_C);
    const Buffer<T> maximum = buffer(padded_C), inverse_sum = buffer(padded_C);
    const Buffer<T> partial(parts * C * in.padded_D, first_part * C * in.padded_D);
    const KeptSize size(in.N, in.S, D, C, K);
    if (!kept) in.find_centroids(range);
    parallel(range.first, range.end, [&](int64_t head) {
      if (kept)
        std::copy_n(kept + head * size.head + size.centroids, D * padded_C, in.centroids_DC + head * D * padded_C);
      for (int64_t c = 0; c < padded_C; ++c) {
        (maximum + head * padded_C)[c] = c < C ? softmax_C[2 * head * C + c] : 0;
        (inverse_sum + head * padded_C)[c] = c < C ? softmax_C[(2 * head + 1) * C + c] : 0;
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
        std::fill_n(grad_k + (head * in.S + in.keys(head)) * D, (in.S - in.keys(head)) * D, T(0));
        std::fill_n(grad_v + (head * in.S + in.keys(head)) * E, (in.S - in.keys(head)) * E, T(0));
      }
      if (keys == 0) return;
      in.kernel.dense_backward(
          {C, D, E, K, first, keys, in.centroids_DC + head * D * padded_C,
           centroids_CD + head * C * in.padded_D, grads_EC + head * E * padded_C,
           grads_CE + head * C * in.padded_E, maximum + head * padded_C, inverse_sum + head * padded_C,
           delta_C + head * padded_C, grad_mass_C + head * C, top_CK + head * C * K, top_count_C + head * C, in.k.head(b, h),
           in.v.head(b, h), in.k.stride_n, in.v.stride_n, grad_k + head * in.S * D, grad_v + head * in.S * E,
           partial + part * C * in.padded_D, in.scale, in.dropout.probability,
           in.rows_C.data() + (in.rows_C.empty() ? 0 : head * C), kept ? kept + head * size.head : nullptr,
           kept ? kept + head * size.head + size.maxima : nullptr, scratch});
    });
    parallel(range.first * C, range.end * C, [&](int64_t task) {
      const int64_t head = task / C, c = task % C;
      T* sum = centroid_CD + task * in.padded_D;
      std::fill_n(sum, in.padded_D, T(0));
      const int64_t used = in.blocks_used(head);
      for (int64_t i = head * in.blocks; i < head * in.blocks + used; ++i)
        for (int64_t d = 0; d < D; ++d) sum[d] += (partial + (i * C + c) * in.padded_D)[d];
      const T share = 1 / static_cast<T>(std::max<int64_t>(in.members(head, c), 1));
      for (int64_t d = 0; d < D; ++d) sum[d] *= share;
    });
  }
};

// Memory to keep weights in, empty if they are not wanted.
template <class T>
Tensor new_kept(const Heads<T>& in, const Tensor& like, bool wanted, int64_t K) {
  return new_tensor(like, {in.B, in.H, wanted ? KeptSize(in.N, in.S, in.D, in.C, K).head : 0}, in.type);
}

// The kept weights, null if there are none.
template <class T>
const T* kept_data(const Heads<T>& in, const Tensor& kept, int64_t K) {
  if (kept.numel() == 0) return nullptr;
  require_shape(kept, {in.B, in.H, KeptSize(in.N, in.S, in.D, in.C, K).head}, "kept");
  require(kept.scalar_type() == in.type && kept.is_contiguous(), "kept must be what forward returned");
  return static_cast<const T*>(kept.const_data_ptr());
}

// Rows of padded queries, zeroed.
template <class T>
void zero_padding(const Heads<T>& in, HeadRange range, int64_t size, T* rows) {
  parallel(range.first, range.end, [&](int64_t head) {
    std::fill_n(rows + (head * in.N + in.queries(head)) * size, (in.N - in.queries(head)) * size, T(0));
  });
}

}  // namespace
}  // namespace attention_ext
