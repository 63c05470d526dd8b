// Inputs and outputs of the CPU operators by head, which kernels read and write in the type of their sums.
//
// Rows of that type stay in place. Those in bfloat16 are converted one head after the other, so that the copies stay in
// the cache and no whole tensor is copied; other types are converted as whole tensors.
#pragma once

#include <initializer_list>

#include "inputs.h"

namespace attention_ext {
namespace {

// An input, [B, H, N, D]; only the valid rows of copies are filled.
template <class T>
class HeadRows {
 public:
  HeadRows(const Tensor& x, ScalarType type, const std::vector<int64_t>& length_B)
      : copied_(type == ScalarType::Float && x.scalar_type() == ScalarType::BFloat16),
        tensor_(with_contiguous_rows(copied_ ? x : as_type(x, type))),
        H_(x.size(1)),
        size_(x.size(3)),
        length_B_(length_B),
        at_(x.size(0) * H_) {
    if (copied_) {
      stride_n = size_;
      numbers = x.size(2) * size_;
      return;
    }
    const View<T> rows(tensor_);
    stride_n = rows.stride_n;
    for (int64_t head = 0; head < x.size(0) * H_; ++head) *(at_ + head) = rows.head(head / H_, head % H_);
  }

  int64_t stride_n;
  int64_t numbers = 0;  // in a head's copy
  const T* head(int64_t b, int64_t h) const { return *(at_ + b * H_ + h); }

  // Copy a head to `memory`.
  void enter(int64_t head, T* memory) const {
    if constexpr (sizeof(T) == 4) {
      const View<uint16_t> rows(tensor_);
      const int64_t b = head / H_, h = head % H_;
      instruction_set().halves.widen(length_B_[b], size_, rows.head(b, h), rows.stride_n, memory);
      *(at_ + head) = memory;
    }
  }

 private:
  bool copied_;
  Tensor tensor_;
  int64_t H_, size_;
  const std::vector<int64_t>& length_B_;
  Buffer<const T*> at_;
};

// An output, [B, H, N, D], of the type `wanted`. Kernels write rows of `padded` values, of which D are kept.
template <class T>
class HeadOutput {
 public:
  HeadOutput(
      const Tensor& like, const std::vector<int64_t>& shape, ScalarType type, ScalarType wanted, int64_t padded = 0)
      : narrows_(type == ScalarType::Float && wanted == ScalarType::BFloat16),
        wanted_(wanted),
        tensor_(new_tensor(like, shape, narrows_ ? wanted : type)),
        N_(shape[2]),
        size_(shape[3]),
        padded_(padded ? padded : size_),
        at_(shape[0] * shape[1]) {
    numbers = narrows_ || padded_ != size_ ? N_ * padded_ : 0;
    if (!numbers)
      for (int64_t head = 0; head < shape[0] * shape[1]; ++head)
        *(at_ + head) = data_of<T>(tensor_) + head * N_ * size_;
  }

  int64_t numbers;  // in a head's copy
  T* head(int64_t head) const { return *(at_ + head); }
  Tensor tensor() const { return as_type(tensor_, wanted_); }

  // Set all rows of a head to zero.
  void clear(int64_t head) const { std::fill_n(*(at_ + head), N_ * padded_, T(0)); }

  // Let a head's rows be written to `memory`, and store them.
  void enter(int64_t head, T* memory) const { *(at_ + head) = memory; }
  void leave(int64_t head) const {
    const T* from = *(at_ + head);
    if (padded_ == size_) return store(N_ * size_, from, head * N_ * size_);
    for (int64_t i = 0; i < N_; ++i) store(size_, from + i * padded_, (head * N_ + i) * size_);
  }

 private:
  void store(int64_t count, const T* from, int64_t place) const {
    if constexpr (sizeof(T) == 4)
      if (narrows_) return instruction_set().halves.narrow(count, from, data_of<uint16_t>(tensor_) + place);
    std::copy_n(from, count, data_of<T>(tensor_) + place);
  }

  bool narrows_;
  ScalarType wanted_;
  Tensor tensor_;
  int64_t N_, size_, padded_;
  Buffer<T*> at_;
};

// The copies of all inputs and outputs of a computation.
template <class T>
class HeadCopies {
 public:
  HeadCopies(std::initializer_list<const HeadRows<T>*> inputs, std::initializer_list<const HeadOutput<T>*> outputs) {
    for (const auto* input : inputs)
      if (input->numbers) inputs_.push_back(input), numbers += padded(input->numbers);
    for (const auto* output : outputs)
      if (output->numbers) outputs_.push_back(output), numbers += padded(output->numbers);
  }

  int64_t numbers = 0;  // of a head

  void enter(int64_t head, T* memory) const {
    for (const auto* input : inputs_) input->enter(head, memory), memory += padded(input->numbers);
    for (const auto* output : outputs_) output->enter(head, memory), memory += padded(output->numbers);
  }
  void leave(int64_t head) const {
    for (const auto* output : outputs_) output->leave(head);
  }

 private:
  static int64_t padded(int64_t count) { return (count + 15) / 16 * 16; }  // whole cache lines
  std::vector<const HeadRows<T>*> inputs_;
  std::vector<const HeadOutput<T>*> outputs_;
};

// A range of heads.
struct HeadRange {
  int64_t first, end;
  int64_t count() const { return end - first; }
};

// Whether each thread processes whole heads: there are enough of them to share out evenly.
inline bool shares_heads(int64_t heads) {
  const int64_t threads = torch::stable::get_num_threads();
  return heads % threads == 0 || heads >= 8 * threads;
}

// Run all phases of a computation for all heads: head by head if that keeps all threads busy, so that a head's rows
// stay in the cache from phase to phase, else each phase as one parallel loop over all heads. The phases may read the
// inputs and write the outputs that are given.
template <class T, class F>
void for_heads(
    int64_t heads, std::initializer_list<const HeadRows<T>*> inputs,
    std::initializer_list<const HeadOutput<T>*> outputs, const F& phases) {
  const HeadCopies<T> copies(inputs, outputs);
  if (shares_heads(heads)) {
    const int64_t bytes = copies.numbers * static_cast<int64_t>(sizeof(T));
    parallel_with_scratch(heads, bytes, [&](int64_t head, char* memory) {
      copies.enter(head, reinterpret_cast<T*>(memory));
      phases(HeadRange{head, head + 1});
      copies.leave(head);
    });
    return;
  }
  const Buffer<T> memory(heads * copies.numbers);
  parallel(heads, [&](int64_t head) { copies.enter(head, memory + head * copies.numbers); });
  phases(HeadRange{0, heads});
  parallel(heads, [&](int64_t head) { copies.leave(head); });
}

}  // namespace
}  // namespace attention_ext
