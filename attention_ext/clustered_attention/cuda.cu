// Clustered attention on CUDA.
#include "../clusters/cuda_heads.h"

namespace attention_ext {
namespace {

// Keeps no weights for backward.
std::tuple<Tensor, Tensor, Tensor, Tensor> clustered_attention(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& groups, const Tensor& query_lengths,
    const Tensor& key_lengths, int64_t clusters, double dropout, const std::optional<Tensor>& seed, bool) {
  const CudaHeads in(q, k, v, groups, query_lengths, key_lengths, clusters, 0, dropout, seed);
  const int64_t B = in.B, H = in.shape.H, C = in.shape.C, E = in.shape.E;
  const Tensor out = new_tensor(q, {B, H, in.shape.N, E}, q.scalar_type());
  const Tensor softmax = new_tensor(q, {B, H, 2, C}, ScalarType::Float);
  const Tensor values = new_tensor(q, {B, H, C, E}, ScalarType::Float);
  cuda_dense_forward(
      in, {.softmax = data_of<float>(softmax), .values = data_of<float>(values), .mass = nullptr, .top = nullptr});
  cuda_take_cluster_rows(in, data_of<float>(values), E, out);
  return {out, softmax, values, new_tensor(q, {B, H, 0}, ScalarType::Float)};
}

std::tuple<Tensor, Tensor, Tensor> clustered_attention_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& groups,
    const Tensor& query_lengths, const Tensor& key_lengths, int64_t clusters, double dropout,
    const std::optional<Tensor>& seed, const Tensor& softmax, const Tensor& values, const Tensor& kept) {
  const CudaHeads in(q, k, v, groups, query_lengths, key_lengths, clusters, 0, dropout, seed);
  const int64_t B = in.B, H = in.shape.H, N = in.shape.N, S = in.shape.S, D = in.shape.D, E = in.shape.E;
  check_grad(grad, q, v);
  check_clustered_saved(q, v, clusters, ScalarType::Float, softmax, values);
  check_saved(kept, {B, H, 0}, ScalarType::Float, q, "kept");
  const ScalarType type = q.scalar_type();
  const Tensor grad_q = new_tensor(q, {B, H, N, D}, type);
  const Tensor grad_k = new_tensor(q, {B, H, S, D}, type);
  const Tensor grad_v = new_tensor(q, {B, H, S, E}, type);
  const Tensor grad_rows = with_contiguous_rows(as_type(grad, type));
  const CudaGradients gradients = cuda_member_gradients(in, grad_rows, nullptr, values, nullptr);
  const int64_t wave = heads_at_a_time(in, cuda_dense_backward_floats(in.shape));
  const Tensor keys = new_tensor(q, {wave, S, D}, ScalarType::Float);
  const Tensor values_of_keys = new_tensor(q, {wave, S, E}, ScalarType::Float);
  for (int64_t first = 0; first < in.heads; first += wave) {
    const int64_t count = std::min(wave, in.heads - first);
    cuda_dense_backward(in, first, count, softmax, nullptr, gradients, keys, values_of_keys);
    cuda_finish_keys(in, first, count, D, nullptr, nullptr, keys, grad_k);
    cuda_finish_keys(in, first, count, E, nullptr, nullptr, values_of_keys, grad_v);
  }
  cuda_take_cluster_rows(in, data_of<float>(gradients.shares), D, grad_q);
  return {grad_q, grad_k, grad_v};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(attention_ext, ATTENTION_EXT_DEVICE, library) {
  library.impl("clustered_attention", TORCH_BOX(&clustered_attention));
  library.impl("clustered_attention_backward", TORCH_BOX(&clustered_attention_backward));
}

}  // namespace attention_ext
