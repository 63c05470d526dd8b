// Improved clustered attention on the CPU.
#include "../clusters/cpu_dense.h"
#include "../clusters/cpu_top.h"

namespace attention_ext {
namespace {

template <class T>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> forward(
    const Heads<T>& in, int64_t topk, const Tensor& like, bool keep_weights) {
  const int64_t C = in.C, E = in.E, K = std::min(topk, in.S);
  const HeadOutput<T> out(like, {in.B, in.H, in.N, E}, in.type, like.scalar_type());
  const Tensor softmax = new_tensor(like, {in.B, in.H, 2, C}, in.type);
  const Tensor values = new_tensor(like, {in.B, in.H, C, E}, in.type);
  const Tensor mass = new_tensor(like, {in.B, in.H, C}, in.type);
  const Tensor top = new_tensor(like, {in.B, in.H, C, K}, ScalarType::Int);
  const Tensor kept = new_kept(in, like, keep_weights, K);
  T* kept_weights = keep_weights ? data_of<T>(kept) : nullptr;
  const DenseResult<T> dense{
      .softmax_C = data_of<T>(softmax),
      .values_CE = data_of<T>(values),
      .K = K,
      .mass_C = data_of<T>(mass),
      .top_CK = data_of<int32_t>(top),
      .kept = kept_weights};
  const KeptSize size(in.N, in.S, in.D, C, K);
  const int64_t base_bytes = (in.padded_E * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
  const int64_t bytes = base_bytes + in.kernel.exact_scratch(in.D, E, K);
  in.for_heads({&in.q, &in.k, &in.v}, {&out}, [&](HeadRange range) {
    dense.compute(in, range);
    parallel_with_scratch(range.first * C, range.end * C, bytes, [&](int64_t task, char* scratch) {
      const int64_t head = task / C, c = task % C, count = count_top(K, dense.top_CK + task * K);
      ExactTask<T> exact = exact_task(in, head, c, count, dense.top_CK + task * K, out, scratch + base_bytes);
      if (count == 0)
        for (int64_t i = 0; i < exact.members; ++i) std::fill_n(exact.out_NE + exact.order[i] * E, E, T(0));
      if (count == 0 || exact.members == 0) return;
      T* base = reinterpret_cast<T*>(scratch);
      std::fill_n(std::copy_n(dense.values_CE + task * E, E, base), in.padded_E - E, T(0));
      exact.mass = dense.mass_C[task];
      exact.base_E = base;
      if (kept_weights)
        exact.kept = kept_weights + head * size.head + size.exact + in.first_member(head, c) * size.row_K;
      in.kernel.exact(exact);
    });
    zero_padding(in, range, E, out);
  });
  return {out.tensor(), softmax, values, mass, top, kept};
}

template <class T>
std::tuple<Tensor, Tensor, Tensor> backward(
    const Heads<T>& in, const Tensor& like, const Tensor& grad, const Tensor& softmax, const Tensor& values,
    const Tensor& mass, const Tensor& top, const Tensor& kept, const Tensor& out) {
  const int64_t C = in.C, D = in.D, E = in.E, K = top.size(3);
  const Gradients<T> grads(in, grad, like.scalar_type());
  const HeadRows<T>& g = grads.out;
  const HeadRows<T> o(out, in.type, in.query_length_B);
  const int32_t* top_CK = data_of<int32_t>(top);
  const std::vector<int32_t> top_count_C = checked_top_counts(in, K, top_CK);
  const T* kept_weights = kept_data(in, like, kept, K);
  const KeptSize size(in.N, in.S, D, C, K);
  const T *values_CE = data_of<T>(values), *mass_C = data_of<T>(mass);

  const DenseGradients<T> dense(in);
  const Buffer<T> grad_mass_C(in.heads * C);
  // δ_j = Σ_i G_i · O_i and m̂_j · dm̂_j = δ_j − Ḡ_j · V̂^b_j, so the dense part does not need the exact one.
  const auto dense_part = [&](HeadRange range) {
    in.sum_members(range, g, E, dense.grads_CE, in.padded_E);
    parallel(range.first * C, range.end * C, [&](int64_t task) {
      const int64_t head = task / C, b = head / in.H, h = head % in.H, members = in.members(head, task % C);
      const int32_t* member = in.members_of(head, task % C);
      const T delta = in.kernel.dot_rows(members, E, member, g.head(b, h), g.stride_n, o.head(b, h), o.stride_n);
      const int32_t only = 0;
      const T base = in.kernel.dot_rows(1, E, &only, dense.grads_CE + task * in.padded_E, 0, values_CE + task * E, 0);
      (dense.delta_C + head * in.padded_C)[task % C] = delta;
      *(grad_mass_C + task) = top_count_C[task] ? (delta - base) / mass_C[task] : 0;
    });
    dense.pass(
        in, range, K, data_of<T>(softmax), grad_mass_C + 0, top_CK, top_count_C.data(), kept_weights, grads.k, grads.v);
  };

  const auto exact_part = [&](int64_t head, int64_t c, T* slot_k, T* slot_v, char* scratch) {
    const int64_t task = head * C + c, count = top_count_C[task];
    ExactBackwardTask<T> exact =
        exact_backward_task(in, grads, head, c, count, top_CK + task * K, slot_k, slot_v, scratch);
    if (count == 0)
      for (int64_t i = 0; i < exact.members; ++i) std::fill_n(exact.grad_q_ND + exact.order[i] * D, D, T(0));
    if (count == 0 || exact.members == 0) return;
    exact.mass = mass_C[task];
    exact.grad_query_D = dense.centroid_CD + task * in.padded_D;
    if (kept_weights) exact.kept = kept_weights + head * size.head + size.exact + in.first_member(head, c) * size.row_K;
    in.kernel.exact_backward(exact);
  };
  const int64_t bytes = in.kernel.exact_backward_scratch(D, E, K);
  in.for_heads({&in.q, &in.k, &in.v, &g, &o}, {&grads.q, &grads.k, &grads.v}, [&](HeadRange range) {
    dense_part(range);
    if (in.by_head())
      parallel_with_scratch(range.first, range.end, bytes, [&](int64_t head, char* scratch) {
        for (int64_t c = 0; c < C; ++c) exact_part(head, c, nullptr, nullptr, scratch);
      });
    else
      add_top_gradients(in, K, top_CK, top_count_C, bytes, grads.k, grads.v, exact_part);
    zero_padding(in, range, D, grads.q);
  });
  return grads.tensors();
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> improved_clustered_attention(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& groups, const Tensor& query_lengths,
    const Tensor& key_lengths, int64_t clusters, int64_t topk, double dropout, const std::optional<Tensor>& seed,
    bool keep_weights) {
  check_clustered(q, k, v, groups, query_lengths, key_lengths, clusters, dropout, seed);
  if (topk < 1) fail("topk must be at least 1, found " + std::to_string(topk));
  return with_heads(q, k, v, groups, query_lengths, key_lengths, clusters, dropout, seed, [&](const auto& in) {
    return forward(in, topk, q, keep_weights);
  });
}

std::tuple<Tensor, Tensor, Tensor> improved_clustered_attention_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& groups,
    const Tensor& query_lengths, const Tensor& key_lengths, int64_t clusters, double dropout,
    const std::optional<Tensor>& seed, const Tensor& softmax, const Tensor& values, const Tensor& mass,
    const Tensor& top, const Tensor& kept, const Tensor& out) {
  check_clustered(q, k, v, groups, query_lengths, key_lengths, clusters, dropout, seed);
  check_grad(grad, q, v);
  const ScalarType sums = sum_type(q.scalar_type());
  check_clustered_saved(q, v, clusters, sums, softmax, values);
  check_improved_saved(q, k, v, clusters, sums, mass, top, out);
  return with_heads(q, k, v, groups, query_lengths, key_lengths, clusters, dropout, seed, [&](const auto& in) {
    return backward(in, q, grad, softmax, values, mass, top, kept, out);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(attention_ext, CPU, library) {
  library.impl("improved_clustered_attention", TORCH_BOX(&improved_clustered_attention));
  library.impl("improved_clustered_attention_backward", TORCH_BOX(&improved_clustered_attention_backward));
}

}  // namespace attention_ext
