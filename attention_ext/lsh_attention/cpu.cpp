// LSH attention on the CPU.
#include <atomic>
#include <cmath>

#include "../cpu/head_rows.h"

namespace attention_ext {
namespace {

// Places of a task, unless a chunk is larger: keys and values of several chunks are gathered once for all of them.
constexpr int64_t block_places = 256;
constexpr int64_t most_buckets = 65536;

template <class T>
void hash_all(const Tensor& x_BHND, const Tensor& rotations_RDF, const Tensor& lengths, int32_t* buckets_BHRN) {
  const Kernels<T>& kernel = kernels<T>();
  const int64_t B = x_BHND.size(0), H = x_BHND.size(1), N = x_BHND.size(2), D = x_BHND.size(3);
  const int64_t R = rotations_RDF.size(0), F = rotations_RDF.size(2), padded = kernel.padded(F);
  const std::vector<int64_t> length_B = lengths_of(lengths, N, "lengths");
  const double* rotations = static_cast<const double*>(rotations_RDF.const_data_ptr());
  std::vector<T> padded_RDF(R * D * padded, 0), largest_R(R, 0);
  std::vector<double> transposed_RFD(R * F * D);
  for (int64_t r = 0; r < R; ++r)
    for (int64_t d = 0; d < D; ++d)
      for (int64_t f = 0; f < F; ++f) {
        const double rotation = rotations[(r * D + d) * F + f];
        padded_RDF[(r * D + d) * padded + f] = static_cast<T>(rotation);
        largest_R[r] = std::max(largest_R[r], static_cast<T>(std::abs(rotation)));
        transposed_RFD[(r * F + f) * D + d] = rotation;
      }
  // Rows in bfloat16 are converted by block.
  const bool halves = x_BHND.scalar_type() == ScalarType::BFloat16;
  const View<uint16_t> half(x_BHND);
  const View<T> x(x_BHND);
  const int64_t blocks = (N + kernel.bucket_rows - 1) / kernel.bucket_rows;
  const int64_t numbers = kernel.bucket_rows * padded, copied = halves ? kernel.bucket_rows * D : 0;
  const int64_t bytes = (numbers + copied) * static_cast<int64_t>(sizeof(T));
  parallel_with_scratch(B * H * blocks, bytes, [&](int64_t task, char* scratch) {
    const int64_t head = task / blocks, start = task % blocks * kernel.bucket_rows, n = length_B[head / H];
    const int64_t end = std::min(start + kernel.bucket_rows, N), valid = std::max<int64_t>(0, std::min(end, n) - start);
    const int64_t b = head / H, h = head % H;
    T* const copy = reinterpret_cast<T*>(scratch) + numbers;
    if constexpr (sizeof(T) == 4)
      if (halves)
        instruction_set().halves.widen(valid, D, half.head(b, h) + start * half.stride_n, half.stride_n, copy);
    for (int64_t r = 0; r < R; ++r) {
      int32_t* to = buckets_BHRN + (head * R + r) * N + start;
      std::fill_n(to + valid, end - start - valid, static_cast<int32_t>(2 * F));
      if (valid)
        kernel.bucket(
            {.rows = valid,
             .D = D,
             .F = F,
             .x = halves ? copy : x.head(b, h) + start * x.stride_n,
             .stride_x = halves ? D : x.stride_n,
             .rotations_DF = padded_RDF.data() + r * D * padded,
             .largest = largest_R[r],
             .rotations_FD = transposed_RFD.data() + r * F * D,
             .buckets = to,
             .scratch = reinterpret_cast<T*>(scratch)});
    }
  });
}

// Inputs of one call, checked by check_lsh. Heads are numbered b · H + h.
template <class T>
struct Rounds {
  static constexpr ScalarType type = sizeof(T) == 8 ? ScalarType::Double : ScalarType::Float;

  const Kernels<T>& kernel = kernels<T>();
  int64_t B, H, N, D, E, R, heads, chunk;
  // Blocks depend on the chunk size alone: the bits are the same for an utterance alone, in any batch, and for any
  // number of threads.
  int64_t block, blocks;
  T scale;
  std::vector<int64_t> length_B;
  HeadRows<T> q, k, v;
  Dropout dropout;
  const int32_t* order;  // [heads, R, N]: positions in sorted order

