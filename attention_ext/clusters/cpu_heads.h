// Inputs of one call of clustered or improved clustered attention on the CPU: sorted by cluster, with centroids.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <tuple>

#include "../cpu/head_rows.h"

namespace attention_ext {
namespace {

// Inputs of one call, checked by check_clustered. Heads are numbered b · H + h.
template <class T>
struct Heads {
  static constexpr ScalarType type = sizeof(T) == 8 ? ScalarType::Double : ScalarType::Float;

  const Kernels<T>& kernel = kernels<T>();
  Tensor groups_BHN;
  int64_t B, H, N, S, D, E, C, heads;
  int64_t padded_C, padded_D, padded_E;
  T scale;
  std::vector<int64_t> query_length_B, key_length_B;
  HeadRows<T> q, k, v;
  int64_t blocks;  // most blocks of keys in a head
  Dropout dropout;
  std::vector<uint32_t> rows_C;  // [heads, C]: row codes of the clusters' weights
  // Queries of each head sorted by (cluster, position), and the start of each cluster.
  Buffer<int32_t> order, starts;
  Buffer<T> centroids_DC;  // mean queries over √D, transposed

  Heads(
      const Tensor& q_, const Tensor& k_, const Tensor& v_, const Tensor& groups_, const Tensor& query_lengths,
      const Tensor& key_lengths, int64_t clusters, double dropout_probability, const std::optional<Tensor>& seed)
      : groups_BHN(contiguous_as(groups_, ScalarType::Int)),
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
        query_length_B(lengths_of(query_lengths, N, "query_lengths")),
        key_length_B(lengths_of(key_lengths, S, "key_lengths")),
        q(q_, type, query_length_B),
        k(k_, type, key_length_B),
        v(v_, type, key_length_B),
        blocks(std::max<int64_t>(1, std::min<int64_t>(8, (S + 1023) / 1024))),
        dropout(dropout_of(dropout_probability, seed)),
        order(heads * N),
        starts(heads * (C + 1)),
        centroids_DC(heads * D * padded_C) {
    if (dropout.probability > 0)
      // Rows of clusters come after those of queries.
      for (int64_t row = 0; row < heads * C; ++row) rows_C.push_back(row_code(dropout.seed, heads * N + row));
    sort_by_cluster();
  }

  bool by_head() const { return shares_heads(heads); }

  template <class F>
  void for_heads(
      std::initializer_list<const HeadRows<T>*> inputs, std::initializer_list<const HeadOutput<T>*> outputs,
      const F& phases) const {
    attention_ext::for_heads<T>(heads, inputs, outputs, phases);
  }

  // Sum rows over each cluster's members in order of position: sums[heads, C, stride]. A thread with a whole head reads
  // the rows in sequence and adds each to its cluster's sum in the L1 cache; threads that share a head take a cluster
  // each. Both add a cluster's rows in the same order, so the bits are the same.
  void sum_members(
      HeadRange range, const HeadRows<T>& rows, int64_t size, const Buffer<T>& sums, int64_t stride) const {
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

  // Compute the centroids of some heads.
  void find_centroids(HeadRange range) const {
    const Buffer<T> sums(range.count() * C * padded_D, range.first * C * padded_D);
    sum_members(range, q, D, sums, padded_D);
    parallel(range.first * C, range.end * C, [&](int64_t task) {
      const int64_t head = task / C, c = task % C;
      const T count = static_cast<T>(std::max<int64_t>(members(head, c), 1));
      const T* sum = sums + task * padded_D;
      T* to = centroids_DC + head * D * padded_C + c;
      // Mean before scale, as in the reference.
      for (int64_t d = 0; d < D; ++d) to[d * padded_C] = sum[d] / count * scale;
    });
    parallel(range.first, range.end, [&](int64_t head) {
      for (int64_t d = 0; d < D; ++d)
        for (int64_t c = C; c < padded_C; ++c) (centroids_DC + (head * D + d) * padded_C)[c] = 0;
    });
  }

  // Row codes of a head's clusters; not to be read without dropout.
  const uint32_t* row_codes(int64_t head) const { return rows_C.data() + (rows_C.empty() ? 0 : head * C); }
  const int32_t* groups_of(int64_t head) const {
    return static_cast<const int32_t*>(groups_BHN.const_data_ptr()) + head * N;
  }
  int64_t queries(int64_t head) const { return query_length_B[head / H]; }
  int64_t keys(int64_t head) const { return key_length_B[head / H]; }
  // At most 8 blocks, because each needs a partial result of C rows and its own top-key search. Blocks depend on the
  // length alone: the bits are the same for an utterance alone, in any batch, and for any number of threads.
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
  const int32_t* members_of(int64_t head, int64_t c) const { return order + head * N + first_member(head, c); }

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

// Call run(heads) in the type of the inputs' sums.
template <class Run>
auto with_heads(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& groups, const Tensor& query_lengths,
    const Tensor& key_lengths, int64_t clusters, double dropout, const std::optional<Tensor>& seed, const Run& run) {
  const auto typed = [&](auto type) {
    return run(Heads<decltype(type)>(q, k, v, groups, query_lengths, key_lengths, clusters, dropout, seed));
  };
  return q.scalar_type() == ScalarType::Double ? typed(double()) : typed(float());
}

// The output's gradient, and those of the inputs, of q's type.
template <class T>
struct Gradients {
  HeadRows<T> out;
  HeadOutput<T> q, k, v;

  Gradients(const Heads<T>& in, const Tensor& grad, ScalarType wanted)
      : out(grad, in.type, in.query_length_B),
        q(grad, {in.B, in.H, in.N, in.D}, in.type, wanted),
        k(grad, {in.B, in.H, in.S, in.D}, in.type, wanted),
        v(grad, {in.B, in.H, in.S, in.E}, in.type, wanted) {}

  std::tuple<Tensor, Tensor, Tensor> tensors() const { return {q.tensor(), k.tensor(), v.tensor()}; }
};

// Zero the rows of padded queries.
template <class T>
void zero_padding(const Heads<T>& in, HeadRange range, int64_t size, const HeadOutput<T>& rows) {
  parallel(range.first, range.end, [&](int64_t head) {
    std::fill_n(rows.head(head) + in.queries(head) * size, (in.N - in.queries(head)) * size, T(0));
  });
}

}  // namespace
}  // namespace attention_ext
