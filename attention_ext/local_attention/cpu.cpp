// Local attention on the CPU.
#include <cmath>

#include "../cpu/head_rows.h"

namespace attention_ext {
namespace {

// The addends of the scores, [B, N], in the type of the sums.
std::optional<Tensor> addends(const std::optional<Tensor>& bias, ScalarType type) {
  if (!bias) return std::nullopt;
  return contiguous_as(*bias, type);
}

// Inputs of one call, checked by check_local. Heads are numbered b · H + h.
template <class T>
struct Bands {
  static constexpr ScalarType type = sizeof(T) == 8 ? ScalarType::Double : ScalarType::Float;

  const Kernels<T>& kernel = kernels<T>();
  int64_t B, H, N, D, E, heads, left, right, chunk, globals;
  // A task is a block of queries. Its size depends on window and globals, so that the bits are the same for an
  // utterance alone, in any batch, and for any number of threads. A whole window with a chunk cut at either end, so
  // that every other block touches different keys; four times the global positions, so that what each block stores for
  // those is linear in N.
  int64_t block, blocks;
  T scale;
  std::vector<int64_t> length_B;
  HeadRows<T> q, k, v;
  std::optional<Tensor> bias;
  Dropout dropout;

  Bands(
      const Tensor& q_, const Tensor& k_, const Tensor& v_, const Tensor& lengths, int64_t left_, int64_t right_,
      int64_t chunk_, int64_t globals_, double dropout_probability, const std::optional<Tensor>& seed,
      const std::optional<Tensor>& bias_)
      : B(q_.size(0)),
        H(q_.size(1)),
        N(q_.size(2)),
        D(q_.size(3)),
        E(v_.size(3)),
        heads(B * H),
        left(std::min(left_, N)),
        right(std::min(right_, N)),
        chunk(std::max<int64_t>(1, std::min(chunk_, N))),
        globals(std::min(globals_, N)),
        block(std::max<int64_t>(256, std::max(left + right + 2 * (chunk - 1), 4 * globals))),
        blocks((N + block - 1) / block),
        scale(static_cast<T>(1 / std::sqrt(static_cast<double>(D)))),
        length_B(lengths_of(lengths, N, "lengths")),
        q(q_, type, length_B),
        k(k_, type, length_B),
        v(v_, type, length_B),
        bias(addends(bias_, type)),
        dropout(dropout_of(dropout_probability, seed)) {}

  int64_t length(int64_t head) const { return length_B[head / H]; }

  int64_t globals_of(int64_t head) const { return std::min(globals, length(head)); }

  int64_t blocks_of(int64_t head) const { return (length(head) + block - 1) / block; }