  Rounds(
      const Tensor& q_, const Tensor& k_, const Tensor& v_, const Tensor& lengths, const Tensor& order_, int64_t chunk_,
      double dropout_probability, const std::optional<Tensor>& seed)
      : B(q_.size(0)),
        H(q_.size(1)),
        N(q_.size(2)),
        D(q_.size(3)),
        E(v_.size(3)),
        R(order_.size(2)),
        heads(B * H),
        chunk(std::max<int64_t>(1, std::min(chunk_, N))),
        block(std::max<int64_t>(1, block_places / chunk) * chunk),
        blocks((N + block - 1) / block),
        scale(static_cast<T>(1 / std::sqrt(static_cast<double>(D)))),
        length_B(lengths_of(lengths, N, "lengths")),
        q(q_, type, length_B),
        k(k_, type, length_B),
        v(v_, type, length_B),
        dropout(dropout_of(dropout_probability, seed)),
        order(data_of<int32_t>(order_)) {}

  int64_t length(int64_t head) const { return length_B[head / H]; }

  int64_t scratch(bool backward) const { return kernel.window_scratch(block + chunk, 2 * chunk, R, D, E, backward); }

  // Chunk of each position in each round, [heads, R, N]; none for a single round.
  Buffer<int32_t> chunks_of(HeadRange range) const {
    Buffer<int32_t> chunks(R > 1 ? range.count() * R * N : 0, range.first * R * N);
    if (R > 1)
      parallel(range.first * R, range.end * R, [&](int64_t task) {
        const int32_t* position = order + task * N;
        for (int64_t place = 0; place < length(task / R); ++place)
          (chunks + task * N)[position[place]] = static_cast<int32_t>(place / chunk);
      });
    return chunks;
  }

  // The block of task head · blocks + block in one round; may be empty.
  WindowBlock<T> part(int64_t task, int64_t round, const Buffer<int32_t>& chunks) const {
    const int64_t head = task / blocks, first = task % blocks * block, b = head / H, h = head % H;
    return {
        .chunk = chunk,
        .R = R,
        .round = round,
        .D = D,
        .E = E,
        .first = first,
        .end = std::min(first + block, length(head)),
        .order = order + (head * R + round) * N,
        .chunk_RN = R > 1 ? chunks + head * R * N : nullptr,
        .stride_chunk = N,
        .q = q.head(b, h),
        .k = k.head(b, h),
        .v = v.head(b, h),
        .stride_q = q.stride_n,
        .stride_k = k.stride_n,
        .stride_v = v.stride_n,
        .scale = scale,
        .dropout = dropout,
        .first_row = static_cast<uint64_t>(head * N)};
  }

