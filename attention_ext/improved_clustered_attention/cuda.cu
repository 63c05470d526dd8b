// Improved clustered attention on CUDA: attention of centroids over all keys, then of each cluster's members over its
// top keys.
#include "../clusters/cuda_exact.h"

namespace attention_ext {
namespace {

constexpr int lanes = 8;  // threads of a query

// Replace scores by weights a · m̂ after dropout and, for the backward pass, gradients of the weights by
// m̂ · a · (da − Σ a da) / √D. Grid (blocks of queries, heads). On its own, nvcc aims at six blocks for sm_90 and spills
// registers of the backward pass.
template <bool Backward>
__global__ void __launch_bounds__(threads, Backward ? 5 : 8) exact_softmax(
    CudaShape shape, int64_t first_head, Dropout dropout, const int32_t* top, const float* mass_C, float* scores,
    float* grad_weights) {
  __shared__ float part[threads];
  const int lane = threadIdx.x % lanes;
  const int64_t local = blockIdx.y, head = first_head + local,
                i = static_cast<int64_t>(blockIdx.x) * (threads / lanes) + threadIdx.x / lanes;
  const bool used = i < shape.starts[head * (shape.C + 2) + shape.C];
  const int K = used ? shape.K : 0;
  const int32_t query = used ? shape.order[head * shape.N + i] : 0;
  const int64_t cluster = head * shape.C + (used ? shape.groups[head * shape.N + query] : 0);
  const int32_t* chosen = top + cluster * shape.K;
  float* weight = scores + (local * shape.N + i) * shape.K;
  float* slope = grad_weights + (local * shape.N + i) * shape.K;
  float highest = -INFINITY, sum = 0, mean = 0;
  for (int j = lane; j < K; j += lanes)
    if (chosen[j] >= 0) highest = fmaxf(highest, weight[j]);
  highest = group_maximum<lanes>(highest, part);
  for (int j = lane; j < K; j += lanes)
    if (chosen[j] >= 0) sum += weight[j] = expf(weight[j] - highest);
  sum = group_sum<lanes>(sum, part);
  if constexpr (Backward) {
    for (int j = lane; j < K; j += lanes)
      if (chosen[j] >= 0)
        mean += weight[j] / sum * (slope[j] *= keep_factor(dropout, head * shape.N + query, chosen[j]));
    mean = group_sum<lanes>(mean, part);
  }
  for (int j = lane; j < K; j += lanes) {
    const bool valid = chosen[j] >= 0;
    const float share = valid ? weight[j] / sum * mass_C[cluster] : 0.0f;
    if constexpr (Backward) slope[j] = valid ? share * (slope[j] - mean) * shape.scale : 0.0f;
    weight[j] = valid ? share * keep_factor(dropout, head * shape.N + query, chosen[j]) : 0.0f;
  }
}

// Keeps no weights for backward.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> improved_clustered_attention(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& groups, const Tensor& query_lengths,
    const Tensor& key_lengths, int64_t clusters, int64_t topk, double dropout, const std::optional<Tensor>& seed,
    bool) {
  check_topk(topk);
  const CudaHeads in(q, k, v, groups, query_lengths, key_lengths, clusters, topk, dropout, seed);
  const int64_t B = in.B, H = in.shape.H, N = in.shape.N, C = in.shape.C, E = in.shape.E, K = in.shape.K;
  const Tensor out = new_tensor(q, {B, H, N, E}, q.scalar_type());
  const Tensor softmax = new_tensor(q, {B, H, 2, C}, ScalarType::Float);
  const Tensor values = new_tensor(q, {B, H, C, E}, ScalarType::Float);
  Tensor mass = new_tensor(q, {B, H, C}, ScalarType::Float);
  const Tensor top = new_tensor(q, {B, H, C, K}, ScalarType::Int);
  const Tensor kept = new_tensor(q, {B, H, 0}, ScalarType::Float);
  cuda_dense_forward(
      in, {.softmax = data_of<float>(softmax),
           .values = data_of<float>(values),
           .mass = data_of<float>(mass),
           .top = data_of<int32_t>(top)});
  if (K == 0) {  // there are no keys
    torch::stable::zero_(mass);
    cuda_take_cluster_rows(in, data_of<float>(values), E, out);
    return {out, softmax, values, mass, top, kept};
  }
  const Launcher launch(q);
  const int64_t wave = heads_at_a_time(in, N * K);
  const Tensor weights = new_tensor(q, {wave, N, K}, ScalarType::Float);
  with_type(q, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const Rows<T> q_rows(in.q_BHND), k_rows(in.k_BHSD), v_rows(in.v_BHSE);
    for (int64_t first = 0; first < in.heads; first += wave) {
      const int64_t count = std::min(wave, in.heads - first);
      launch(
          "exact_products", exact_products<T, false>, in.query_tiles, tiles_of(K), count, in.shape, first,
          data_of<int32_t>(top), q_rows, k_rows, v_rows, v_rows, data_of<float>(weights), nullptr);
      launch(
          "exact_softmax", exact_softmax<false>, ceil_div(N * lanes, threads), count, 1, in.shape, first,
          dropout_of(in), data_of<int32_t>(top), data_of<float>(mass), data_of<float>(weights), nullptr);
      launch(
          "exact_rows", exact_rows<T>, in.query_tiles, tiles_of(E), count, in.shape, first, data_of<int32_t>(top),
          data_of<float>(weights), v_rows, E, data_of<float>(values), false, data_of<T>(out));
    }
  });
  return {out, softmax, values, mass, top, kept};
}

