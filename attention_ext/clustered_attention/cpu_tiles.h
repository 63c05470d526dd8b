// Clustered attention on tiles of bfloat16: attention of the rounded centroids, by the kernels of local attention with
// windows that hold all keys.
#pragma once

#include <atomic>
#include <cmath>
#include <limits>

#include "../cpu/head_rows.h"

namespace attention_ext {
namespace {

// Keys of a task: packed, they fit into the L2 cache, which all centroids read them from.
constexpr int64_t tile_block_keys = 1024;

// Inputs of one call, checked by check_clustered. Heads are numbered b · H + h.
struct TileClusters {
  const TileKernels& kernel = *instruction_set().tiles;
  const HalfKernels& halves = instruction_set().halves;
  int64_t B, H, N, S, D, E, C, heads, blocks;
  float scale;
  std::vector<int64_t> query_length_B, key_length_B;
  Tensor groups_BHN, q_, k_, v_;
  View<uint16_t> q, k, v;
  Dropout dropout;
  Buffer<int32_t> members_C;     // [heads, C]
  Buffer<uint16_t> centroid_CD;  // [heads, C, D]: mean queries

  TileClusters(
      const Tensor& q__, const Tensor& k__, const Tensor& v__, const Tensor& groups, const Tensor& query_lengths,
      const Tensor& key_lengths, int64_t clusters, double dropout_probability, const std::optional<Tensor>& seed)
      : B(q__.size(0)),
        H(q__.size(1)),
        N(q__.size(2)),
        S(k__.size(2)),
        D(q__.size(3)),
        E(v__.size(3)),
        C(std::min(clusters, N)),
        heads(B * H),
        blocks((S + tile_block_keys - 1) / tile_block_keys),
        scale(static_cast<float>(1 / std::sqrt(static_cast<double>(D)))),
        query_length_B(lengths_of(query_lengths, N, "query_lengths")),
        key_length_B(lengths_of(key_lengths, S, "key_lengths")),
        groups_BHN(contiguous_as(groups, ScalarType::Int)),
        q_(with_contiguous_rows(q__)),
        k_(with_contiguous_rows(k__)),
        v_(with_contiguous_rows(v__)),
        q(q_),
        k(k_),
        v(v_),
        dropout(dropout_of(dropout_probability, seed)),
        members_C(heads * C),
        centroid_CD(heads * C * D) {
    count_members();
  }

  int64_t queries(int64_t head) const { return query_length_B[head / H]; }
  int64_t keys(int64_t head) const { return key_length_B[head / H]; }
  int64_t blocks_used(int64_t head) const { return (keys(head) + tile_block_keys - 1) / tile_block_keys; }
  const int32_t* groups_of(int64_t head) const {
    return static_cast<const int32_t*>(groups_BHN.const_data_ptr()) + head * N;
  }

  // Attention of a head's centroids over a block of keys.
  TileBand band(int64_t head, int64_t block) const {
    const int64_t b = head / H, h = head % H, first = block * tile_block_keys;
    return {
        .D = D,
        .E = E,
        .left = C + S,
        .right = C + S,
        .chunk = 1,
        .length = std::min(keys(head) - first, tile_block_keys),
        .q = centroid_CD + head * C * D,
        .k = k.head(b, h) + first * k.stride_n,
        .v = v.head(b, h) + first * v.stride_n,
        .stride_q = D,
        .stride_k = k.stride_n,
        .stride_v = v.stride_n,
        .scale = scale,
        .bias = nullptr,
        .dropout = dropout,
        .first_row = static_cast<uint64_t>(heads * N + head * C),  // after the rows of queries
        .first_key = first};
  }

  // The largest block, which needs the most memory.
  TileBand largest() const {
    TileBand band{.D = D, .E = E};
    band.length = std::min(S, tile_block_keys);
    return band;
  }

  // Sums of a head's rows, [C, size].
  std::vector<float> sum_members(int64_t head, int64_t size, const View<uint16_t>& rows) const {
    std::vector<float> sums(C * size);
    halves.sum_groups(queries(head), size, groups_of(head), rows.head(head / H, head % H), rows.stride_n, sums.data());
    return sums;
  }

  // Divide the sums of a head's clusters by their numbers of members, and round the quotients.
  void average(int64_t head, int64_t size, std::vector<float>& sums, uint16_t* to) const {
    for (int64_t c = 0; c < C; ++c) {
      const float count = static_cast<float>(std::max(*(members_C + head * C + c), 1));
      for (int64_t j = 0; j < size; ++j) sums[c * size + j] /= count;
    }
    halves.narrow(C * size, sums.data(), to);
  }

