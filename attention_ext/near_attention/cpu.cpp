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
  Buffer<T> centroids_CD;

  Near(const Heads<T>& heads, int64_t window_)
      : in(heads),
        window(std::min(window_, heads.N)),
        block(std::max<int64_t>(256, 2 * window)),
        blocks((heads.N + block - 1) / block),
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
        .window = window,
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
  const Tensor out = new_tensor(like, {in.B, in.H, N, E}, in.type);
  const Tensor softmax = new_tensor(like, {in.B, in.H, 2, N}, in.type);
  const Tensor far = new_tensor(like, {in.B, in.H, 2, C}, in.type);
  const Tensor top = new_tensor(like, {in.B, in.H, C, K}, ScalarType::Int);
  T *const out_NE = data_of<T>(out), *const softmax_N = data_of<T>(softmax), *const far_C = data_of<T>(far);
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
  in.for_heads([&](HeadRange range) {
    const Buffer<T> scores(stores ? N * in.padded_C : 0);
    dense.compute(in, range, stores ? scores + 0 : nullptr);
    near.copy_centroids(range);
    parallel_with_scratch(
        range.first * C, range.end * C, in.kernel.exact_scratch(D, E, K), [&](int64_t task, char* scratch) {
          const int64_t head = task / C, b = head / in.H, h = head % in.H, members = in.members(head, task % C);
          const int64_t count = count_top(K, top_CK + task * K);
          T *rows = out_NE + head * N * E, *maximum = softmax_N + 2 * head * N;
          const int32_t* order = in.members_of(head, task % C);
          if (count == 0)
            for (int64_t i = 0; i < members; ++i) {
              std::fill_n(rows + order[i] * E, E, T(0));
              maximum[order[i]] = std::numeric_limits<T>::lowest(), maximum[N + order[i]] = 0;
            }
          if (count == 0 || members == 0) return;
          in.kernel.exact(
              {.members = members,
               .D = D,
               .E = E,
               .K = count,
               .order = order,
               .top = top_CK + task * K,
               .q = in.q.head(b, h),
               .k = in.k.head(b, h),
               .v = in.v.head(b, h),
               .stride_q = in.q.stride_n,
               .stride_k = in.k.stride_n,
               .stride_v = in.v.stride_n,
               .scale = in.scale,
               .out_NE = rows,
               .maximum_N = maximum,
               .sum_N = maximum + N,
               .dropout = in.dropout,
               .first_row = static_cast<uint64_t>(head * N),
               .scratch = scratch});
        });
    const int64_t bytes = in.kernel.near_scratch(D, E, false);
    parallel_with_scratch(range.first * near.blocks, range.end * near.blocks, bytes, [&](int64_t task, char* scratch) {
      const int64_t head = task / near.blocks;
      const BandBlock<T> block = near.part(head, task % near.blocks);
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
           .out_NE = out_NE + head * N * E,
           .scores_NC = stores ? scores + 0 : nullptr,
           .padded_C = in.padded_C,
           .rescued_N = rescued_N + head * N,
           .kept = kept_scores ? kept_scores + task * near.kept_block() : nullptr,
           .scratch = scratch});
    });
    parallel_with_scratch(range.first * C, range.end * C, near.rescue_bytes(), [&](int64_t task, char* scratch) {
      const int64_t head = task / C;
      const std::vector<int32_t> queries = near.rescued(head, task % C, rescued_N);
      if (queries.empty()) return;
      RescueTask<T> rescue = near.rescue(head, task % C, queries, K, top_CK, scratch);
      rescue.maximum_N = softmax_N + 2 * head * N;
      rescue.sum_N = softmax_N + (2 * head + 1) * N;
      rescue.out_NE = out_NE + head * N * E;
      in.kernel.rescue(rescue);
    });
    zero_padding(in, range, E, out_NE);
  });
  return {as_type(out, like.scalar_type()), softmax, far, top, kept};
}