std::tuple<Tensor, Tensor, Tensor> improved_clustered_attention_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& groups,
    const Tensor& query_lengths, const Tensor& key_lengths, int64_t clusters, double dropout,
    const std::optional<Tensor>& seed, const Tensor& softmax, const Tensor& values, const Tensor& mass,
    const Tensor& top, const Tensor& kept, const Tensor& out) {
  require_dimensions(top, 4, "[B, H, C, K]", "top");
  const CudaHeads in(q, k, v, groups, query_lengths, key_lengths, clusters, top.size(3), dropout, seed);
  const int64_t B = in.B, H = in.shape.H, N = in.shape.N, S = in.shape.S, C = in.shape.C, D = in.shape.D;
  const int64_t E = in.shape.E, K = in.shape.K;
  check_grad(grad, q, v);
  check_clustered_saved(q, v, clusters, ScalarType::Float, softmax, values);
  check_improved_saved(q, k, v, clusters, ScalarType::Float, mass, top, out);
  check_saved(kept, {B, H, 0}, ScalarType::Float, q, "kept");
  const ScalarType type = q.scalar_type();
  const Tensor grad_q = new_tensor(q, {B, H, N, D}, type);
  const Tensor grad_k = new_tensor(q, {B, H, S, D}, type);
  const Tensor grad_v = new_tensor(q, {B, H, S, E}, type);
  const Tensor grad_rows = with_contiguous_rows(as_type(grad, type));
  const Tensor out_rows = with_contiguous_rows(out);
  const CudaGradients gradients = cuda_member_gradients(in, grad_rows, &out_rows, values, &mass);
  const Launcher launch(q);
  const Tensor checked_top = new_tensor(q, {B, H, C, K}, ScalarType::Int);
  const int32_t* top_CK = data_of<int32_t>(checked_top);
  launch(
      "check_top", check_top, ceil_div(in.heads * C * K, threads), 1, 1, in.heads * C * K, S,
      static_cast<const int32_t*>(top.const_data_ptr()), data_of<int32_t>(checked_top));
  const float* mass_C = static_cast<const float*>(mass.const_data_ptr());

  const int64_t exact_floats = 2 * N * K + TopKeyGradients::floats(in.shape);
  const int64_t wave = heads_at_a_time(in, cuda_dense_backward_floats(in.shape) + exact_floats);
  const auto floats = [&](const std::vector<int64_t>& size) { return new_tensor(q, size, ScalarType::Float); };
  const Tensor key_sums = floats({wave, S, D}), value_sums = floats({wave, S, E});
  const Tensor weights = floats({wave, N, K}), slopes = floats({wave, N, K});
  const TopKeyGradients top_gradients(q, wave, in.shape);
  with_type(q, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const Rows<T> q_rows(in.q_BHND), k_rows(in.k_BHSD), v_rows(in.v_BHSE), g_rows(grad_rows);
    for (int64_t first = 0; first < in.heads; first += wave) {
      const int64_t count = std::min(wave, in.heads - first);
      cuda_dense_backward(in, first, count, softmax, top_CK, gradients, key_sums, value_sums);
      launch(
          "exact_products", exact_products<T, true>, in.query_tiles, tiles_of(K), count, in.shape, first, top_CK,
          q_rows, k_rows, v_rows, g_rows, data_of<float>(weights), data_of<float>(slopes));
      launch(
          "exact_softmax", exact_softmax<true>, ceil_div(N * lanes, threads), K > 0 ? count : 0, 1, in.shape, first,
          dropout_of(in), top_CK, mass_C, data_of<float>(weights), data_of<float>(slopes));
      launch(
          "exact_rows", exact_rows<T>, in.query_tiles, tiles_of(D), count, in.shape, first, top_CK,
          data_of<float>(slopes), k_rows, D, data_of<float>(gradients.shares), false, data_of<T>(grad_q));
      top_gradients.finish<T>(
          in, first, count, top_CK, slopes, weights, q_rows, g_rows, key_sums, value_sums, grad_k, grad_v);
    }
  });
  return {grad_q, grad_k, grad_v};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(attention_ext, ATTENTION_EXT_DEVICE, library) {
  library.impl("improved_clustered_attention", TORCH_BOX(&improved_clustered_attention));
  library.impl("improved_clustered_attention_backward", TORCH_BOX(&improved_clustered_attention_backward));
}

}  // namespace attention_ext
