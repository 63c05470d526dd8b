// Attention with an exact near field and a far field by centroids on CUDA: the softmax of each query, and launches.
#include "cuda_backward.h"

namespace attention_ext {
namespace {

// Replace the scores of each query, in the band and on its cluster's top keys, by weights after dropout; write its
// softmax and the factor of its cluster's far sums, [heads, N]. One warp per query, in sorted order; zeros at padding.
// Grid (blocks of 8 queries, heads).
__global__ void __launch_bounds__(threads) near_softmax(
    CudaShape shape, NearShape near, int64_t first_head, int64_t heads, Dropout dropout, const int32_t* top,
    TileSums far, float* band, float* top_scores, float* softmax, float* factors) {
  __shared__ float part[threads];
  const int lane = threadIdx.x % 32;
  const int64_t local = blockIdx.y, head = first_head + local,
                i = static_cast<int64_t>(blockIdx.x) * (threads / 32) + threadIdx.x / 32;
  const int64_t n = length_of(shape.key_length_B, head, shape.H, shape.S);
  const bool used = i < shape.starts[head * (shape.C + 2) + shape.C];
  const int64_t query = i < shape.N ? shape.order[head * shape.N + i] : 0, number = query / tile;
  const int64_t c = used ? shape.groups[head * shape.N + query] : 0, code = head * shape.N + query;
  const int64_t at = (local * near.tiles + number) * shape.C + c, key0 = near.first_key(number);
  const int64_t first = key0 < 0 ? -key0 : 0, end = !used ? first : n - key0 < near.band ? n - key0 : near.band;
  const int32_t* chosen = top + (head * shape.C + c) * shape.K;
  float* score = band + (local * shape.N + query) * near.band;
  float* top_score = top_scores + (local * shape.N + i) * shape.K;

  float highest = used ? far.highest[at] : 0.0f, sum = 0;
  for (int64_t s = first + lane; s < end; s += 32) highest = fmaxf(highest, score[s]);
  for (int j = lane; used && j < shape.K; j += 32)
    if (chosen[j] >= 0) highest = fmaxf(highest, top_score[j]);
  highest = group_maximum<32>(highest, part);
  for (int64_t s = first + lane; s < end; s += 32) sum += expf(score[s] - highest);
  for (int j = lane; used && j < shape.K; j += 32)
    if (chosen[j] >= 0) sum += expf(top_score[j] - highest);
  sum = group_sum<32>(sum, part);
  if (!used) {
    if (lane == 0 && i < shape.N)
      softmax[2 * head * shape.N + query] = softmax[(2 * head + 1) * shape.N + query] = 0.0f;
    return;
  }
  const float factor = expf(far.highest[at] - highest), inverse = 1.0f / (sum + factor * far.sums[at]);
  for (int64_t s = first + lane; s < end; s += 32) {
    const int64_t key = key0 + s;
    const int64_t row = near.sees(query, key) ? code : heads * shape.N + head * shape.C + c;
    score[s] = expf(score[s] - highest) * inverse * keep_factor(dropout, row, key);
  }
  for (int j = lane; j < shape.K; j += 32)
    top_score[j] =
        chosen[j] < 0 ? 0.0f : expf(top_score[j] - highest) * inverse * keep_factor(dropout, code, chosen[j]);
  if (lane != 0) return;
  softmax[2 * head * shape.N + query] = highest;
  softmax[(2 * head + 1) * shape.N + query] = inverse;
  factors[local * shape.N + query] = factor * inverse;
}

// Sums of each tile and of the tiles far from it, of a wave of heads.
struct SumBuffers {
  Tensor highest, sums, rows;
  static int64_t floats(const CudaShape& shape, const NearShape& near, int64_t size) {
    return near.tiles * shape.C * (size + 2);
  }
  SumBuffers(const Tensor& like, int64_t wave, const CudaShape& shape, const NearShape& near, int64_t size)
      : highest(new_tensor(like, {wave, near.tiles, shape.C}, ScalarType::Float)),
        sums(new_tensor(like, {wave, near.tiles, shape.C}, ScalarType::Float)),
        rows(new_tensor(like, {wave, near.tiles, shape.C, size}, ScalarType::Float)) {}
  TileSums view() const { return {data_of<float>(highest), data_of<float>(sums), data_of<float>(rows)}; }
};

// Sum over the far tiles of each tile.
void sum_far(
    const Launcher& launch, const CudaShape& shape, const NearShape& near, int64_t first, int64_t count,
    const SumBuffers& tiles, const SumBuffers& far, float* total) {
  const int64_t C = shape.C, size = shape.E;
  launch("find_far_tops", find_far_tops, C, count, 1, shape, near, first, tiles.view(), far.view(), total);
  launch(
      "sum_far_tiles", sum_far_tiles, ceil_div(C * (size + 1), far_columns), count, 1, shape, near, first, size,
      tiles.view(), far.view());
}

// Keeps no scores for backward.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> near_attention(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& groups, const Tensor& lengths, int64_t clusters,
    int64_t topk, int64_t window, double dropout, const std::optional<Tensor>& seed, bool) {
  check_near(q, k, v, groups, lengths, clusters, window, dropout, seed);
  check_topk(topk);
  const CudaHeads in(q, k, v, groups, lengths, lengths, clusters, topk, dropout, seed);
  const CudaShape& shape = in.shape;
  const NearShape near(shape, window);
  const int64_t B = in.B, H = shape.H, N = shape.N, C = shape.C, E = shape.E, K = shape.K;
  const Tensor out = new_tensor(q, {B, H, N, E}, q.scalar_type());
  const Tensor softmax = new_tensor(q, {B, H, 2, N}, ScalarType::Float);
  const Tensor far = new_tensor(q, {B, H, 2, C}, ScalarType::Float);
  const Tensor top = new_tensor(q, {B, H, C, K}, ScalarType::Int);
  int32_t* top_CK = data_of<int32_t>(top);

  const Launcher launch(q);
  const int64_t wave =
      heads_at_a_time(in, C * N + N * (near.band + K + E + 1) + 2 * SumBuffers::floats(shape, near, E));
  const auto floats = [&](const std::vector<int64_t>& size) { return new_tensor(q, size, ScalarType::Float); };
  const Tensor scores = floats({wave, C, N}), band = floats({wave, N, near.band}), top_scores = floats({wave, N, K});
  const Tensor factors = floats({wave, N}), rows = floats({wave, N, E});
  const SumBuffers tile_sums(q, wave, shape, near, E), far_sums(q, wave, shape, near, E);
  with_type(q, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const Rows<T> q_rows(in.q_BHND), k_rows(in.k_BHSD), v_rows(in.v_BHSE);
    for (int64_t first = 0; first < in.heads; first += wave) {
      const int64_t count = std::min(wave, in.heads - first);
      launch(
          "centroid_scores", centroid_scores<T>, near.tiles, tiles_of(C), count, shape, first,
          data_of<float>(in.centroids), k_rows, data_of<float>(scores));
      launch("choose_top_keys", choose_top_keys, C, count, 1, shape, first, data_of<float>(scores), top_CK);
      launch(
          "take_out_top_keys", take_out_top_keys, ceil_div(C * K, threads), count, 1, shape, first, top_CK,
          data_of<float>(scores));
      launch(
          "sum_key_tiles", sum_key_tiles<T>, near.tiles * tiles_of(E), tiles_of(C), count, shape, near, first, in.heads,
          dropout_of(in), data_of<float>(scores), v_rows, tile_sums.view());
      sum_far(launch, shape, near, first, count, tile_sums, far_sums, data_of<float>(far));
      launch(
          "exact_products", exact_products<T, false>, in.query_tiles, tiles_of(K), count, shape, first, top_CK, q_rows,
          k_rows, v_rows, v_rows, data_of<float>(top_scores), nullptr);
      launch(
          "band_products", band_products<T, false>, near.tiles, near.band / tile, count, shape, near, first, in.heads,
          dropout_of(in), data_of<float>(scores), q_rows, k_rows, v_rows, v_rows, QuerySoftmax{}, data_of<float>(band),
          nullptr);
      launch(
          "near_softmax", near_softmax, ceil_div(N, threads / 32), count, 1, shape, near, first, in.heads,
          dropout_of(in), top_CK, far_sums.view(), data_of<float>(band), data_of<float>(top_scores),
          data_of<float>(softmax), data_of<float>(factors));
      launch(
          "band_rows", band_rows<T, false>, near.tiles, tiles_of(E), count, shape, near, first, data_of<float>(band),
          v_rows, E, data_of<float>(factors), data_of<float>(far_sums.rows), data_of<float>(rows));
      launch(
          "exact_rows", exact_rows<T>, in.query_tiles, tiles_of(E), count, shape, first, top_CK,
          data_of<float>(top_scores), v_rows, E, data_of<float>(rows), true, data_of<T>(out));
    }
  });
  return {out, softmax, far, top, new_tensor(q, {B, H, 0}, ScalarType::Float)};
}