  void find_centroids(int64_t head) const {
    std::vector<float> sums = sum_members(head, D, q);
    average(head, D, sums, centroid_CD + head * C * D);
  }

  // to[i] = from[cluster of i] for all valid queries of a head; zero at padding.
  void scatter_rows(int64_t head, int64_t size, const uint16_t* from_C, const Tensor& to) const {
    const int32_t* groups = groups_of(head);
    uint16_t* row = data_of<uint16_t>(to) + head * N * size;
    for (int64_t i = 0; i < queries(head); ++i, row += size) std::copy_n(from_C + groups[i] * size, size, row);
    std::fill_n(row, (N - queries(head)) * size, uint16_t{0});
  }

 private:
  void count_members() {
    std::atomic<bool> valid{true};
    parallel(heads, [&](int64_t head) {
      const int32_t* group = groups_of(head);
      int32_t* count = members_C + head * C;
      std::fill_n(count, C, 0);
      for (int64_t i = 0; i < queries(head); ++i) {
        if (group[i] < 0 || group[i] >= C) {
          valid = false;
          return;
        }
        ++count[group[i]];
      }
    });
    require(valid, "groups must lie in 0 … min(clusters, N) − 1 at valid positions");
  }
};

// Softmax statistics and values of each block of keys, and what they are for all keys.
struct TileParts {
  Buffer<float> maximum_C, inverse_sum_C, values_CE;  // [heads, blocks, C, …]

  TileParts(const TileClusters& in, HeadRange range)
      : maximum_C(range.count() * in.blocks * in.C, range.first * in.blocks * in.C),
        inverse_sum_C(range.count() * in.blocks * in.C, range.first * in.blocks * in.C),
        values_CE(range.count() * in.blocks * in.C * in.E, range.first * in.blocks * in.C * in.E) {}

