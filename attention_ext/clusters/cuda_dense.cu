// Attention of all centroids over all keys on CUDA: launches.
//
// The weights [C, S] of a wave of heads are stored in float32. All sums have an order that depends on the lengths
// alone; there are no floating-point atomics.
#include "cuda_backward.h"
#include "cuda_forward.h"
#include "cuda_heads.h"
#include "cuda_sort.h"

namespace attention_ext {

CudaHeads::CudaHeads(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& groups, const Tensor& query_lengths,
    const Tensor& key_lengths, int64_t clusters, int64_t topk, double dropout_probability,
    const std::optional<Tensor>& seed_)
    : q_BHND(q),
      k_BHSD(k),
      v_BHSE(v),
      groups_BHN(groups),
      query_lengths_B(query_lengths),
      key_lengths_B(key_lengths),
      order(q),
      starts(q),
      tile_starts(q),
      centroids(q) {
  check_clustered(q, k, v, groups, query_lengths, key_lengths, clusters, dropout_probability, seed_);
  B = q.size(0);
  const int64_t H = q.size(1), N = q.size(2), S = k.size(2), D = q.size(3), E = v.size(3);
  require_type(q, "q");
  require(
      D <= 256 && E <= 256,
      "head sizes must lie in 1 … 256 on CUDA, found " + std::to_string(D) + " and " + std::to_string(E));
  require_heads(q);
  require_heads(k);
  seed = nullptr;
  dropout = dropout_probability;
  if (dropout > 0) {
    seed_tensor = seed_;
    seed = static_cast<const int64_t*>(seed_->const_data_ptr());
  }

  heads = B * H;
  const int64_t C = std::min(clusters, N), K = std::min(topk, S), chunks = ceil_div(N, sort_queries);
  q_BHND = with_contiguous_rows(q);
  k_BHSD = with_contiguous_rows(k);
  v_BHSE = with_contiguous_rows(v);
  groups_BHN = contiguous_as(groups, ScalarType::Int);
  query_lengths_B = lengths_on_device(query_lengths);
  key_lengths_B = lengths_on_device(key_lengths);
  order = new_tensor(q, {heads, N}, ScalarType::Int);
  starts = new_tensor(q, {heads, C + 2}, ScalarType::Int);
  tile_starts = new_tensor(q, {heads, C + 2}, ScalarType::Int);
  centroids = new_tensor(q, {heads, C, D}, ScalarType::Float);
  // Each cluster, and the padding, may have a partly empty tile.
  query_tiles = N / 64 + C + 1;
  shape = {
      .H = H,
      .N = N,
      .S = S,
      .C = static_cast<int32_t>(C),
      .D = static_cast<int32_t>(D),
      .E = static_cast<int32_t>(E),
      .K = static_cast<int32_t>(K),
      .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(D))),
      .query_length_B = static_cast<const int64_t*>(query_lengths_B.const_data_ptr()),
      .key_length_B = static_cast<const int64_t*>(key_lengths_B.const_data_ptr()),
      .groups = static_cast<const int32_t*>(groups_BHN.const_data_ptr()),
      .order = data_of<int32_t>(order),
      .starts = data_of<int32_t>(starts),
      .tile_starts = data_of<int32_t>(tile_starts)};

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
      .sums = floats({in.heads, C, shape.E}),
      .delta = floats({in.heads, C}),
      .grad_mass = floats({in.heads, C}),
      .shares = floats({in.heads, C, shape.D})};
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
        data_of<float>(in.centroids), data_of<float>(gradients.sums),
        static_cast<const float*>(softmax.const_data_ptr()), delta, Rows<T>(in.k_BHSD), Rows<T>(in.v_BHSE),
        data_of<float>(weights), data_of<float>(slopes));
    if (shape.K > 0 || in.dropout > 0)
      launch(
          "correct_top_keys", correct_top_keys, C, count, 1, shape, first, in.heads, dropout_of(in), top, delta,
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
        "finish_keys", finish_keys<T>, tiles_of(in.shape.S), count, tiles_of(size), in.shape, first, size, top, parts,
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