  // One block of a head; may be empty.
  BandBlock<T> part(int64_t head, int64_t number) const {
    const int64_t b = head / H, h = head % H;
    return {
        .D = D,
        .E = E,
        .left = left,
        .right = right,
        .chunk = chunk,
        .globals = globals_of(head),
        .length = length(head),
        .first = number * block,
        .end = std::min((number + 1) * block, length(head)),
        .q = q.head(b, h),
        .k = k.head(b, h),
        .v = v.head(b, h),
        .stride_q = q.stride_n,
        .stride_k = k.stride_n,
        .stride_v = v.stride_n,
        .scale = scale,
        .bias = bias ? data_of<T>(*bias) + b * N : nullptr,
        .dropout = dropout,
        .first_row = static_cast<uint64_t>(head * N)};
  }
};

template <class T>
std::tuple<Tensor, Tensor> forward(const Bands<T>& in, const Tensor& like) {
  const HeadOutput<T> out(like, {in.B, in.H, in.N, in.E}, in.type, like.scalar_type());
  const Tensor softmax = new_tensor(like, {in.B, in.H, 2, in.N}, in.type);
  std::fill_n(data_of<T>(softmax), in.heads * 2 * in.N, T(0));
  const int64_t bytes = in.kernel.band_scratch(in.D, in.E, false);
  for_heads<T>(in.heads, {&in.q, &in.k, &in.v}, {&out}, [&](HeadRange range) {
    parallel_with_scratch(range.first * in.blocks, range.end * in.blocks, bytes, [&](int64_t task, char* scratch) {
      const int64_t head = task / in.blocks;
      const BandBlock<T> block = in.part(head, task % in.blocks);
      if (block.first >= block.end) return;
      T* maximum = data_of<T>(softmax) + 2 * head * in.N;
      in.kernel.band(
          {.block = block,
           .maximum_N = maximum,
           .inverse_sum_N = maximum + in.N,
           .out_NE = out.head(head),
           .scratch = scratch});
    });
    parallel(range.first, range.end, [&](int64_t head) {  // zeros at padding
      std::fill_n(out.head(head) + in.length(head) * in.E, (in.N - in.length(head)) * in.E, T(0));
    });
  });
  return {out.tensor(), softmax};
}

template <class T>
std::tuple<Tensor, Tensor, Tensor> backward(
    const Bands<T>& in, const Tensor& like, const Tensor& grad, const Tensor& out, const Tensor& softmax) {
  const int64_t N = in.N, padded_D = in.kernel.padded(in.D), padded_E = in.kernel.padded(in.E);
  const auto gradient = [&](int64_t size, int64_t padded) {
    return HeadOutput<T>(like, {in.B, in.H, N, size}, in.type, like.scalar_type(), padded);
  };
  const HeadOutput<T> grad_q = gradient(in.D, padded_D), grad_k = gradient(in.D, padded_D);
  const HeadOutput<T> grad_v = gradient(in.E, padded_E);
  const HeadRows<T> g(grad, in.type, in.length_B), o(out, in.type, in.length_B);
  const int64_t bytes = in.kernel.band_scratch(in.D, in.E, true);

  for_heads<T>(in.heads, {&in.q, &in.k, &in.v, &g, &o}, {&grad_q, &grad_k, &grad_v}, [&](HeadRange range) {
    const int64_t first = range.first * in.blocks, end = range.end * in.blocks;
    const Buffer<T> delta(range.count() * N, range.first * N);
    parallel(range.first, range.end, [&](int64_t head) {
      for (const auto* rows : {&grad_q, &grad_k, &grad_v}) rows->clear(head);
    });
    parallel(first, end, [&](int64_t task) {
      const int64_t head = task / in.blocks, b = head / in.H, h = head % in.H;
      const BandBlock<T> block = in.part(head, task % in.blocks);
      for (int32_t i = static_cast<int32_t>(block.first); i < block.end; ++i)
        *(delta + head * N + i) = in.kernel.dot_rows(1, in.E, &i, g.head(b, h), g.stride_n, o.head(b, h), o.stride_n);
    });

    // What a block contributes to the global positions, whose rows other blocks contribute to as well.
    const auto spill = [&](int64_t padded) {
      return Buffer<T>((end - first) * in.globals * padded, first * in.globals * padded);
    };
    const Buffer<T> spill_queries = spill(padded_D), spill_keys = spill(padded_D), spill_values = spill(padded_E);
    for (int64_t turn = 0; turn < 2; ++turn)  // even blocks, then odd ones
      parallel_with_scratch(first, end, bytes, [&](int64_t task, char* scratch) {
        const int64_t head = task / in.blocks, number = task % in.blocks;
        const BandBlock<T> block = in.part(head, number);
        if (number % 2 != turn || block.first >= block.end) return;
        const T* maximum = data_of<T>(softmax) + 2 * head * N;
        in.kernel.band_backward(
            {.block = block,
             .grad = g.head(head / in.H, head % in.H),
             .stride_grad = g.stride_n,
             .maximum_N = maximum,
             .inverse_sum_N = maximum + N,
             .delta_N = delta + head * N,
             .grad_q = grad_q.head(head),
             .grad_k = grad_k.head(head),
             .grad_v = grad_v.head(head),
             .spill_queries = spill_queries + task * in.globals * padded_D,
             .spill_keys = spill_keys + task * in.globals * padded_D,
             .spill_values = spill_values + task * in.globals * padded_E,
             .scratch = scratch});
      });
    parallel(range.first * in.globals, range.end * in.globals, [&](int64_t task) {
      const int64_t head = task / in.globals, i = task % in.globals;
      const auto add = [&](T* rows, const T* from, int64_t padded) {
        for (int64_t j = 0; j < padded; ++j) rows[i * padded + j] += from[j];
      };
      for (int64_t number = 0; number < in.blocks_of(head) && i < in.length(head); ++number) {
        const int64_t from = (head * in.blocks + number) * in.globals + i;
        add(grad_q.head(head), spill_queries + from * padded_D, padded_D);
        add(grad_k.head(head), spill_keys + from * padded_D, padded_D);
        add(grad_v.head(head), spill_values + from * padded_E, padded_E);
      }
    });
  });
  return {grad_q.tensor(), grad_k.tensor(), grad_v.tensor()};
}

// Inputs of one call in bfloat16 on tiles.
struct TileBands {
  const TileKernels& kernel = *instruction_set().tiles;
  int64_t B, H, N, D, E, heads, left, right, chunk;
  std::vector<int64_t> length_B;
  Tensor q_, k_, v_;
  View<uint16_t> q, k, v;
  std::optional<Tensor> bias_;
  Dropout dropout;

