// Attention with an exact near field and a far field by centroids on the CPU.
#include "../clusters/cpu_dense.h"
#include "../clusters/cpu_top.h"

namespace attention_ext {
namespace {

constexpr int64_t most_stored = 128;  // clusters whose scores a thread stores

// Sizes of the near field, and the centroids in rows.
template <class T>
struct Near {
  const Heads<T>& in;
  int64_t window;
  // A task is a block of queries. Its size depends on the window, so that the bits are the same for an utterance alone,
  // in any batch, and for any number of threads. Two windows, so that every other block touches different keys.
  int64_t block, blocks;
  int64_t spans, span;  // of a head in forward: so many blocks that top keys and windows find rows in the L2 cache
  Buffer<T> centroids_CD;

  Near(const Heads<T>& heads, int64_t window_)
      : in(heads),
        window(std::min(window_, heads.N)),
        block(std::max<int64_t>(256, 2 * window)),
        blocks((heads.N + block - 1) / block),
        spans((blocks * block + 1023) / 1024),
        span((blocks + spans - 1) / std::max<int64_t>(spans, 1)),
        centroids_CD(heads.heads * heads.C * heads.padded_D) {}

  // Numbers that a block of queries, and a head, keeps for backward.
  int64_t kept_block() const { return (block + near_tile - 1) / near_tile * near_kept(window); }
  int64_t kept_head() const { return blocks * kept_block(); }

  // Copy the centroids that `in` has found.
  void copy_centroids(HeadRange range) const {
    parallel(range.first, range.end, [&](int64_t head) {
      const T* from = in.centroids_DC + head * in.D * in.padded_C;
      T* to = centroids_CD + head * in.C * in.padded_D;
      for (int64_t c = 0; c < in.C; ++c)
        for (int64_t d = 0; d < in.padded_D; ++d) to[c * in.padded_D + d] = d < in.D ? from[d * in.padded_C + c] : T(0);
    });
  }

  // One block of a head's queries; may be empty.
  BandBlock<T> part(int64_t head, int64_t number) const {
    const int64_t b = head / in.H, h = head % in.H;
    return {
        .D = in.D,
        .E = in.E,
        .left = window,
        .right = window,
        .chunk = 1,
        .globals = 0,
        .length = in.queries(head),
        .first = number * block,
        .end = std::min((number + 1) * block, in.queries(head)),
        .q = in.q.head(b, h),
        .k = in.k.head(b, h),
        .v = in.v.head(b, h),
        .stride_q = in.q.stride_n,
        .stride_k = in.k.stride_n,
        .stride_v = in.v.stride_n,
        .scale = in.scale,
        .dropout = in.dropout,
        .first_row = static_cast<uint64_t>(head * in.N)};
  }

  // What forward and backward of a cluster's rescued queries have in common.
  RescueTask<T> rescue(
      int64_t head, int64_t c, const std::vector<int32_t>& queries, int64_t K, const int32_t* top_CK,
      char* scratch) const {
    const BandBlock<T> whole = part(head, 0);
    const int32_t* top = top_CK + (head * in.C + c) * K;
    return {
        .count = static_cast<int64_t>(queries.size()),
        .queries = queries.data(),
        .D = in.D,
        .E = in.E,
        .K = count_top(K, top),
        .window = window,
        .length = whole.length,
        .centroid_D = centroids_CD + (head * in.C + c) * in.padded_D,
        .top = top,
        .q = whole.q,
        .k = whole.k,
        .v = whole.v,
        .stride_q = whole.stride_q,
        .stride_k = whole.stride_k,
        .stride_v = whole.stride_v,
        .scale = in.scale,
        .dropout = in.dropout,
        .first_row = whole.first_row,
        .row_code = in.dropout.probability > 0 ? in.row_codes(head)[c] : 0,
        .scratch = reinterpret_cast<T*>(scratch)};
  }

  int64_t rescue_bytes() const { return (in.N + 2 * (in.D + in.E)) * static_cast<int64_t>(sizeof(T)); }