  void zero_padding(HeadRange range, int64_t size, const HeadOutput<T>& rows) const {
    parallel(range.first, range.end, [&](int64_t head) {
      std::fill_n(rows.head(head) + length(head) * size, (N - length(head)) * size, T(0));
    });
  }
};

// Positions of each head and round sorted by (bucket, position), [B, H, R, N]; padding last.
Tensor sorted_positions(const Tensor& buckets, const Tensor& lengths) {
  const int64_t B = buckets.size(0), H = buckets.size(1), R = buckets.size(2), N = buckets.size(3);
  const std::vector<int64_t> length_B = lengths_of(lengths, N, "lengths");
  const Tensor integers = contiguous_as(buckets, ScalarType::Int);
  const Tensor order = new_tensor(buckets, {B, H, R, N}, ScalarType::Int);
  std::atomic<bool> valid{true};
  parallel(B * H * R, [&](int64_t task) {
    const int64_t n = length_B[task / (H * R)];
    const int32_t* bucket = static_cast<const int32_t*>(integers.const_data_ptr()) + task * N;
    int32_t* to = data_of<int32_t>(order) + task * N;
    std::vector<int32_t> next;
    for (int64_t i = 0; i < n; ++i) {
      if (bucket[i] < 0 || bucket[i] >= most_buckets) {
        valid = false;
        return;
      }
      if (bucket[i] + 2 > static_cast<int64_t>(next.size())) next.resize(bucket[i] + 2);
      ++next[bucket[i] + 1];
    }
    for (size_t i = 1; i < next.size(); ++i) next[i] += next[i - 1];
    for (int64_t i = 0; i < n; ++i) to[next[bucket[i]]++] = static_cast<int32_t>(i);
    for (int64_t i = n; i < N; ++i) to[i] = static_cast<int32_t>(i);
  });
  require(valid, "buckets must lie in 0 … 65535 at valid positions");
  return order;
}

template <class T>
std::tuple<Tensor, Tensor, Tensor> forward(const Rounds<T>& in, const Tensor& like, const Tensor& order) {
  const HeadOutput<T> out(like, {in.B, in.H, in.N, in.E}, in.type, like.scalar_type());
  const Tensor softmax = new_tensor(like, {in.B, in.H, 2, in.N}, in.type);
  std::fill_n(data_of<T>(softmax), in.heads * 2 * in.N, T(0));
  for_heads<T>(in.heads, {&in.q, &in.k, &in.v}, {&out}, [&](HeadRange range) {
    const Buffer<int32_t> chunks = in.chunks_of(range);
    const int64_t first = range.first * in.blocks, end = range.end * in.blocks;
    for (int64_t round = 0; round < in.R; ++round)
      parallel_with_scratch(first, end, in.scratch(false), [&](int64_t task, char* scratch) {
        const WindowBlock<T> block = in.part(task, round, chunks);
        if (block.first >= block.end) return;
        const int64_t head = task / in.blocks;
        T* maximum = data_of<T>(softmax) + 2 * head * in.N;
        in.kernel.window(
            {.block = block,
             .maximum_N = maximum,
             .sum_N = maximum + in.N,
             .out_NE = out.head(head),
             .scratch = scratch});
      });
    in.zero_padding(range, in.E, out);
  });
  return {out.tensor(), softmax, order};
}

template <class T>
std::tuple<Tensor, Tensor, Tensor> backward(
    const Rounds<T>& in, const Tensor& like, const Tensor& grad, const Tensor& out, const Tensor& softmax) {
  const int64_t N = in.N, D = in.D, E = in.E, padded_D = in.kernel.padded(D), padded_E = in.kernel.padded(E);
  const auto gradient = [&](int64_t size) {
    return HeadOutput<T>(like, {in.B, in.H, N, size}, in.type, like.scalar_type());
  };
  const HeadOutput<T> grad_q = gradient(D), grad_k = gradient(D), grad_v = gradient(E);
  const HeadRows<T> g(grad, in.type, in.length_B), o(out, in.type, in.length_B);

  for_heads<T>(in.heads, {&in.q, &in.k, &in.v, &g, &o}, {&grad_q, &grad_k, &grad_v}, [&](HeadRange range) {
    const Buffer<int32_t> chunks = in.chunks_of(range);
    const int64_t first = range.first * in.blocks, end = range.end * in.blocks;
    const Buffer<T> delta(range.count() * N, range.first * N);
    parallel(first, end, [&](int64_t task) {
      const int64_t head = task / in.blocks, b = head / in.H, h = head % in.H;
      const int64_t start = task % in.blocks * in.block, stop = std::min(start + in.block, in.length(head));
      for (int32_t i = static_cast<int32_t>(start); i < stop; ++i)
        *(delta + head * N + i) = in.kernel.dot_rows(1, E, &i, g.head(b, h), g.stride_n, o.head(b, h), o.stride_n);
    });

    // Gradients of keys in the preceding block are added once all blocks are done.
    const auto spill = [&](int64_t padded) {
      return Buffer<T>((end - first) * in.chunk * padded, first * in.chunk * padded);
    };
    const Buffer<T> spill_keys = spill(padded_D), spill_values = spill(padded_E);
    for (int64_t round = 0; round < in.R; ++round) {
      parallel_with_scratch(first, end, in.scratch(true), [&](int64_t task, char* scratch) {
        const WindowBlock<T> block = in.part(task, round, chunks);
        if (block.first >= block.end) return;
        const int64_t head = task / in.blocks;
        const T* maximum = data_of<T>(softmax) + 2 * head * N;
        in.kernel.window_backward(
            {.block = block,
             .grad = g.head(head / in.H, head % in.H),
             .stride_grad = g.stride_n,
             .maximum_N = maximum,
             .inverse_sum_N = maximum + N,
             .delta_N = delta + head * N,
             .grad_q_ND = grad_q.head(head),
             .grad_k_ND = grad_k.head(head),
             .grad_v_NE = grad_v.head(head),
             .spill_keys = spill_keys + task * in.chunk * padded_D,
             .spill_values = spill_values + task * in.chunk * padded_E,
             .scratch = scratch});
      });
      parallel(first, end, [&](int64_t task) {
        const WindowBlock<T> block = in.part(task, round, chunks);
        if (block.first == 0 || block.first >= block.end) return;
        const int64_t head = task / in.blocks;
        T *const keys = grad_k.head(head), *const values = grad_v.head(head);
        for (int64_t i = 0; i < in.chunk; ++i) {
          const int64_t row = block.order[block.first - in.chunk + i];
          const T* from_k = spill_keys + (task * in.chunk + i) * padded_D;
          const T* from_v = spill_values + (task * in.chunk + i) * padded_E;
          for (int64_t d = 0; d < D; ++d) keys[row * D + d] += from_k[d];
          for (int64_t e = 0; e < E; ++e) values[row * E + e] += from_v[e];
        }
      });
    }
    in.zero_padding(range, D, grad_q);
    in.zero_padding(range, D, grad_k);
    in.zero_padding(range, E, grad_v);
  });
  return {grad_q.tensor(), grad_k.tensor(), grad_v.tensor()};
}

Tensor lsh_buckets(const Tensor& x, const Tensor& rotations, const Tensor& lengths) {
  check_buckets(x, rotations, lengths);
  const ScalarType type = sum_type(x.scalar_type());
  const bool halves = x.scalar_type() == ScalarType::BFloat16;
  const Tensor rows = with_contiguous_rows(halves ? x : as_type(x, type));
  const Tensor exact = contiguous_as(rotations, ScalarType::Double);
  const Tensor buckets = new_tensor(x, {x.size(0), x.size(1), rotations.size(0), x.size(2)}, ScalarType::Int);
  if (type == ScalarType::Double)
    hash_all<double>(rows, exact, lengths, data_of<int32_t>(buckets));
  else
    hash_all<float>(rows, exact, lengths, data_of<int32_t>(buckets));
  return buckets;
}

// Positions that index rows of valid positions only.
void check_order(const Tensor& order, const Tensor& lengths) {
  const int64_t rows = order.size(1) * order.size(2), N = order.size(3);
  const std::vector<int64_t> length_B = lengths_of(lengths, N, "lengths");
  const int32_t* places = static_cast<const int32_t*>(order.const_data_ptr());
  for (int64_t row = 0; row < order.size(0) * rows; ++row)
    for (int64_t i = 0, n = length_B[row / rows]; i < n; ++i)
      if (places[row * N + i] < 0 || places[row * N + i] >= n) fail("order must be what forward returned");
}

std::tuple<Tensor, Tensor, Tensor> lsh_attention(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& buckets, const Tensor& lengths, int64_t chunk,
    double dropout, const std::optional<Tensor>& seed) {
  check_lsh(q, k, v, buckets, lengths, chunk, dropout, seed, "buckets");
  const Tensor order = sorted_positions(buckets, lengths);
  if (q.scalar_type() == ScalarType::Double)
    return forward(Rounds<double>(q, k, v, lengths, order, chunk, dropout, seed), q, order);
  return forward(Rounds<float>(q, k, v, lengths, order, chunk, dropout, seed), q, order);
}

std::tuple<Tensor, Tensor, Tensor> lsh_attention_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths, int64_t chunk,
    double dropout, const std::optional<Tensor>& seed, const Tensor& out, const Tensor& softmax, const Tensor& order) {
  check_lsh(q, k, v, order, lengths, chunk, dropout, seed, "order");
  check_grad(grad, q, v);
  const int64_t B = q.size(0), H = q.size(1), N = q.size(2);
  check_saved(out, {B, H, N, v.size(3)}, q.scalar_type(), q, "out");
  check_saved(softmax, {B, H, 2, N}, sum_type(q.scalar_type()), q, "softmax");
  check_saved(order, {B, H, order.size(2), N}, ScalarType::Int, q, "order");
  check_order(order, lengths);
  if (q.scalar_type() == ScalarType::Double)
    return backward(Rounds<double>(q, k, v, lengths, order, chunk, dropout, seed), q, grad, out, softmax);
  return backward(Rounds<float>(q, k, v, lengths, order, chunk, dropout, seed), q, grad, out, softmax);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(attention_ext, CPU, library) {
  library.impl("lsh_buckets", TORCH_BOX(&lsh_buckets));
  library.impl("lsh_attention", TORCH_BOX(&lsh_attention));
  library.impl("lsh_attention_backward", TORCH_BOX(&lsh_attention_backward));
}

}  // namespace attention_ext