  TileBands(
      const Tensor& q__, const Tensor& k__, const Tensor& v__, const Tensor& lengths, int64_t left_, int64_t right_,
      int64_t chunk_, double dropout_probability, const std::optional<Tensor>& seed, const std::optional<Tensor>& bias)
      : B(q__.size(0)),
        H(q__.size(1)),
        N(q__.size(2)),
        D(q__.size(3)),
        E(v__.size(3)),
        heads(B * H),
        left(std::min(left_, N)),
        right(std::min(right_, N)),
        chunk(std::max<int64_t>(1, std::min(chunk_, N))),
        length_B(lengths_of(lengths, N, "lengths")),
        q_(with_contiguous_rows(q__)),
        k_(with_contiguous_rows(k__)),
        v_(with_contiguous_rows(v__)),
        q(q_),
        k(k_),
        v(v_),
        bias_(addends(bias, ScalarType::Float)),
        dropout(dropout_of(dropout_probability, seed)) {}

  int64_t length(int64_t head) const { return length_B[head / H]; }

  TileBand band(int64_t head) const {
    const int64_t b = head / H, h = head % H;
    return {
        .D = D,
        .E = E,
        .left = left,
        .right = right,
        .chunk = chunk,
        .length = length(head),
        .q = q.head(b, h),
        .k = k.head(b, h),
        .v = v.head(b, h),
        .stride_q = q.stride_n,
        .stride_k = k.stride_n,
        .stride_v = v.stride_n,
        .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(D))),
        .bias = bias_ ? data_of<float>(*bias_) + b * N : nullptr,
        .dropout = dropout,
        .first_row = static_cast<uint64_t>(head * N)};
  }

  int64_t packed_bytes(bool backward) const {
    TileBand longest = band(0);
    longest.length = N;
    return kernel.packed_bytes(longest, backward);
  }
};

std::tuple<Tensor, Tensor> forward(const TileBands& in, const Tensor& like) {
  const Tensor out = new_tensor(like, {in.B, in.H, in.N, in.E}, ScalarType::BFloat16);
  const Tensor softmax = new_tensor(like, {in.B, in.H, 2, in.N}, ScalarType::Float);
  std::fill_n(data_of<float>(softmax), in.heads * 2 * in.N, 0.0f);
  const int64_t packed = in.packed_bytes(false), scratch = in.kernel.scratch(in.D, in.E);
  const auto attend = [&](int64_t head, int64_t first, int64_t end, char* keys, char* memory) {
    float* maximum = data_of<float>(softmax) + 2 * head * in.N;
    in.kernel.attend(
        {.band = in.band(head),
         .first = first,
         .end = std::min(end, in.length(head)),
         .maximum_N = maximum,
         .inverse_sum_N = maximum + in.N,
         .out_NE = data_of<uint16_t>(out) + head * in.N * in.E,
         .packed = keys,
         .scratch = memory});
  };
  parallel(in.heads, [&](int64_t head) {  // zeros at padding
    const int64_t rest = in.N - in.length(head);
    std::fill_n(data_of<uint16_t>(out) + ((head + 1) * in.N - rest) * in.E, rest * in.E, uint16_t{0});
  });
  if (shares_heads(in.heads)) {
    parallel_with_scratch(in.heads, packed + scratch, [&](int64_t head, char* memory) {
      in.kernel.pack(in.band(head), false, memory);
      attend(head, 0, in.N, memory, memory + packed);
    });
    return {out, softmax};
  }
  const Buffer<char> memory(in.heads * packed + 64);
  char* keys = memory + (64 - reinterpret_cast<uintptr_t>(memory + 0) % 64) % 64;
  parallel(in.heads, [&](int64_t head) { in.kernel.pack(in.band(head), false, keys + head * packed); });
  constexpr int64_t block = 128;  // queries of a task
  const int64_t blocks = (in.N + block - 1) / block;
  parallel_with_scratch(in.heads * blocks, scratch, [&](int64_t task, char* memory) {
    const int64_t head = task / blocks, first = task % blocks * block;
    attend(head, first, first + block, keys + head * packed, memory);
  });
  return {out, softmax};
}

