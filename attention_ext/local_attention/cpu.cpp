// Local attention on the CPU.
#include <cmath>

#include "../cpu/inputs.h"

namespace attention_ext {
namespace {

// Inputs of one call, checked by check_local. Heads are numbered b · H + h.
template <class T>
struct Bands {
  static constexpr ScalarType type = sizeof(T) == 8 ? ScalarType::Double : ScalarType::Float;

  const Kernels<T>& kernel = kernels<T>();
  Tensor q_BHND, k_BHND, v_BHNE;
  int64_t B, H, N, D, E, heads, left, right, chunk, globals;
  // A task is a block of queries. Its size depends on window and globals, so that the bits are the same for an
  // utterance alone, in any batch, and for any number of threads. A whole window with a chunk cut at either end, so
  // that every other block touches different keys; four times the global positions, so that what each block stores for
  // those is linear in N.
  int64_t block, blocks;
  T scale;
  View<T> q, k, v;
  std::vector<int64_t> length_B;
  Dropout dropout;

  Bands(
      const Tensor& q_, const Tensor& k_, const Tensor& v_, const Tensor& lengths, int64_t left_, int64_t right_,
      int64_t chunk_, int64_t globals_, double dropout_probability, const std::optional<Tensor>& seed)
      : q_BHND(with_contiguous_rows(as_type(q_, type))),
        k_BHND(with_contiguous_rows(as_type(k_, type))),
        v_BHNE(with_contiguous_rows(as_type(v_, type))),
        B(q_.size(0)),
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
        q(q_BHND),
        k(k_BHND),
        v(v_BHNE),
        length_B(lengths_of(lengths, N, "lengths")),
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
        .dropout = dropout,
        .first_row = static_cast<uint64_t>(head * N)};
  }

  // Zero the rows past each head's length.
  void zero_padding(int64_t size, T* rows) const {
    parallel(heads, [&](int64_t head) {
      std::fill_n(rows + (head * N + length(head)) * size, (N - length(head)) * size, T(0));
    });
  }
};

template <class T>
std::tuple<Tensor, Tensor> forward(const Bands<T>& in, const Tensor& like) {
  const Tensor out = new_tensor(like, {in.B, in.H, in.N, in.E}, in.type);
  const Tensor softmax = new_tensor(like, {in.B, in.H, 2, in.N}, in.type);
  std::fill_n(data_of<T>(softmax), in.heads * 2 * in.N, T(0));
  parallel_with_scratch(
      in.heads * in.blocks, in.kernel.band_scratch(in.D, in.E, false), [&](int64_t task, char* scratch) {
        const int64_t head = task / in.blocks;
        const BandBlock<T> block = in.part(head, task % in.blocks);
        if (block.first >= block.end) return;
        T* maximum = data_of<T>(softmax) + 2 * head * in.N;
        in.kernel.band(
            {.block = block,
             .maximum_N = maximum,
             .inverse_sum_N = maximum + in.N,
             .out_NE = data_of<T>(out) + head * in.N * in.E,
             .scratch = scratch});
      });
  in.zero_padding(in.E, data_of<T>(out));
  return {as_type(out, like.scalar_type()), softmax};
}

// Gradients of the rows of all heads, padded to whole vectors.
template <class T>
struct PaddedRows {
  Tensor rows;
  int64_t size, padded;
  T* data;

  PaddedRows(const Bands<T>& in, const Tensor& like, int64_t size_)
      : rows(new_tensor(like, {in.B, in.H, in.N, in.kernel.padded(size_)}, in.type)),
        size(size_),
        padded(in.kernel.padded(size_)),
        data(data_of<T>(rows)) {
    parallel(in.heads, [&](int64_t head) { std::fill_n(data + head * in.N * padded, in.N * padded, T(0)); });
  }

  // Add to row `row` of a head.
  void add(int64_t row, const T* from) const {
    for (int64_t j = 0; j < padded; ++j) data[row * padded + j] += from[j];
  }

  Tensor result(ScalarType type) const {
    Tensor all = rows;
    return as_type(size == padded ? all : torch::stable::contiguous(torch::stable::narrow(all, 3, 0, size)), type);
  }
};