std::tuple<Tensor, Tensor, Tensor> near_attention_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& groups, const Tensor& lengths,
    int64_t clusters, int64_t window, double dropout, const std::optional<Tensor>& seed, const Tensor& out,
    const Tensor& softmax, const Tensor& far, const Tensor& top, const Tensor& kept) {
  check_near(q, k, v, groups, lengths, clusters, window, dropout, seed);
  check_grad(grad, q, v);
  check_near_saved(q, v, clusters, ScalarType::Float, out, softmax, far, top);
  const CudaHeads in(q, k, v, groups, lengths, lengths, clusters, top.size(3), dropout, seed);
  const CudaShape& shape = in.shape;
  const NearShape near(shape, window);
  const int64_t B = in.B, H = shape.H, N = shape.N, C = shape.C, D = shape.D, E = shape.E, K = shape.K;
  check_saved(kept, {B, H, 0}, ScalarType::Float, q, "kept");
  const ScalarType type = q.scalar_type();
  const Tensor grad_q = new_tensor(q, {B, H, N, D}, type);
  const Tensor grad_k = new_tensor(q, {B, H, N, D}, type);
  const Tensor grad_v = new_tensor(q, {B, H, N, E}, type);
  const Tensor grad_rows = with_contiguous_rows(as_type(grad, type));

  const Launcher launch(q);
  const auto floats = [&](const std::vector<int64_t>& size) { return new_tensor(q, size, ScalarType::Float); };
  const Tensor delta = floats({in.heads, N}), shares = floats({in.heads, C, D});
  const Tensor checked_top = new_tensor(q, {B, H, C, K}, ScalarType::Int);
  const int32_t* top_CK = data_of<int32_t>(checked_top);
  launch(
      "check_top", check_top, ceil_div(in.heads * C * K, threads), 1, 1, in.heads * C * K, N,
      static_cast<const int32_t*>(top.const_data_ptr()), data_of<int32_t>(checked_top));
  const QuerySoftmax query_softmax{
      .softmax_N = static_cast<const float*>(softmax.const_data_ptr()), .delta_N = data_of<float>(delta), .N = N};

  const int64_t splits = most_splits_of(N);
  const int64_t wave = heads_at_a_time(
      in, C * (2 * N + splits * D) + 2 * N * (near.band + K + D) + N * E + TopKeyGradients::floats(shape) +
              2 * SumBuffers::floats(shape, near, E));
  const Tensor weights = floats({wave, C, N}), slopes = floats({wave, C, N}), parts = floats({wave, splits, C, D});
  const Tensor band = floats({wave, N, near.band}), band_slopes = floats({wave, N, near.band});
  const Tensor top_weights = floats({wave, N, K}), top_grads = floats({wave, N, K});
  const Tensor key_sums = floats({wave, N, D}), value_sums = floats({wave, N, E}), query_sums = floats({wave, N, D});
  const TopKeyGradients top_gradients(q, wave, shape);
  const SumBuffers tile_sums(q, wave, shape, near, E), far_sums(q, wave, shape, near, E);
  with_type(q, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const Rows<T> q_rows(in.q_BHND), k_rows(in.k_BHSD), v_rows(in.v_BHSE), g_rows(grad_rows);
    launch(
        "query_deltas", query_deltas<T>, ceil_div(N, threads / 32), in.heads, 1, shape, g_rows, Rows<T>(out),
        data_of<float>(delta));
    for (int64_t first = 0; first < in.heads; first += wave) {
      const int64_t count = std::min(wave, in.heads - first);
      launch(
          "centroid_scores", centroid_scores<T>, near.tiles, tiles_of(C), count, shape, first,
          data_of<float>(in.centroids), k_rows, data_of<float>(weights));
      launch(
          "take_out_top_keys", take_out_top_keys, ceil_div(C * K, threads), count, 1, shape, first, top_CK,
          data_of<float>(weights));
      launch(
          "sum_query_tiles", sum_query_tiles<T>, near.tiles, count, 1, shape, near, first, query_softmax, g_rows,
          tile_sums.view());
      sum_far(launch, shape, near, first, count, tile_sums, far_sums, nullptr);
      launch(
          "band_products", band_products<T, true>, near.tiles, near.band / tile, count, shape, near, first, in.heads,
          dropout_of(in), data_of<float>(weights), q_rows, k_rows, v_rows, g_rows, query_softmax, data_of<float>(band),
          data_of<float>(band_slopes));
      launch(
          "far_slopes", far_slopes<T>, near.tiles, tiles_of(C), count, shape, near, first, in.heads, dropout_of(in),
          far_sums.view(), v_rows, data_of<float>(weights), data_of<float>(slopes));
      launch(
          "add_band_slopes", add_band_slopes, near.tiles, ceil_div(C, slope_clusters), count, shape, near, first,
          data_of<float>(band_slopes), data_of<float>(slopes));
      launch(
          "near_key_gradients", near_key_gradients<T>, near.tiles, tiles_of(E) + tiles_of(D), count, shape, near, first,
          data_of<float>(weights), data_of<float>(slopes), data_of<float>(band), data_of<float>(band_slopes),
          data_of<float>(far_sums.rows), data_of<float>(in.centroids), q_rows, g_rows, data_of<float>(value_sums),
          data_of<float>(key_sums));
      launch(
          "weigh_keys", weigh_keys<T>, splits * tiles_of(D), tiles_of(C), count, shape, first, splits,
          data_of<float>(slopes), k_rows, D, data_of<float>(parts));
      launch(
          "sum_parts", sum_parts, ceil_div(C * D, threads), count, 1, shape, first, splits, D, true,
          data_of<float>(parts), data_of<float>(shares));
      launch(
          "band_rows", band_rows<T, true>, near.tiles, tiles_of(D), count, shape, near, first,
          data_of<float>(band_slopes), k_rows, D, nullptr, data_of<float>(shares), data_of<float>(query_sums));
      launch(
          "exact_products", exact_products<T, true>, in.query_tiles, tiles_of(K), count, shape, first, top_CK, q_rows,
          k_rows, v_rows, g_rows, data_of<float>(top_weights), data_of<float>(top_grads));
      launch(
          "top_slopes", top_slopes, ceil_div(N * K, threads), count, 1, shape, first, dropout_of(in), top_CK,
          query_softmax, data_of<float>(top_weights), data_of<float>(top_grads));
      launch(
          "exact_rows", exact_rows<T>, in.query_tiles, tiles_of(D), count, shape, first, top_CK,
          data_of<float>(top_grads), k_rows, D, data_of<float>(query_sums), true, data_of<T>(grad_q));
      top_gradients.finish<T>(
          in, first, count, top_CK, top_grads, top_weights, q_rows, g_rows, key_sums, value_sums, grad_k, grad_v);
    }
  });
  return {grad_q, grad_k, grad_v};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(attention_ext, ATTENTION_EXT_DEVICE, library) {
  library.impl("near_attention", TORCH_BOX(&near_attention));
  library.impl("near_attention_backward", TORCH_BOX(&near_attention_backward));
}

}  // namespace attention_ext