  // A cluster's members that must be rescued.
  std::vector<int32_t> rescued(int64_t head, int64_t c, const Buffer<uint8_t>& rescued_N) const {
    std::vector<int32_t> found;
    const int32_t* member = in.members_of(head, c);
    for (int64_t i = 0; i < in.members(head, c); ++i)
      if (*(rescued_N + head * in.N + member[i])) found.push_back(member[i]);
    return found;
  }
};

template <class T>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> forward(
    const Heads<T>& in, int64_t topk, int64_t window, const Tensor& like, bool keep_weights) {
  const int64_t C = in.C, D = in.D, E = in.E, N = in.N, K = std::min(topk, N);
  const HeadOutput<T> out(like, {in.B, in.H, N, E}, in.type, like.scalar_type());
  const Tensor softmax = new_tensor(like, {in.B, in.H, 2, N}, in.type);
  const Tensor far = new_tensor(like, {in.B, in.H, 2, C}, in.type);
  const Tensor top = new_tensor(like, {in.B, in.H, C, K}, ScalarType::Int);
  T *const softmax_N = data_of<T>(softmax), *const far_C = data_of<T>(far);
  int32_t* const top_CK = data_of<int32_t>(top);
  std::fill_n(softmax_N, in.heads * 2 * N, T(0));
  const Buffer<T> values_CE(in.heads * C * E);
  const Buffer<uint8_t> rescued_N(in.heads * N);
  const DenseResult<T> dense{
      .softmax_C = far_C,
      .values_CE = values_CE + 0,
      .K = K,
      .mass_C = nullptr,
      .top_CK = top_CK,
      .kept = nullptr,
      .apart = true};
  const Near<T> near(in, window);
  const int64_t kept_head = keep_weights ? near.kept_head() : 0;
  const Tensor kept = new_tensor(like, {in.B, in.H, kept_head}, in.type);
  T* const kept_scores = kept_head ? data_of<T>(kept) : nullptr;
  // A thread with a whole head stores its centroids' scores for a moment, which saves a product in every window.
  const bool stores = in.by_head() && C <= most_stored;
  // The top keys of a cluster's members from `first` to `end`.
  const auto top_part = [&](int64_t head, int64_t c, int64_t first, int64_t end, char* scratch) {
    const int32_t* top_K = top_CK + (head * C + c) * K;
    const int64_t count = count_top(K, top_K);
    ExactTask<T> exact = exact_task(in, head, c, count, top_K, out, scratch);
    const int32_t* all_end = exact.order + exact.members;
    exact.order = std::lower_bound(exact.order, all_end, first);
    exact.members = std::lower_bound(exact.order, all_end, end) - exact.order;
    exact.maximum_N = softmax_N + 2 * head * N;
    exact.sum_N = exact.maximum_N + N;
    if (count == 0)
      for (int64_t i = 0; i < exact.members; ++i) {
        std::fill_n(exact.out_NE + exact.order[i] * E, E, T(0));
        exact.maximum_N[exact.order[i]] = std::numeric_limits<T>::lowest(), exact.sum_N[exact.order[i]] = 0;
      }
    if (count > 0 && exact.members > 0) in.kernel.exact(exact);
  };
  const auto window_part = [&](int64_t head, int64_t number, const T* scores_NC, char* scratch) {
    const BandBlock<T> block = near.part(head, number);
    if (block.first >= block.end) return;
    in.kernel.near(
        {.block = block,
         .C = C,
         .K = K,
         .groups_N = in.groups_of(head),
         .centroids_CD = near.centroids_CD + head * C * in.padded_D,
         .top_CK = top_CK + head * C * K,
         .rows_C = in.row_codes(head),
         .far_maximum_C = far_C + 2 * head * C,
         .far_sum_C = far_C + (2 * head + 1) * C,
         .far_values_CE = values_CE + head * C * E,
         .maximum_N = softmax_N + 2 * head * N,
         .sum_N = softmax_N + (2 * head + 1) * N,
         .out_NE = out.head(head),
         .scores_NC = scores_NC,
         .padded_C = in.padded_C,
         .rescued_N = rescued_N + head * N,
         .kept = kept_scores ? kept_scores + (head * near.blocks + number) * near.kept_block() : nullptr,
         .scratch = scratch});
  };
  in.for_heads({&in.q, &in.k, &in.v}, {&out}, [&](HeadRange range) {
    const Buffer<T> scores(stores ? N * in.padded_C : 0);
    dense.compute(in, range, stores ? scores + 0 : nullptr);
    near.copy_centroids(range);
    const int64_t bytes = std::max(in.kernel.exact_scratch(D, E, K), in.kernel.near_scratch(D, E, false));
    parallel_with_scratch(range.first * near.spans, range.end * near.spans, bytes, [&](int64_t task, char* scratch) {
      const int64_t head = task / near.spans, first = task % near.spans * near.span;
      const int64_t end = std::min(first + near.span, near.blocks);
      for (int64_t c = 0; c < C; ++c) top_part(head, c, first * near.block, end * near.block, scratch);
      for (int64_t number = first; number < end; ++number)
        window_part(head, number, stores ? scores + 0 : nullptr, scratch);
    });
    parallel_with_scratch(range.first * C, range.end * C, near.rescue_bytes(), [&](int64_t task, char* scratch) {
      const int64_t head = task / C;
      const std::vector<int32_t> queries = near.rescued(head, task % C, rescued_N);
      if (queries.empty()) return;
      RescueTask<T> rescue = near.rescue(head, task % C, queries, K, top_CK, scratch);
      rescue.maximum_N = softmax_N + 2 * head * N;
      rescue.sum_N = softmax_N + (2 * head + 1) * N;
      rescue.out_NE = out.head(head);
      in.kernel.rescue(rescue);
    });
    zero_padding(in, range, E, out);
  });
  return {out.tensor(), softmax, far, top, kept};
}

template <class T>
std::tuple<Tensor, Tensor, Tensor> backward(
    const Heads<T>& in, int64_t window, const Tensor& like, const Tensor& grad, const Tensor& softmax,
    const Tensor& far, const Tensor& top, const Tensor& kept, const Tensor& out) {
  const int64_t C = in.C, D = in.D, E = in.E, N = in.N, K = top.size(3);
  const Gradients<T> grads(in, grad, like.scalar_type());
  const HeadRows<T>& g = grads.out;
  const HeadRows<T> o(out, in.type, in.query_length_B);
  const int32_t* top_CK = data_of<int32_t>(top);
  const std::vector<int32_t> top_count_C = checked_top_counts(in, K, top_CK);
  const T *softmax_N = data_of<T>(softmax), *far_C = data_of<T>(far);

  const Near<T> near(in, window);
  const DenseGradients<T> dense(in);
  const bool keeps = !(kept.dim() == 3 && kept.size(2) == 0);
  check_saved(kept, {in.B, in.H, keeps ? near.kept_head() : 0}, in.type, like, "kept");
  const T* kept_scores = keeps ? static_cast<const T*>(kept.const_data_ptr()) : nullptr;
  const Buffer<T> delta_N(in.heads * N), share_N(in.heads * N);  // δ; a far key's part of the softmax, in sorted order
  const Buffer<uint8_t> rescued_N(in.heads * N);

  // Sums for the far keys, of G and δ of all members, each times exp(far maximum) / Z.
  const auto member_part = [&](HeadRange range) {
    parallel(range.first * C, range.end * C, [&](int64_t task) {
      const int64_t head = task / C, c = task % C, b = head / in.H, h = head % in.H, members = in.members(head, c);
      const int32_t* member = in.members_of(head, c);
      T *share = share_N + head * N + in.first_member(head, c), *delta = delta_N + head * N;
      const T *maximum = softmax_N + 2 * head * N, *inverse_sum = maximum + N;
      const T highest = far_C[2 * head * C + c], sum = far_C[(2 * head + 1) * C + c];
      T total = 0;
      in.kernel.dot_each(members, E, member, g.head(b, h), g.stride_n, o.head(b, h), o.stride_n, delta);
      for (int64_t i = 0; i < members; ++i) {
        const int32_t n = member[i];
        share[i] = std::exp(highest - maximum[n]) * inverse_sum[n];
        const bool rescued = sum * share[i] > near_least_share;
        *(rescued_N + head * N + n) = rescued;
        if (rescued || sum == 0) share[i] = 0;
        total += share[i] * delta[n];
      }
      (dense.delta_C + head * in.padded_C)[c] = total;
      T* sums = dense.grads_CE + task * in.padded_E;
      std::fill_n(sums, in.padded_E, T(0));
      in.kernel.sum_rows(members, E, member, g.head(b, h), g.stride_n, share, sums);
    });
  };
  const auto find_scores = [&](HeadRange range, T* scores_NC) {
    dense.find_scores(in, range, K, top_CK, top_count_C.data(), scores_NC);
    near.copy_centroids(range);
  };
  const auto far_part = [&](HeadRange range, T* scores_NC, const T* slopes_NC) {
    const int32_t* counts = top_count_C.data();
    dense.pass(in, range, K, far_C, nullptr, top_CK, counts, nullptr, grads.k, grads.v, scores_NC, slopes_NC);
  };
  // The first blocks to run zero the keys that they touch, and half a block on either side is enough for any window.
  const auto zero_keys = [&](int64_t head, const BandBlock<T>& block, bool even) {
    const int64_t half = near.block / 2, length = block.length;
    const int64_t first = even ? std::max<int64_t>(block.first - half, 0) : block.first + half;
    const int64_t end = even ? std::min(block.end + half, length) : block.end == length ? length : first;
    if (first >= end) return;
    std::fill_n(grads.k.head(head) + first * D, (end - first) * D, T(0));
    std::fill_n(grads.v.head(head) + first * E, (end - first) * E, T(0));
  };
  const auto window_part = [&](int64_t head, int64_t number, const T* scores_NC, T* slopes_NC, char* scratch) {
    const BandBlock<T> block = near.part(head, number);
    if (block.first >= block.end) return;
    zero_keys(head, block, number % 2 == 0);
    const T* maximum = softmax_N + 2 * head * N;
    in.kernel.near_backward(
        {.block = block,
         .groups_N = in.groups_of(head),
         .scores_NC = scores_NC,
         .rows_C = in.row_codes(head),
         .grad = g.head(head / in.H, head % in.H),
         .stride_grad = g.stride_n,
         .maximum_N = maximum,
         .inverse_sum_N = maximum + N,
         .delta_N = delta_N + head * N,
         .rescued_N = rescued_N + head * N,
         .grad_q_ND = grads.q.head(head),
         .grad_k_ND = grads.k.head(head),
         .grad_v_NE = grads.v.head(head),
         .slopes_NC = slopes_NC,
         .padded_C = in.padded_C,
         .kept = kept_scores ? kept_scores + (head * near.blocks + number) * near.kept_block() : nullptr,
         .scratch = scratch});
  };
  const auto rescue_part = [&](int64_t head, char* scratch) {
    for (int64_t c = 0; c < C; ++c) {
      const std::vector<int32_t> queries = near.rescued(head, c, rescued_N);
      if (queries.empty()) continue;
      RescueTask<T> rescue = near.rescue(head, c, queries, K, top_CK, scratch);
      // Backward reads these.
      rescue.maximum_N = const_cast<T*>(softmax_N) + 2 * head * N;
      rescue.inverse_sum_N = softmax_N + (2 * head + 1) * N;
      rescue.grad = g.head(head / in.H, head % in.H);
      rescue.stride_grad = g.stride_n;
      rescue.delta_N = delta_N + head * N;
      rescue.grad_q_ND = grads.q.head(head);
      rescue.grad_k_ND = grads.k.head(head);
      rescue.grad_v_NE = grads.v.head(head);
      rescue.grad_centroid_D = dense.centroid_CD + (head * C + c) * in.padded_D;
      in.kernel.rescue_backward(rescue);
    }
  };
  // Each member's share of its cluster's gradient, then the cluster's top keys.
  const auto top_part = [&](int64_t head, int64_t c, T* slot_k, T* slot_v, char* scratch) {
    const int64_t task = head * C + c, count = top_count_C[task];
    ExactBackwardTask<T> exact =
        exact_backward_task(in, grads, head, c, count, top_CK + task * K, slot_k, slot_v, scratch);
    if (exact.members == 0) return;
    T* share = dense.centroid_CD + task * in.padded_D;
    for (int64_t d = 0; d < D; ++d) share[d] /= static_cast<T>(exact.members);
    if (count == 0) {
      for (int64_t i = 0; i < exact.members; ++i)
        for (int64_t d = 0; d < D; ++d) exact.grad_q_ND[exact.order[i] * D + d] += share[d];
      return;
    }
    exact.share_D = share;
    exact.maximum_N = softmax_N + 2 * head * N;
    exact.inverse_sum_N = exact.maximum_N + N;
    exact.delta_N = delta_N + head * N;
    in.kernel.exact_backward(exact);
  };

  const int64_t window_bytes = in.kernel.near_scratch(D, E, true);
  const int64_t bytes = in.kernel.exact_backward_scratch(D, E, K);
  const auto by_head = [&](int64_t head) {
    const HeadRange only{head, head + 1};
    const Buffer<T> scores(N * in.padded_C);
    std::vector<T> slopes(N * in.padded_C);
    const int64_t most = std::max(std::max(bytes, window_bytes), near.rescue_bytes());
    member_part(only);
    find_scores(only, scores + 0);
    parallel_with_scratch(head, head + 1, most, [&](int64_t, char* scratch) {
      for (int64_t turn = 0; turn < 2; ++turn)  // even blocks, then odd ones
        for (int64_t number = turn; number < near.blocks; number += 2)
          window_part(head, number, scores + 0, slopes.data(), scratch);
      far_part(only, scores + 0, slopes.data());
      rescue_part(head, scratch);
      for (int64_t c = 0; c < C; ++c) top_part(head, c, nullptr, nullptr, scratch);
    });
  };
  const auto together = [&](HeadRange all) {
    const int64_t size = N * in.padded_C;
    const Buffer<T> scores(in.heads * size);
    std::vector<T> slopes(in.heads * size);
    member_part(all);
    find_scores(all, scores + 0);
    for (int64_t turn = 0; turn < 2; ++turn)
      parallel_with_scratch(in.heads * near.blocks, window_bytes, [&](int64_t task, char* scratch) {
        const int64_t head = task / near.blocks, number = task % near.blocks;
        if (number % 2 == turn) window_part(head, number, scores + head * size, slopes.data() + head * size, scratch);
      });
    far_part(all, scores + 0, slopes.data());
    parallel_with_scratch(in.heads, near.rescue_bytes(), rescue_part);
    add_top_gradients(in, K, top_CK, top_count_C, bytes, grads.k, grads.v, top_part);
  };
  in.for_heads({&in.q, &in.k, &in.v, &g, &o}, {&grads.q, &grads.k, &grads.v}, [&](HeadRange range) {
    if (in.by_head())
      by_head(range.first);
    else
      together(range);
    zero_padding(in, range, D, grads.q);
  });
  return grads.tensors();
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> near_attention(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& groups, const Tensor& lengths, int64_t clusters,
    int64_t topk, int64_t window, double dropout, const std::optional<Tensor>& seed, bool keep_weights) {
  check_near(q, k, v, groups, lengths, clusters, window, dropout, seed);
  if (topk < 1) fail("topk must be at least 1, found " + std::to_string(topk));
  return with_heads(q, k, v, groups, lengths, lengths, clusters, dropout, seed, [&](const auto& in) {
    return forward(in, topk, window, q, keep_weights);
  });
}

std::tuple<Tensor, Tensor, Tensor> near_attention_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& groups, const Tensor& lengths,
    int64_t clusters, int64_t window, double dropout, const std::optional<Tensor>& seed, const Tensor& out,
    const Tensor& softmax, const Tensor& far, const Tensor& top, const Tensor& kept) {
  check_near(q, k, v, groups, lengths, clusters, window, dropout, seed);
  check_grad(grad, q, v);
  check_near_saved(q, v, clusters, sum_type(q.scalar_type()), out, softmax, far, top);
  return with_heads(q, k, v, groups, lengths, lengths, clusters, dropout, seed, [&](const auto& in) {
    return backward(in, window, q, grad, softmax, far, top, kept, out);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(attention_ext, CPU, library) {
  library.impl("near_attention", TORCH_BOX(&near_attention));
  library.impl("near_attention_backward", TORCH_BOX(&near_attention_backward));
}

}  // namespace attention_ext
