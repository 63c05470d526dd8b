// Clustered attention on the CPU.
#include "../clusters/cpu_dense.h"
#include "cpu_tiles.h"

namespace attention_ext {
namespace {

constexpr int64_t row_block = 1024;

// to[i] = from[cluster of i] for all valid queries; zero at padding.
template <class T>
void scatter_rows(
    const Heads<T>& in, HeadRange range, int64_t size, const T* from_C, int64_t stride, const HeadOutput<T>& to) {
  const int64_t blocks = (in.N + row_block - 1) / row_block;
  parallel(range.first * blocks, range.end * blocks, [&](int64_t task) {
    const int64_t head = task / blocks, start = task % blocks * row_block;
    const int32_t* groups = in.groups_of(head);
    for (int64_t i = start; i < std::min(in.queries(head), start + row_block); ++i)
      std::copy_n(from_C + (head * in.C + groups[i]) * stride, size, to.head(head) + i * size);
  });
  zero_padding(in, range, size, to);
}

template <class T>
std::tuple<Tensor, Tensor, Tensor, Tensor> forward(const Heads<T>& in, const Tensor& like, bool keep_weights) {
  const HeadOutput<T> out(like, {in.B, in.H, in.N, in.E}, in.type, like.scalar_type());
  const Tensor softmax = new_tensor(like, {in.B, in.H, 2, in.C}, in.type);
  const Tensor values = new_tensor(like, {in.B, in.H, in.C, in.E}, in.type);
  const Tensor kept = new_kept(in, like, keep_weights, 0);
  const DenseResult<T> dense{
      .softmax_C = data_of<T>(softmax),
      .values_CE = data_of<T>(values),
      .K = 0,
      .mass_C = nullptr,
      .top_CK = nullptr,
      .kept = keep_weights ? data_of<T>(kept) : nullptr};
  in.for_heads({&in.q, &in.k, &in.v}, {&out}, [&](HeadRange range) {
    dense.compute(in, range);
    scatter_rows<T>(in, range, in.E, dense.values_CE, in.E, out);
  });
  return {out.tensor(), softmax, values, kept};
}

template <class T>
std::tuple<Tensor, Tensor, Tensor> backward(
    const Heads<T>& in, const Tensor& like, const Tensor& grad, const Tensor& softmax, const Tensor& values,
    const Tensor& kept) {
  const Gradients<T> grads(in, grad, like.scalar_type());
  const DenseGradients<T> dense(in);
  const T *values_CE = data_of<T>(values), *kept_weights = kept_data(in, like, kept, 0);
  in.for_heads({&in.q, &in.k, &in.v, &grads.out}, {&grads.q, &grads.k, &grads.v}, [&](HeadRange range) {
    in.sum_members(range, grads.out, in.E, dense.grads_CE, in.padded_E);
    // δ_j = Σ_i G_i · O_i = Ḡ_j · O, because all members share the output O.
    parallel(range.first * in.C, range.end * in.C, [&](int64_t task) {
      T product = 0;
      for (int64_t e = 0; e < in.E; ++e)
        product += (dense.grads_CE + task * in.padded_E)[e] * values_CE[task * in.E + e];
      (dense.delta_C + task / in.C * in.padded_C)[task % in.C] = product;
    });
    dense.pass(in, range, 0, data_of<T>(softmax), nullptr, nullptr, nullptr, kept_weights, grads.k, grads.v);
    scatter_rows<T>(in, range, in.D, dense.centroid_CD + 0, in.padded_D, grads.q);
  });
  return grads.tensors();
}

std::tuple<Tensor, Tensor, Tensor, Tensor> clustered_attention(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& groups, const Tensor& query_lengths,
    const Tensor& key_lengths, int64_t clusters, double dropout, const std::optional<Tensor>& seed, bool keep_weights) {
  check_clustered(q, k, v, groups, query_lengths, key_lengths, clusters, dropout, seed);
  if (on_tiles(q, v))
    return forward(TileClusters(q, k, v, groups, query_lengths, key_lengths, clusters, dropout, seed), q);
  return with_heads(q, k, v, groups, query_lengths, key_lengths, clusters, dropout, seed, [&](const auto& in) {
    return forward(in, q, keep_weights);
  });
}

std::tuple<Tensor, Tensor, Tensor> clustered_attention_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& groups,
    const Tensor& query_lengths, const Tensor& key_lengths, int64_t clusters, double dropout,
    const std::optional<Tensor>& seed, const Tensor& softmax, const Tensor& values, const Tensor& kept) {
  check_clustered(q, k, v, groups, query_lengths, key_lengths, clusters, dropout, seed);
  check_grad(grad, q, v);
  check_clustered_saved(q, v, clusters, sum_type(q.scalar_type()), softmax, values);
  if (on_tiles(q, v) && kept.dim() == 3 && kept.size(2) == 0) {  // weights are kept by another instruction set
    check_saved(kept, {q.size(0), q.size(1), 0}, ScalarType::Float, q, "kept");
    return backward(
        TileClusters(q, k, v, groups, query_lengths, key_lengths, clusters, dropout, seed), q, grad, softmax, values);
  }
  return with_heads(q, k, v, groups, query_lengths, key_lengths, clusters, dropout, seed, [&](const auto& in) {
    return backward(in, q, grad, softmax, values, kept);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(attention_ext, CPU, library) {
  library.impl("clustered_attention", TORCH_BOX(&clustered_attention));
  library.impl("clustered_attention_backward", TORCH_BOX(&clustered_attention_backward));
}

}  // namespace attention_ext