template <class T>
std::tuple<Tensor, Tensor, Tensor> backward(
    const Bands<T>& in, const Tensor& like, const Tensor& grad, const Tensor& out, const Tensor& softmax) {
  const int64_t N = in.N, tasks = in.heads * in.blocks;
  const PaddedRows<T> grad_q(in, like, in.D), grad_k(in, like, in.D), grad_v(in, like, in.E);
  const int64_t padded_D = grad_q.padded, padded_E = grad_v.padded;
  const Tensor grad_rows = with_contiguous_rows(as_type(grad, in.type));
  const Tensor out_rows = with_contiguous_rows(as_type(out, in.type));
  const View<T> g(grad_rows), o(out_rows);

  Buffer<T> delta(in.heads * N);
  parallel(tasks, [&](int64_t task) {
    const int64_t head = task / in.blocks, b = head / in.H, h = head % in.H;
    const BandBlock<T> block = in.part(head, task % in.blocks);
    for (int32_t i = static_cast<int32_t>(block.first); i < block.end; ++i)
      *(delta + head * N + i) = in.kernel.dot_rows(1, in.E, &i, g.head(b, h), g.stride_n, o.head(b, h), o.stride_n);
  });

  // What a block contributes to the global positions, whose rows other blocks contribute to as well.
  Buffer<T> spill_queries(tasks * in.globals * padded_D), spill_keys(tasks * in.globals * padded_D);
  Buffer<T> spill_values(tasks * in.globals * padded_E);
  for (int64_t turn = 0; turn < 2; ++turn)  // even blocks, then odd ones
    parallel_with_scratch(tasks, in.kernel.band_scratch(in.D, in.E, true), [&](int64_t task, char* scratch) {
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
           .grad_q = grad_q.data + head * N * padded_D,
           .grad_k = grad_k.data + head * N * padded_D,
           .grad_v = grad_v.data + head * N * padded_E,
           .spill_queries = spill_queries + task * in.globals * padded_D,
           .spill_keys = spill_keys + task * in.globals * padded_D,
           .spill_values = spill_values + task * in.globals * padded_E,
           .scratch = scratch});
    });
  parallel(in.heads * in.globals, [&](int64_t task) {
    const int64_t head = task / in.globals, i = task % in.globals;
    for (int64_t number = 0; number < in.blocks_of(head) && i < in.length(head); ++number) {
      const int64_t from = (head * in.blocks + number) * in.globals + i;
      grad_q.add(head * N + i, spill_queries + from * padded_D);
      grad_k.add(head * N + i, spill_keys + from * padded_D);
      grad_v.add(head * N + i, spill_values + from * padded_E);
    }
  });
  const ScalarType type = like.scalar_type();
  return {grad_q.result(type), grad_k.result(type), grad_v.result(type)};
}

std::tuple<Tensor, Tensor> local_attention(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths, int64_t left, int64_t right,
    int64_t chunk, int64_t globals, double dropout, const std::optional<Tensor>& seed) {
  check_local(q, k, v, lengths, left, right, chunk, globals, dropout, seed);
  if (q.scalar_type() == ScalarType::Double)
    return forward(Bands<double>(q, k, v, lengths, left, right, chunk, globals, dropout, seed), q);
  return forward(Bands<float>(q, k, v, lengths, left, right, chunk, globals, dropout, seed), q);
}

std::tuple<Tensor, Tensor, Tensor> local_attention_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths, int64_t left,
    int64_t right, int64_t chunk, int64_t globals, double dropout, const std::optional<Tensor>& seed, const Tensor& out,
    const Tensor& softmax) {
  check_local(q, k, v, lengths, left, right, chunk, globals, dropout, seed);
  check_grad(grad, q, v);
  const int64_t B = q.size(0), H = q.size(1), N = q.size(2);
  check_saved(out, {B, H, N, v.size(3)}, q.scalar_type(), q, "out");
  check_saved(softmax, {B, H, 2, N}, sum_type(q.scalar_type()), q, "softmax");
  if (q.scalar_type() == ScalarType::Double)
    return backward(Bands<double>(q, k, v, lengths, left, right, chunk, globals, dropout, seed), q, grad, out, softmax);
  return backward(Bands<float>(q, k, v, lengths, left, right, chunk, globals, dropout, seed), q, grad, out, softmax);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(attention_ext, CPU, library) {
  library.impl("local_attention", TORCH_BOX(&local_attention));
  library.impl("local_attention_backward", TORCH_BOX(&local_attention_backward));
}

}  // namespace attention_ext