  void join(const TileClusters& in, int64_t head, float* softmax_C, float* values) const {
    const int64_t C = in.C, E = in.E, used = in.blocks_used(head), first = head * in.blocks;
    std::fill_n(softmax_C, 2 * C, 0.0f);
    std::fill_n(values, C * E, 0.0f);
    for (int64_t c = 0; c < C && used; ++c) {
      const auto maximum = [&](int64_t i) { return *(maximum_C + (first + i) * C + c); };
      const auto sum = [&](int64_t i) { return 1 / *(inverse_sum_C + (first + i) * C + c); };
      float highest = maximum(0), total = 0;
      for (int64_t i = 1; i < used; ++i) highest = std::max(highest, maximum(i));
      for (int64_t i = 0; i < used; ++i) total += sum(i) * std::exp(maximum(i) - highest);
      for (int64_t i = 0; i < used; ++i) {
        const float share = used == 1 ? 1 : sum(i) * std::exp(maximum(i) - highest) / total;
        const float* from = values_CE + ((first + i) * C + c) * E;
        for (int64_t e = 0; e < E; ++e) values[c * E + e] += share * from[e];
      }
      softmax_C[c] = highest;
      softmax_C[C + c] = 1 / total;
    }
  }
};

std::tuple<Tensor, Tensor, Tensor, Tensor> forward(const TileClusters& in, const Tensor& like) {
  const int64_t C = in.C, E = in.E;
  const Tensor out = new_tensor(like, {in.B, in.H, in.N, E}, ScalarType::BFloat16);
  const Tensor softmax = new_tensor(like, {in.B, in.H, 2, C}, ScalarType::Float);
  const Tensor values = new_tensor(like, {in.B, in.H, C, E}, ScalarType::Float);
  const Tensor kept = new_tensor(like, {in.B, in.H, 0}, ScalarType::Float);
  const int64_t packed = in.kernel.packed_bytes(in.largest(), false), scratch = in.kernel.scratch(in.D, E);
  for_heads<float>(in.heads, {}, {}, [&](HeadRange range) {
    const TileParts parts(in, range);
    parallel(range.first, range.end, [&](int64_t head) { in.find_centroids(head); });
    parallel_with_scratch(
        range.first * in.blocks, range.end * in.blocks, packed + scratch, [&](int64_t part, char* memory) {
          const int64_t head = part / in.blocks, block = part % in.blocks;
          if (block >= in.blocks_used(head)) return;
          const TileBand band = in.band(head, block);
          in.kernel.pack(band, false, memory);
          in.kernel.attend(
              {.band = band,
               .first = 0,
               .end = C,
               .maximum_N = parts.maximum_C + part * C,
               .inverse_sum_N = parts.inverse_sum_C + part * C,
               .wide_out_NE = parts.values_CE + part * C * E,
               .packed = memory,
               .scratch = memory + packed});
        });
    parallel(range.first, range.end, [&](int64_t head) {
      float* own = data_of<float>(values) + head * C * E;
      parts.join(in, head, data_of<float>(softmax) + 2 * head * C, own);
      const Buffer<uint16_t> rounded(C * E);
      in.halves.narrow(C * E, own, rounded + 0);
      in.scatter_rows(head, E, rounded + 0, out);
    });
  });
  return {out, softmax, values, kept};
}

std::tuple<Tensor, Tensor, Tensor> backward(
    const TileClusters& in, const Tensor& like, const Tensor& grad_, const Tensor& softmax, const Tensor& values) {
  const int64_t C = in.C, D = in.D, E = in.E;
  const auto gradient = [&](int64_t rows, int64_t size) {
    return new_tensor(like, {in.B, in.H, rows, size}, ScalarType::BFloat16);
  };
  const Tensor grad_q = gradient(in.N, D), grad_k = gradient(in.S, D), grad_v = gradient(in.S, E);
  const Tensor grad = with_contiguous_rows(as_type(grad_, ScalarType::BFloat16));
  const View<uint16_t> g(grad);
  const int64_t packed = in.kernel.packed_bytes(in.largest(), true);
  const int64_t scratch = in.kernel.backward_scratch(in.largest());
  for_heads<float>(in.heads, {}, {}, [&](HeadRange range) {
    const int64_t first = range.first, count = range.count();
    const Buffer<uint16_t> grad_CE(count * C * E, first * C * E), out_CE(count * C * E, first * C * E);
    const Buffer<float> parts_CD(count * in.blocks * C * D, first * in.blocks * C * D);
    parallel(first, range.end, [&](int64_t head) {
      in.find_centroids(head);
      in.halves.narrow(C * E, in.sum_members(head, E, g).data(), grad_CE + head * C * E);
      in.halves.narrow(C * E, static_cast<const float*>(values.const_data_ptr()) + head * C * E, out_CE + head * C * E);
    });
    parallel_with_scratch(first * in.blocks, range.end * in.blocks, packed + scratch, [&](int64_t part, char* memory) {
      const int64_t head = part / in.blocks, block = part % in.blocks;
      const int64_t key = std::min(block * tile_block_keys, in.keys(head));
      const auto rows = [&](const Tensor& x, int64_t size) {
        return data_of<uint16_t>(x) + (head * in.S + key) * size;
      };
      if (block + 1 == in.blocks) {  // zeros at padding
        const int64_t padding = in.S - in.keys(head);
        std::fill_n(rows(grad_k, D) + (in.keys(head) - key) * D, padding * D, uint16_t{0});
        std::fill_n(rows(grad_v, E) + (in.keys(head) - key) * E, padding * E, uint16_t{0});
      }
      if (block >= in.blocks_used(head)) return;
      const TileBand band = in.band(head, block);
      const float* maximum = static_cast<const float*>(softmax.const_data_ptr()) + 2 * head * C;
      in.kernel.pack(band, true, memory);
      in.kernel.backward(
          {.band = band,
           .queries = C,
           .grad = grad_CE + head * C * E,
           .out = out_CE + head * C * E,
           .stride_grad = E,
           .stride_out = E,
           .maximum_N = maximum,
           .inverse_sum_N = maximum + C,
           .grad_k = rows(grad_k, D),
           .grad_v = rows(grad_v, E),
           .wide_grad_q = parts_CD + part * C * D,
           .packed = memory,
           .scratch = memory + packed});
    });
    parallel(first, range.end, [&](int64_t head) {
      std::vector<float> sums(C * D);
      for (int64_t block = 0; block < in.blocks_used(head); ++block)
        for (int64_t i = 0; i < C * D; ++i) sums[i] += (parts_CD + (head * in.blocks + block) * C * D)[i];
      const Buffer<uint16_t> shares(C * D);
      in.average(head, D, sums, shares + 0);
      in.scatter_rows(head, D, shares + 0, grad_q);
    });
  });
  return {grad_q, grad_k, grad_v};
}

}  // namespace
}  // namespace attention_ext