std::tuple<Tensor, Tensor, Tensor> backward(
    const TileBands& in, const Tensor& like, const Tensor& grad_, const Tensor& out_, const Tensor& softmax) {
  const auto gradient = [&](int64_t size) { return new_tensor(like, {in.B, in.H, in.N, size}, ScalarType::BFloat16); };
  const Tensor grad_q = gradient(in.D), grad_k = gradient(in.D), grad_v = gradient(in.E);
  const Tensor grad = with_contiguous_rows(as_type(grad_, ScalarType::BFloat16)), out = with_contiguous_rows(out_);
  const View<uint16_t> g(grad), o(out);
  TileBand longest = in.band(0);
  longest.length = in.N;
  const int64_t packed = in.packed_bytes(true), scratch = in.kernel.backward_scratch(longest);
  parallel_with_scratch(in.heads, packed + scratch, [&](int64_t head, char* memory) {
    const TileBand band = in.band(head);
    const int64_t b = head / in.H, h = head % in.H, rest = in.N - band.length;
    const auto rows = [&](const Tensor& x, int64_t size) {
      uint16_t* first = data_of<uint16_t>(x) + head * in.N * size;
      std::fill_n(first + band.length * size, rest * size, uint16_t{0});
      return first;
    };
    in.kernel.pack(band, true, memory);
    const float* maximum = static_cast<const float*>(softmax.const_data_ptr()) + 2 * head * in.N;
    in.kernel.backward(
        {.band = band,
         .queries = band.length,
         .grad = g.head(b, h),
         .out = o.head(b, h),
         .stride_grad = g.stride_n,
         .stride_out = o.stride_n,
         .maximum_N = maximum,
         .inverse_sum_N = maximum + in.N,
         .grad_q = rows(grad_q, in.D),
         .grad_k = rows(grad_k, in.D),
         .grad_v = rows(grad_v, in.E),
         .packed = memory,
         .scratch = memory + packed});
  });
  return {grad_q, grad_k, grad_v};
}

std::tuple<Tensor, Tensor> local_attention(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths, int64_t left, int64_t right,
    int64_t chunk, int64_t globals, double dropout, const std::optional<Tensor>& seed,
    const std::optional<Tensor>& bias) {
  check_local(q, k, v, lengths, left, right, chunk, globals, dropout, seed, bias);
  if (globals == 0 && on_tiles(q, v))
    return forward(TileBands(q, k, v, lengths, left, right, chunk, dropout, seed, bias), q);
  if (q.scalar_type() == ScalarType::Double)
    return forward(Bands<double>(q, k, v, lengths, left, right, chunk, globals, dropout, seed, bias), q);
  return forward(Bands<float>(q, k, v, lengths, left, right, chunk, globals, dropout, seed, bias), q);
}

std::tuple<Tensor, Tensor, Tensor> local_attention_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths, int64_t left,
    int64_t right, int64_t chunk, int64_t globals, double dropout, const std::optional<Tensor>& seed,
    const std::optional<Tensor>& bias, const Tensor& out, const Tensor& softmax) {
  check_local(q, k, v, lengths, left, right, chunk, globals, dropout, seed, bias);
  check_grad(grad, q, v);
  const int64_t B = q.size(0), H = q.size(1), N = q.size(2);
  check_saved(out, {B, H, N, v.size(3)}, q.scalar_type(), q, "out");
  check_saved(softmax, {B, H, 2, N}, sum_type(q.scalar_type()), q, "softmax");
  if (globals == 0 && on_tiles(q, v))
    return backward(TileBands(q, k, v, lengths, left, right, chunk, dropout, seed, bias), q, grad, out, softmax);
  if (q.scalar_type() == ScalarType::Double)
    return backward(
        Bands<double>(q, k, v, lengths, left, right, chunk, globals, dropout, seed, bias), q, grad, out, softmax);
  return backward(
      Bands<float>(q, k, v, lengths, left, right, chunk, globals, dropout, seed, bias), q, grad, out, softmax);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(attention_ext, CPU, library) {
  library.impl("local_attention", TORCH_BOX(&local_attention));
  library.impl("local_attention_backward", TORCH_BOX(&local_attention_backward));
}

}  // namespace attention_ext