template <class T>
std::tuple<Tensor, Tensor, Tensor> backward(
    const Heads<T>& in, int64_t window, const Tensor& like, const Tensor& grad, const Tensor& softmax,
    const Tensor& far, const Tensor& top, const Tensor& kept, const Tensor& out) {
  const int64_t C = in.C, D = in.D, E = in.E, N = in.N, K = top.size(3);
  const Tensor grad_q = new_tensor(like, {in.B, in.H, N, D}, in.type);
  const Tensor grad_k = new_tensor(like, {in.B, in.H, N, D}, in.type);
  const Tensor grad_v = new_tensor(like, {in.B, in.H, N, E}, in.type);
  const Tensor grad_rows = with_contiguous_rows(as_type(grad, in.type));
  const Tensor out_rows = with_contiguous_rows(as_type(out, in.type));
  const View<T> g(grad_rows), o(out_rows);
  const int32_t* top_CK = data_of<int32_t>(top);
  const std::vector<int32_t> top_count_C = checked_top_counts(in, K, top_CK);
  const T *softmax_N = data_of<T>(softmax), *far_C = data_of<T>(far);
  T *const grad_q_ND = data_of<T>(grad_q), *const grad_k_ND = data_of<T>(grad_k), *const grad_v_NE = data_of<T>(grad_v);

  const Near<T> near(in, window);
  const DenseGradients<T> dense(in);
  const bool keeps = !(kept.dim() == 3 && kept.size(2) == 0);
  check_saved(kept, {in.B, in.H, keeps ? near.kept_head() : 0}, in.type, like, "kept");
  const T* kept_scores = keeps ? static_cast<const T*>(kept.const_data_ptr()) : nullptr;
  const Buffer<T> delta_N(in.heads * N), share_N(in.heads * N);  // δ; a far key's part of the softmax, in sorted order
  const Buffer<uint8_t> rescued_N(in.heads * N);
  const Buffer<T> grad_centroid_ND(in.heads * N * in.padded_D);

  // The far keys, from G and δ of all members, each times exp(far maximum) / Z.
  const auto far_part = [&](HeadRange range) {
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
    dense.pass(in, range, K, far_C, nullptr, top_CK, top_count_C.data(), nullptr, grad_k_ND, grad_v_NE);
    near.copy_centroids(range);
  };
  const auto window_part = [&](int64_t head, int64_t number, char* scratch) {
    const BandBlock<T> block = near.part(head, number);
    if (block.first >= block.end) return;
    const T* maximum = softmax_N + 2 * head * N;
    in.kernel.near_backward(
        {.block = block,
         .C = C,
         .K = K,
         .groups_N = in.groups_of(head),
         .centroids_CD = near.centroids_CD + head * C * in.padded_D,
         .top_CK = top_CK + head * C * K,
         .rows_C = in.row_codes(head),
         .grad = g.head(head / in.H, head % in.H),
         .stride_grad = g.stride_n,
         .maximum_N = maximum,
         .inverse_sum_N = maximum + N,
         .delta_N = delta_N + head * N,
         .rescued_N = rescued_N + head * N,
         .grad_q_ND = grad_q_ND + head * N * D,
         .grad_k_ND = grad_k_ND + head * N * D,
         .grad_v_NE = grad_v_NE + head * N * E,
         .grad_centroid_ND = grad_centroid_ND + head * N * in.padded_D,
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
      rescue.grad_q_ND = grad_q_ND + head * N * D;
      rescue.grad_k_ND = grad_k_ND + head * N * D;
      rescue.grad_v_NE = grad_v_NE + head * N * E;
      rescue.grad_centroid_D = dense.centroid_CD + (head * C + c) * in.padded_D;
      in.kernel.rescue_backward(rescue);
    }
  };
  // Each member's share of its centroid's gradient.
  const auto share_part = [&](HeadRange range) {
    parallel(range.first * C, range.end * C, [&](int64_t task) {
      const int64_t head = task / C, members = in.members(head, task % C);
      const int32_t* member = in.members_of(head, task % C);
      T *sum = dense.centroid_CD + task * in.padded_D, *rows = grad_q_ND + head * N * D;
      in.kernel.sum_rows(
          members, in.padded_D, member, grad_centroid_ND + head * N * in.padded_D, in.padded_D, nullptr, sum);
      for (int64_t d = 0; d < D; ++d) sum[d] /= static_cast<T>(std::max<int64_t>(members, 1));
      for (int64_t i = 0; i < members; ++i)
        for (int64_t d = 0; d < D; ++d) rows[member[i] * D + d] += sum[d];
    });
  };
  // The top keys of one cluster. Their gradients are added to their rows or, given a slot, written there.
  const auto top_part = [&](int64_t head, int64_t c, T* slot_k, T* slot_v, char* scratch) {
    const int64_t b = head / in.H, h = head % in.H;
    const int64_t members = in.members(head, c), count = top_count_C[head * C + c];
    if (count == 0 || members == 0) return;
    const T* maximum = softmax_N + 2 * head * N;
    in.kernel.exact_backward(
        {.members = members,
         .D = D,
         .E = E,
         .K = count,
         .order = in.members_of(head, c),
         .top = top_CK + (head * C + c) * K,
         .q = in.q.head(b, h),
         .k = in.k.head(b, h),
         .v = in.v.head(b, h),
         .grad = g.head(b, h),
         .stride_q = in.q.stride_n,
         .stride_k = in.k.stride_n,
         .stride_v = in.v.stride_n,
         .stride_grad = g.stride_n,
         .scale = in.scale,
         .maximum_N = maximum,
         .inverse_sum_N = maximum + N,
         .delta_N = delta_N + head * N,
         .grad_q_ND = grad_q_ND + head * N * D,
         .grad_k_SD = slot_k ? nullptr : grad_k_ND + head * N * D,
         .grad_v_SE = slot_k ? nullptr : grad_v_NE + head * N * E,
         .grad_keys_KD = slot_k,
         .grad_values_KE = slot_v,
         .dropout = in.dropout,
         .first_row = static_cast<uint64_t>(head * N),
         .scratch = scratch});
  };

  const int64_t window_bytes = in.kernel.near_scratch(D, E, true);
  const int64_t bytes = in.kernel.exact_backward_scratch(D, E, K);
  if (in.by_head()) {
    const int64_t most = std::max(std::max(bytes, window_bytes), near.rescue_bytes());
    parallel_with_scratch(in.heads, most, [&](int64_t head, char* scratch) {
      far_part({head, head + 1});
      for (int64_t turn = 0; turn < 2; ++turn)  // even blocks, then odd ones
        for (int64_t number = turn; number < near.blocks; number += 2) window_part(head, number, scratch);
      rescue_part(head, scratch);
      share_part({head, head + 1});
      for (int64_t c = 0; c < C; ++c) top_part(head, c, nullptr, nullptr, scratch);
    });
  } else {
    far_part({0, in.heads});
    for (int64_t turn = 0; turn < 2; ++turn)
      parallel_with_scratch(in.heads * near.blocks, window_bytes, [&](int64_t task, char* scratch) {
        if (task % near.blocks % 2 == turn) window_part(task / near.blocks, task % near.blocks, scratch);
      });
    parallel_with_scratch(in.heads, near.rescue_bytes(), rescue_part);
    share_part({0, in.heads});
    add_top_gradients(in, K, top_CK, top_count_C, bytes, grad_k_ND, grad_v_NE, top_part);
  }
  zero_padding(in, {0, in.heads}, D, grad_q_ND);
  const ScalarType type = like.scalar_type();
  return {as_type(grad_q, type), as_type(grad_k, type), as_type(grad_v, type)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> near_attention(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& groups, const Tensor& lengths, int64_t clusters,
    int64_t topk, int64_t window, double dropout, const std::optional<Tensor>& seed, bool keep_weights) {
  check_near(q, k, v, groups, lengths, clusters, window, dropout, seed);
  if (topk < 1) fail("topk must be at least 1, found " + std::to_string(topk));
  const auto run = [&](auto type) {
    typedef Heads<decltype(type)> In;
    return forward(In(q, k, v, groups, lengths, lengths, clusters, dropout, seed), topk, window, q, keep_weights);
  };
  return q.scalar_type() == ScalarType::Double ? run(double()) : run(float());
}

std::tuple<Tensor, Tensor, Tensor> near_attention_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& groups, const Tensor& lengths,
    int64_t clusters, int64_t window, double dropout, const std::optional<Tensor>& seed, const Tensor& out,
    const Tensor& softmax, const Tensor& far, const Tensor& top, const Tensor& kept) {
  check_near(q, k, v, groups, lengths, clusters, window, dropout, seed);
  check_grad(grad, q, v);
  check_near_saved(q, v, clusters, sum_type(q.scalar_type()), out, softmax, far, top);
  const auto run = [&](auto type) {
    typedef Heads<decltype(type)> In;
    return backward(
        In(q, k, v, groups, lengths, lengths, clusters, dropout, seed), window, q, grad, softmax, far, top, kept, out);
  };
  return q.scalar_type() == ScalarType::Double ? run(double()) : run(float());
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(attention_ext, CPU, library) {
  library.impl("near_attention", TORCH_BOX(&near_attention));
  library.impl("near_attention_backward", TORCH_BOX(&near_attention_backward));
}

}  // namespace attention_ext
