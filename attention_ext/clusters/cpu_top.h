// Top keys of all clusters on the CPU: their numbers, and their gradients added to the keys' rows.
#pragma once

#include "cpu_heads.h"

namespace attention_ext {
namespace {

// Number of top keys of a cluster.
int64_t count_top(int64_t K, const int32_t* top_K) { return std::find(top_K, top_K + K, -1) - top_K; }

// The same for all clusters of a call's heads, checked: positions of valid keys in ascending order, then −1.
template <class T>
std::vector<int32_t> checked_top_counts(const Heads<T>& in, int64_t K, const int32_t* top_CK) {
  std::vector<int32_t> count_C(in.heads * in.C);
  for (int64_t c = 0; c < in.heads * in.C; ++c) {
    const int32_t* top = top_CK + c * K;
    const int64_t count = count_top(K, top), keys = in.keys(c / in.C);
    for (int64_t i = 0; i < count; ++i)
      if (top[i] < (i ? top[i - 1] + 1 : 0) || top[i] >= keys) fail("top must be what forward returned");
    count_C[c] = static_cast<int32_t>(count);
  }
  return count_C;
}

// Attention of a cluster's members over its `count` top keys, without what is particular to a mechanism.
template <class T>
ExactTask<T> exact_task(
    const Heads<T>& in, int64_t head, int64_t c, int64_t count, const int32_t* top, const HeadOutput<T>& out,
    char* scratch) {
  const int64_t b = head / in.H, h = head % in.H;
  return {
      .members = in.members(head, c),
      .D = in.D,
      .E = in.E,
      .K = count,
      .order = in.members_of(head, c),
      .top = top,
      .q = in.q.head(b, h),
      .k = in.k.head(b, h),
      .v = in.v.head(b, h),
      .stride_q = in.q.stride_n,
      .stride_k = in.k.stride_n,
      .stride_v = in.v.stride_n,
      .scale = in.scale,
      .out_NE = out.head(head),
      .dropout = in.dropout,
      .first_row = static_cast<uint64_t>(head * in.N),
      .scratch = scratch};
}

// The same for the backward pass. The keys' gradients are added to their rows or, given a slot, written there.
template <class T>
ExactBackwardTask<T> exact_backward_task(
    const Heads<T>& in, const Gradients<T>& grad, int64_t head, int64_t c, int64_t count, const int32_t* top, T* slot_k,
    T* slot_v, char* scratch) {
  const int64_t b = head / in.H, h = head % in.H;
  return {
      .members = in.members(head, c),
      .D = in.D,
      .E = in.E,
      .K = count,
      .order = in.members_of(head, c),
      .top = top,
      .q = in.q.head(b, h),
      .k = in.k.head(b, h),
      .v = in.v.head(b, h),
      .grad = grad.out.head(b, h),
      .stride_q = in.q.stride_n,
      .stride_k = in.k.stride_n,
      .stride_v = in.v.stride_n,
      .stride_grad = grad.out.stride_n,
      .scale = in.scale,
      .grad_q_ND = grad.q.head(head),
      .grad_k_SD = slot_k ? nullptr : grad.k.head(head),
      .grad_v_SE = slot_k ? nullptr : grad.v.head(head),
      .grad_keys_KD = slot_k,
      .grad_values_KE = slot_v,
      .dropout = in.dropout,
      .first_row = static_cast<uint64_t>(head * in.N),
      .scratch = scratch};
}

// Add the gradients of all clusters' top keys to the keys' rows, where threads share heads. As many heads at a time as
// there are threads: exact(head, c, slot_k, slot_v, scratch) writes the gradients of a cluster's K keys to buffers,
// then blocks of keys add them in the order of the clusters, as if each cluster added its own.
template <class T, class Exact>
void add_top_gradients(
    const Heads<T>& in, int64_t K, const int32_t* top_CK, const std::vector<int32_t>& top_count_C, int64_t bytes,
    const HeadOutput<T>& grad_k, const HeadOutput<T>& grad_v, const Exact& exact) {
  const int64_t C = in.C, D = in.D, E = in.E;
  const int64_t wave = std::min<int64_t>(in.heads, torch::stable::get_num_threads());
  Buffer<T> grad_keys(wave * C * kernels<T>().padded(K) * in.padded_D);
  Buffer<T> grad_values(wave * C * kernels<T>().padded(K) * in.padded_E);
  for (int64_t first = 0; first < in.heads; first += wave) {
    const int64_t heads = std::min(wave, in.heads - first);
    parallel_with_scratch(heads * C, bytes, [&](int64_t task, char* scratch) {
      exact(
          first + task / C, task % C, grad_keys + task * K * in.padded_D, grad_values + task * K * in.padded_E,
          scratch);
    });
    parallel(heads * in.blocks, [&](int64_t task) {
      const int64_t head = first + task / in.blocks, start = task % in.blocks * in.block_keys(head);
      for (int64_t c = 0; c < C; ++c) {
        if (in.members(head, c) == 0) continue;
        const int32_t* positions = top_CK + (head * C + c) * K;
        const int32_t* end = positions + top_count_C[head * C + c];
        const int64_t slot = (task / in.blocks * C + c) * K;
        for (const int32_t* at = std::lower_bound(positions, end, start); at < end && *at < start + in.block_keys(head);
             ++at) {
          const T* from_k = grad_keys + (slot + (at - positions)) * in.padded_D;
          const T* from_v = grad_values + (slot + (at - positions)) * in.padded_E;
          T* to_k = grad_k.head(head) + *at * D;
          T* to_v = grad_v.head(head) + *at * E;
          for (int64_t d = 0; d < D; ++d) to_k[d] += from_k[d];
          for (int64_t e = 0; e < E; ++e) to_v[e] += from_v[e];
        }
      }
    });
  }
}

}  // namespace
}  // namespace attention_ext
